"""Mount a dataset as a read-only file system, for any format that has parts.

Programs ask for a name or for bytes, through FUSE; a name becomes a sample and a part by the index, and only then are
its bytes read, in the ranges that are asked for.

- `mount.py`: the verb ``mount``, whose options are in `options.py`, and the operations of the file system.
- `catalog.py`: names as folders and files, listed from the index on demand, however many samples there are.
"""
