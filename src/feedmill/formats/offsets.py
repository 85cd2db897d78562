"""Read offset files, and records by offset, for all formats.

An offset file is n + 1 unsigned 64-bit little-endian numbers: the offset of each record, then the end of the last one.

Read many ranges of remote files into one buffer: in one call, without the GIL, where they were read ahead.

Byte ranges that a dataset will read for samples, known from its index before any of them is read.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.jobs.buffers import empty
from feedmill.kernels.files.ranges import copy_all, copy_rows, gather_pairs, read_all
from feedmill.kernels.native import address_of
from feedmill.kernels.rows import copied
from feedmill.storage import Store
from feedmill.storage.base import InMemory, OnDisk, Ranges
from feedmill.storage.local import file_limit, raise_file_limit

MAX_RUN = 4 << 20
"""Maximum bytes read at once from adjacent records."""

_SMALL, _LARGE = 512, 1 << 20
"""Sizes in bytes. An index up to the first is read, which takes less time and memory than to map a page.
One above the second is mapped even if few file descriptors are available."""

Int64s = npt.NDArray[np.int64]


_maps: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
"""Offset files that are mapped in this process. Each keeps a descriptor open."""


def maps_are_full() -> bool:
    """Return whether mapped offset files have half of the descriptors that this process may open."""
    return len(_maps) >= file_limit() // 2


def load_offsets(store: Store, path: str, *, fix: str) -> Int64s:
    """Load an offset file, int64[n + 1]. A local file is mapped, unless it is small or descriptors are few.

    Raises:
        NotFound: there is no such file.
        DataError: its size is not a multiple of 8.
    """
    data = None if store.is_local else store.read(path)  # without a request for its size
    size = store.stat(path).size if data is None else len(data)
    if size < 8 or size % 8:
        raise DataError(
            f"the index is corrupt: {size} bytes are not a list of 8-byte offsets",
            file=store.locate(path),
            kind="bad-index",
            fix=fix,
        )
    if data is None and (size > _LARGE or (size > _SMALL and raise_file_limit() and not maps_are_full())):
        files = store.descriptors([path])
        assert files is not None  # it is local
        mapped = mmap.mmap(files[0].fd, 0, access=mmap.ACCESS_READ)
        _maps[id(mapped)] = mapped
        return np.frombuffer(mapped, "<i8")
    return np.frombuffer(store.read(path) if data is None else data, "<i8")


def place_of(ends: Int64s, number: int) -> tuple[int, int]:
    """Return the file of a record, and its number there, by the number of records up to the end of each file."""
    file = bisect_right(ends.data, number)  # several times as fast as `np.searchsorted` for one number
    return file, number - int(ends[file - 1]) if file else number


def read_record(store: Store, path: str, offsets: Int64s, record: int) -> tuple[int, bytes]:
    """Return the offset of a record and its bytes, by one read. `offsets`: as `load_offsets` returns them."""
    begin, end = offsets[record : record + 2].tolist()
    return begin, store.read(path, begin, end - begin)


def read_records(store: Store, path: str, begins: Int64s, ends: Int64s) -> list[bytes]:
    """Return the bytes of records of one file, in the requested order. Adjacent records are read together.

    Args:
        begins, ends: int64[n], offsets of each record.
    """
    if not len(begins):
        return []
    first, after = _joined(begins, ends)
    blocks = store.read_ranges(path, begins[first].tolist(), (ends[after - 1] - begins[first]).tolist())
    return _split(blocks, first, after, begins, ends)


def read_scattered(store: Store, files: Sequence[tuple[str, Int64s, Int64s]]) -> Iterator[list[bytes]]:
    """Yield the bytes of records of several files, as `read_records` for each.

    A remote store fetches the records of all files at once; a local one reads file by file.

    Args:
        files: path, begins and ends of each file.
    """
    if store.is_local:
        for path, begins, ends in files:
            yield read_records(store, path, begins, ends)
        return
    runs = [_joined(begins, ends) for _, begins, ends in files]
    found = store.read_many(
        [
            (path, begins[first].tolist(), (ends[after - 1] - begins[first]).tolist())
            for (path, begins, ends), (first, after) in zip(files, runs, strict=True)
        ]
    )
    for (_, begins, ends), (first, after), blocks in zip(files, runs, found, strict=True):
        yield _split(blocks, first, after, begins, ends)


def _joined(begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Return the runs of adjacent records, int64[runs] both: the first record of each, and the one after its last."""
    joined = (begins[1:] == ends[:-1]) & (begins[1:] // MAX_RUN == begins[:-1] // MAX_RUN)
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    return first, np.append(first[1:], len(begins))


def _split(blocks: list[bytes], first: Int64s, after: Int64s, begins: Int64s, ends: Int64s) -> list[bytes]:
    if len(first) == len(begins):
        return blocks
    out: list[bytes] = []
    b, e = begins.tolist(), ends.tolist()
    for low, high, block in zip(first.tolist(), after.tolist(), blocks, strict=True):
        base = b[low]
        out += [block] if high - low == 1 else [block[b[i] - base : e[i] - base] for i in range(low, high)]
    return out


def hash_words(words: Sequence[str]) -> str:
    """Return a 32-digit hash (xxh3, 128 bits) of a list of words."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest("\0".join(words).encode("utf-8", "surrogateescape")))


def fingerprint_of_starts(shards: Iterable[tuple[str, Int64s]]) -> str:
    """Return a short hash of shard paths and the offsets of their samples."""
    import xxhash

    hasher = xxhash.xxh3_128()
    for number, (shard, starts) in enumerate(shards):
        hasher.update(("\0" * bool(number) + f"{shard} ").encode("utf-8", "surrogateescape"))
        hasher.update(starts.tobytes().hex().encode())
    return str(hasher.hexdigest())


def copy_fetched(
    store: Store, paths: Sequence[str], files: Int64s, offsets: Int64s, lengths: Int64s, addresses: Int64s
) -> bool:
    """Copy ranges that were read ahead to addresses in memory; return whether all of them were.

    Args:
        paths, files, offsets, lengths: the ranges, as for `Store.fetched`.
        addresses: int64[n], where the bytes of each go.
    """
    return _copied(_found(store, paths, files, offsets, lengths), lengths, addresses)


def _found(
    store: Store, paths: Sequence[str], files: Int64s, offsets: Int64s, lengths: Int64s
) -> OnDisk | InMemory | None:
    return store.fetched(paths, files, offsets, lengths)


def _copied(found: OnDisk | InMemory | None, lengths: Int64s, addresses: Int64s) -> bool:
    if found is None:
        return False
    if isinstance(found, OnDisk):
        places = addresses[found.rows] + found.starts
        return bool(read_all(found.descriptors, found.offsets, found.lengths, places) == len(places))
    copy_all(found.addresses, lengths, addresses)
    return True


def gather_spans(tables: Sequence[Int64s], counts: Int64s, numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Return begin and end of records, int64[n] both, from the offsets of their files.

    Args:
        tables: int64[records + 1] for each file: the offset of each record, then the end of the last one.
        counts: int64[files], how many of the records are in each file.
        numbers: int64[n], the number of each record in its file, file by file.

    Raises:
        IndexError: a file has fewer records.
    """
    begins, ends = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    tables = [np.ascontiguousarray(table, np.int64) for table in tables]
    places = np.asarray([address_of(table) for table in tables], np.int64)
    sizes = np.asarray([len(table) for table in tables], np.int64)
    if gather_pairs(places, sizes, counts, numbers, address_of(begins), address_of(ends)) < len(numbers):
        raise IndexError("a file has fewer records than requested")
    return begins, ends


def read_remote(
    store: Store,
    paths: Sequence[str],
    files: Int64s,
    offsets: Int64s,
    lengths: Int64s,
    buffer: npt.NDArray[np.uint8],
) -> None:
    """Read ranges of several files into a buffer of their total size, without gaps.

    Args:
        paths, files, offsets, lengths: the ranges, as for `Store.fetched`; those of a file are consecutive.
        buffer: uint8, contiguous.

    Raises:
        DataError: a range ends after the end of its file.
        StorageError: it cannot be read.
    """
    found = _found(store, paths, files, offsets, lengths)
    _fill(found, store, paths, files, offsets, lengths, buffer)


def _fill(
    found: OnDisk | InMemory | None,
    store: Store,
    paths: Sequence[str],
    files: Int64s,
    offsets: Int64s,
    lengths: Int64s,
    buffer: npt.NDArray[np.uint8],
) -> None:
    addresses = np.cumsum(lengths) - lengths + address_of(buffer)
    if not _copied(found, lengths, addresses):
        store.fill(_by_file(paths, files, offsets, lengths), buffer.data)


def read_rows(
    store: Store,
    paths: Sequence[str],
    files: Int64s,
    offsets: Int64s,
    dtype: np.dtype[Any],
    out: npt.NDArray[Any],
    rows: Int64s,
) -> None:
    """Read ranges of numbers into rows of an array. What was read ahead is widened where it is, without a copy.

    Args:
        paths, files, offsets: the ranges, as for `Store.fetched`; those of a file are consecutive.
        dtype: type of the stored numbers.
        out: integers[m, width].
        rows: int64[n], rows to fill.

    Raises:
        DataError, StorageError: as `read_remote`.
    """
    lengths = np.full(len(files), out.shape[1] * dtype.itemsize, np.int64)
    found = _found(store, paths, files, offsets, lengths)
    # The kernel fills whole rows: windows that cross files are few, and come in parts.
    views = copied(np.empty(out.shape[1], dtype), out) if out.flags.c_contiguous else None
    if views is not None and isinstance(found, InMemory):
        row, target = views
        copy_rows(found.addresses, row, address_of(row), np.ascontiguousarray(rows), target)
        return
    numbers = empty((len(files), out.shape[1]), dtype)
    _fill(found, store, paths, files, offsets, lengths, numbers.reshape(-1).view(np.uint8))
    out[rows] = numbers


def _by_file(paths: Sequence[str], files: Int64s, offsets: Int64s, lengths: Int64s) -> list[Ranges]:
    cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)] if len(files) else [0]
    return [(paths[files[a]], offsets[a:b].tolist(), lengths[a:b].tolist()) for a, b in itertools.pairwise(cuts)]


class Extents(NamedTuple):
    """Byte ranges of files of one store.

    Attributes:
        store: the store of the files.
        paths: paths in the store.
        sample: int64[m], position of each range's sample in the requested indices, in any order.
        file: int64[m], number of each range's file in `paths`.
        begins, ends: int64[m], begin and end of each range in bytes.
        check: compares files (their numbers) with the index, which waits for their bytes; None if reading does not
            compare. Called once the ranges are requested, so that the reader does not wait; with ``awaited=True`` if it
            waits for the ranges, and then only for files for which it would wait again.
    """

    store: Store
    paths: Sequence[str]
    sample: Int64s
    file: Int64s
    begins: Int64s
    ends: Int64s
    check: Callable[..., object] | None = None

    def of_samples(self, places: Int64s) -> Extents:
        """Return the same ranges for samples at other positions: ``places[i]`` is that of sample i, int64[n]."""
        return self._replace(sample=np.asarray(places, np.int64)[self.sample])

    def joined(self, other: Extents) -> Extents:
        """Return these ranges and others of the same files."""
        sample, file, begins, ends = (np.concatenate(pair) for pair in zip(self[2:6], other[2:6], strict=True))
        return self._replace(sample=sample, file=file, begins=begins, ends=ends)
