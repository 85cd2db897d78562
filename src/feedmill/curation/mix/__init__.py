"""Filter documents by their attributes, replace spans of their texts, and sample them: the verb ``filter``.

A configuration has streams; each output of a stream is a shard of work, in which the rows of documents and of their
attributes are read in step, judged, changed and written.

- `config.py`: streams, rules and replacements; and their JSON schema for editors; `limits.py`: short rules.
- `job.py`: inputs, outputs, checks and the `report.py`.
- `shard.py`: writes one output, from blocks of lines, and knows what is done. `merging.py` adds to documents the
  attributes that `attributes.py` reads, as far as the stream needs them.
- `rules.py`: which documents to keep; `spans.py`: replace spans, one by one and many at once.
- `align.py`: attributes belong to their documents; `names.py`: rules name attributes that exist.
- `verdict.py`: why a document was kept or dropped.
"""
