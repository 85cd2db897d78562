"""Write samples into shards with their index, and change existing datasets.

- `write.py`: the verb, and `Writer` for samples one by one. `options.py`: the options of the other verbs.
- `reshard.py`, `append.py`: copies of other datasets, see `copying.py`.
- `delete.py`, `add_parts.py`: verbs that rewrite shards in place, see `rewrite.py`.
- `encoding.py`: a sample as members of a tar. `shard.py`: a shard being written. `index.py`: the index of all shards.
- `destination.py`: the dataset that gets new shards. `work.py`: the job, and what a killed run left.
"""
