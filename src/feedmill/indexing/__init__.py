"""Prepare, check and repair datasets.

- `options.py`: the options of these verbs. `report.py`: their results.
- `prepare.py`: the verb, and the index of a JSONL file. `prepare_tars.py`, `prepare_joins.py`, `prepare_media.py`: the
  indices of shards and metadatasets, and media metadata.
- `check.py`, `repair.py`: the verbs. `manifests.py`: manifests of tars.
- `scanning.py`: the samples of many shards. `splitting.py`: what is in which split.
"""
