"""Benchmarks of shards without an index: plain tars and MDS."""
