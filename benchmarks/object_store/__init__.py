"""Benchmarks of loading from an object store: a local server that answers after a set latency."""
