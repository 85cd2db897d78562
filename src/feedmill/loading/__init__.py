"""A plan on this rank: batches, threads, state."""
