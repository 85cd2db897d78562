"""Benchmarks of media metadata and video clips."""
