"""Benchmarks of the data browser."""
