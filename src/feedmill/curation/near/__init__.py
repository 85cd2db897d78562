"""Near-duplicates: MinHash, locality-sensitive hashing, exact Jaccard similarity, clusters."""
