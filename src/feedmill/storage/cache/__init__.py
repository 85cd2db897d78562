"""The cache of remote data on this machine's disk, shared by all of its processes.

- `settings.py`: folder and size of the cache.
- `copies.py`: copies of whole files, which libraries open by path; `files.py`: the folder with these copies and its
  size limit; `items.py`: lists the folder.
- `mapped.py`: whole files as arrays, through the page cache.
- `pages.py`: the page cache, which has byte ranges of objects, and the ranks that read ahead through it; `page_io.py`:
  the pages of one object; `page_map.py`: its files; `page_locks.py`: locks on them; `usage.py`: counters that processes
  share; `paged.py`: requests that fill the pages.
"""
