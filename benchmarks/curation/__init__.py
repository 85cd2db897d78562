"""Benchmarks of tagging, deduplicating, mixing and counting documents."""
