"""A function over shards, on all cores, with progress; same output whatever the parallelism."""
