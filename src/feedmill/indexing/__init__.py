"""Prepare, check and repair datasets.

- `prepare`: the verb, and the index of a JSONL file. `prepare_tars`, `prepare_joins`, `prepare_media`: of other data.
- `check`, `repair`: the verbs. `report`: their results, and that of `prepare`. `manifests`: manifests of tars.
- `options`: the options of these verbs. `scanning`: the samples of many shards; `splitting`: what is in which split.
"""
