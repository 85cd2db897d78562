"""Writing samples to shards."""
