"""Benchmarks of loaders: throughput, resuming, and memory over long runs."""
