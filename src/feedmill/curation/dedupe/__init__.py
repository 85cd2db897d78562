"""Exact deduplication of documents, paragraphs, n-grams and substrings, by 128-bit hashes or by a Bloom filter.

A file of documents becomes units with keys, a key is new or was seen before, and seen ones become spans of attributes.

- `job.py`: the verb ``dedupe``: files, finished work, manifests and the report.
- `units.py`: units and their keys. `exact.py`: keys as hashes on disk, compared range by range, in the files of
  `segments.py` and `work.py`; rows of attributes are rendered from the segments.
- `substrings.py`: repeated substrings, by the same files; `tokenized.py`: texts as bytes or tokens, which it compares.
- `bloomed.py`: a Bloom filter and its file, in one pass, or in stages for engines.
- `task.py`: the task of one file, and its result.
"""
