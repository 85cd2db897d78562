"""Benchmarks of writing samples to shards."""
