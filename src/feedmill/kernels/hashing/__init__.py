"""Hashes, and what is found by them: Bloom filters, shingles, near-duplicates."""
