"""The cache of remote data on this machine's disk, shared by all of its processes.

- `settings.py`: folder and size of the cache.
- `chunks.py`: the chunks of objects that are read by range: their files, locks and eviction, and the ranks that read
  ahead through them; `reading.py`: requests that fill them, and where their bytes lie.
- `mapped.py`: whole files as arrays, through the chunks.
- `copies.py`: copies of whole files, which libraries open by path; `files.py`: the folder with these copies and its
  size limit; `items.py`: lists the folder.
"""
