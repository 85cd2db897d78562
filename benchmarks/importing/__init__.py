"""Benchmarks of importing files as they lie on a disk."""
