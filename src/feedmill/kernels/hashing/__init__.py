"""Hashes and their uses: Bloom filters, shingles, near-duplicates."""
