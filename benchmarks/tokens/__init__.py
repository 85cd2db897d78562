"""Benchmarks of token files: tokenizing, reading, merging and shuffling."""
