"""Write samples into shards with their index, and change existing datasets."""
