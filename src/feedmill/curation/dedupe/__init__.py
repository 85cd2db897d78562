"""Exact deduplication of documents, paragraphs, n-grams and substrings, by 128-bit hashes or by a Bloom filter.

A file of documents becomes units with keys, a key is new or was seen before, and seen ones become spans of attributes.

- `dedupe.py`: the function; `job.py`: files, finished work, manifests and the report.
- `units.py`: units and their keys; `keys.py`: keys as hashes, and which occurred before; `render.py`: attribute rows.
- `exact.py`: hashes on disk, compared range by range, with the files of `segments.py` and `work.py`.
- `substrings.py`: repeated substrings, by the same files; `tokenized.py`: texts as bytes or tokens, which it compares.
- `bloomed.py`: a Bloom filter and its file, in one pass, or in stages for engines.
- `task.py`: the task of one file, and its result.
"""
