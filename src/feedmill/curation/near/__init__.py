"""Near-duplicate detection: MinHash, locality-sensitive hashing, exact Jaccard similarity, clusters."""
