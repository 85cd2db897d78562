"""Sample order: which sample comes at each position of training, as a pure function of recipe, seed and position.

A recipe becomes a tree of index maps, the tree and its datasets a plan; a plan turns arrays of positions into samples
and back. Nothing is replayed: `recipes/` (or `dialects/`) -> `nodes/` -> `plan.py` -> `dealing/` -> one rank's batches.

- `recipes/`: read, check and compile recipes; `dialects/`: those of other tools, translated into ours.
- `nodes/`: the maps (subset, subsample, shuffle, repeat, concat, blend, skip), with `permutation.py` and the schedules
  of `mixing/`; `orders/`: the exact orders of other tools; `packing/`: rows of tokens from documents.
- `plan.py`: the tree bound to data; `given.py` makes one of whatever a user gives; `overview.py` is the verb ``plan``,
  whose options are in `options.py`.
- `rollouts.py`: what a step draws of data that grows meanwhile, recorded because it is no function of the position.
- `dealing/`: global batches, and which rank gets which position. `resuming/`: states of changed recipes.
- Questions: `ledger.py` (which step saw a sample), `report.py` (weights and repeats), `forecast.py` (what is read),
  `bounds.py` (that no source is repeated too often), `tokens.py` (lengths and tokenizers), `proxy.py` (small runs for
  large ones), `remote_reads.py` (requests).
"""
