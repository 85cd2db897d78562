"""Stores on other machines: object stores, web servers, and the file systems of `fsspec`.

- `range_store.py`: the base class of all of them, which pins versions of files, over `forking.py` (no requests in a
  forked child); `object_store.py`: S3, GCS, Azure and HTTP by `obstore`, with multipart uploads;
  `filesystem.py`: any file system of `fsspec`.
- `options.py`: endpoints, credentials, time limits; `msc.py`: profiles of the Multi-Storage Client and of rclone;
  `errors.py`.
- `locks.py`: locks in object stores; `upload_records.py`: what killed processes left.
"""
