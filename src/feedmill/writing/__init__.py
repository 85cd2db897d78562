"""Write samples into shards with their index, and change existing datasets.

- `write`: the verb, and `Writer` for samples one by one. `reshard`, `append`: copies of other datasets, see `copying`.
- `delete`, `add_parts`: verbs that rewrite shards in place, see `rewrite`.
- `shard`: a shard being written; `encoding`: samples as its members. `index`: the index of all shards.
- `destination`: the dataset that gets new shards. `work`: the job that a killed run left.
"""
