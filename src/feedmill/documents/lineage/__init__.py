"""Lineage: where each row of an output came from, stored beside the output.

- `sidecar.py`: the file beside an output: its layout, where it lies, reading and writing it; rows as runs of neighbors.
- `samples.py`: the lineage of outputs that are made of samples: shards, tables, files of lines.
- `shards.py`: samples of shards as raw documents.
- `chain.py`: follows rows through several files, back to the raw ones and forth to all outputs.
"""
