"""The cache of remote data on this machine's disk, shared by all of its processes.

- `settings.py`: folder and size of the cache.
- `folder.py`: what lies in the folder: the bound of all of it, what is in use, what is evicted, and the ranks that read
  ahead.
- `chunks.py`: the chunks of objects that are read by range; `reading.py`: requests that fill them, and where their
  bytes lie.
- `mapped.py`: whole files as arrays, through the chunks.
- `copies.py`: copies of whole files, which libraries open by path.
"""
