"""Arrays of integers as Zarr (version 3) stores them, read by ranges: the storage of Levanter's caches.

- `meta`: ``zarr.json``, what of it is rejected, and its codecs, with checks of sizes and checksums; ranges of an array,
  chunk by chunk, with a bounded cache
- `blosc`: the container of the codec ``blosc``

Only arrays of one dimension are read. The readers of this package import no Zarr library: the usual ones take 60 MB or
more, and return zeros for a chunk that was lost.
"""
