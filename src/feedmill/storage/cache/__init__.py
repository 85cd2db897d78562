"""The cache of remote data on this machine's disk, shared by all of its processes.

- `settings.py`: folder and size.
- `copies.py`: whole files that are opened by path; `files.py`, `items.py`: the folder with them.
- `pages.py`: ranges of objects; `page_io.py`, `page_map.py`, `page_locks.py`, `usage.py`: how they lie on the disk;
  `paged.py`: requests that fill them.
"""
