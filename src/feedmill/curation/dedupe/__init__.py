"""Exact deduplication of documents, paragraphs and n-grams, by 128-bit hashes or by a Bloom filter."""
