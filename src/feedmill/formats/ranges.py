"""Read many ranges of remote files into one buffer: in one call, without the GIL, where they were read ahead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.offsets import Int64s
from feedmill.jobs.buffers import empty
from feedmill.kernels import addresses as memory
from feedmill.kernels.files.ranges import copy_all, copy_rows, gather_pairs, read_all
from feedmill.storage import Store
from feedmill.storage.base import InMemory, OnDisk, Ranges


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
    # Loading compiled code takes longer than many a first batch: `Dataset.warm` does it meanwhile.
    return store.fetched(paths, files, offsets, lengths) if copy_all.loaded else None


def _copied(found: OnDisk | InMemory | None, lengths: Int64s, addresses: Int64s) -> bool:
    if found is None:
        return False
    if isinstance(found, OnDisk):
        places = addresses[found.rows] + found.starts
        return bool(read_all(found.descriptors, found.offsets, found.lengths, places) == len(places))
    copy_all(found.addresses, lengths, addresses)
    return True


def gather_spans(
    tables: Sequence[Int64s], counts: Int64s, numbers: Int64s, *, load: bool = True
) -> tuple[Int64s, Int64s]:
    """Return begin and end of records, int64[n] both, from the offsets of their files.

    Args:
        tables: int64[records + 1] for each file: the offset of each record, then the end of the last one.
        counts: int64[files], how many of the records are in each file.
        numbers: int64[n], the number of each record in its file, file by file.
        load: whether to load compiled code for it if that is not loaded yet; see `_found`.

    Raises:
        IndexError: a file has fewer records.
    """
    begins, ends = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    if load or gather_pairs.loaded:
        tables = [np.ascontiguousarray(table, np.int64) for table in tables]
        places = np.asarray([memory.of(table) for table in tables], np.int64)
        sizes = np.asarray([len(table) for table in tables], np.int64)
        if gather_pairs(places, sizes, counts, numbers, memory.of(begins), memory.of(ends)) < len(numbers):
            raise IndexError("a file has fewer records than requested")
        return begins, ends
    stop = 0
    for table, count in zip(tables, counts.tolist(), strict=True):
        at = slice(stop, stop := stop + count)
        if count and numbers[at].min() < 0:
            raise IndexError("negative numbers of records")
        begins[at], ends[at] = table[numbers[at]], table[numbers[at] + 1]
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
    addresses = np.cumsum(lengths) - lengths + memory.of(buffer)
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
    # Compiled code exists for whole rows: windows that cross files are few, and come in parts.
    compiled = copy_rows.loaded and dtype.isnative and out.dtype.isnative and out.flags.c_contiguous
    if compiled and isinstance(found, InMemory):
        row = np.empty(out.shape[1], dtype)
        copy_rows(found.addresses, row, memory.of(row), np.ascontiguousarray(rows), out)
        return
    numbers = empty((len(files), out.shape[1]), dtype)
    _fill(found, store, paths, files, offsets, lengths, numbers.reshape(-1).view(np.uint8))
    out[rows] = numbers


def _by_file(paths: Sequence[str], files: Int64s, offsets: Int64s, lengths: Int64s) -> list[Ranges]:
    cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)] if len(files) else [0]
    return [(paths[files[a]], offsets[a:b].tolist(), lengths[a:b].tolist()) for a, b in itertools.pairwise(cuts)]


def load_copying() -> None:
    """Load the compiled code that copies what was read ahead."""
    none = np.zeros(0, np.int64)
    read_all(none, none, none, none)
    copy_all(none, none, none)
    gather_pairs(none, none, none, none, 0, 0)


def load_widening(dtype: np.dtype[Any], out: np.dtype[Any]) -> None:
    """Load the compiled code that reads what was read ahead into rows of another type; see `read_rows`."""
    load_copying()
    none = np.zeros(0, np.int64)
    if dtype.isnative and out.isnative:
        copy_rows(none, np.empty(0, dtype), 0, none, np.empty((0, 0), out))
