"""Shards that nobody has prepared: plain tars and MDS."""
