"""Stores on other machines.

- `range_store.py`: what they have in common; `object_store.py`: S3, GCS, Azure and HTTP by `obstore`;
  `filesystem.py`: any file system of `fsspec`, with its `_errors` and `_instances`.
- `options.py`: endpoints, credentials, time limits; `msc.py`: profiles of the Multi-Storage Client; `errors.py`.
- `upload.py`, `files.py`: writing; `claims.py`: locks.
"""
