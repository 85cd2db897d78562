"""Writing datasets: samples to shards with their index, and changing shards that are there."""
