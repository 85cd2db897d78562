"""Deduplication: exact by document, paragraph and n-gram, by Bloom filter, and of near copies."""
