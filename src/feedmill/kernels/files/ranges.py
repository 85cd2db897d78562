"""Read or copy many ranges of bytes in one call.

The GIL is released once for all ranges of a batch. Otherwise threads that read small samples would spend their time
acquiring it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.kernels.native import Lazy, kernel


def _pread() -> Any:
    from numba import types

    return types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))


pread: Any = Lazy(_pread)


@kernel
def read_all(files, offsets, lengths, addresses):  # type: ignore[no-untyped-def]
    """Read ranges of open files into memory; ranges that are adjacent in one file and in memory are read together.

    Args:
        files: int64[n], descriptors.
        offsets, lengths, addresses: int64[n]: the ranges to read, and the memory addresses to read them to.

    Returns:
        The number of ranges; if a read failed or reached the end of the file, the number of that range.
    """
    i = 0
    while i < len(files):
        length, j = lengths[i], i + 1
        while (
            j < len(files)
            and files[j] == files[i]
            and offsets[j] == offsets[i] + length
            and addresses[j] == addresses[i] + length
        ):
            length += lengths[j]
            j += 1
        done = 0
        while done < length:
            got = pread(np.int32(files[i]), addresses[i] + done, length - done, offsets[i] + done)
            if got <= 0:
                return i
            done += got
        i = j
    return i


def _memcpy() -> Any:
    from numba import types

    return types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))


memcpy: Any = Lazy(_memcpy)


@kernel
def copy_all(origins, lengths, addresses):  # type: ignore[no-untyped-def]
    """Copy ranges of memory.

    Args:
        origins, lengths, addresses: int64[n]: where each range is, its bytes, and where to copy it.
    """
    for i in range(len(origins)):
        memcpy(addresses[i], origins[i], lengths[i])


@kernel
def copy_rows(origins, row, begin, rows, out):  # type: ignore[no-untyped-def]
    """Copy numbers from memory to rows of an array of another type.

    Args:
        origins: int64[n], where the numbers of each row are; they need not be aligned.
        row: memory for the numbers of one row, in their stored type. It stays in the nearest cache.
        begin: the address of `row`.
        rows: int64[n], rows to fill.
        out: integers[m, len(row)].
    """
    width = len(row)
    for i in range(len(origins)):
        memcpy(begin, origins[i], width * row.itemsize)
        at = rows[i]
        for j in range(width):
            out[at, j] = row[j]


@kernel
def gather_pairs(tables, sizes, counts, rows, firsts, seconds):  # type: ignore[no-untyped-def]
    """Copy pairs of neighbors from tables of int64.

    Args:
        tables, sizes: int64[k], where each table is in memory, and how many numbers it has.
        counts: int64[k], the number of pairs from each table.
        rows: int64[n], the place of each pair's first number in its table, table by table.
        firsts, seconds: addresses for the first and second numbers, int64[n] both.

    Returns:
        The number of pairs; that of the first pair outside of its table, if there is one.
    """
    i = 0
    for k in range(len(tables)):
        for _ in range(counts[k]):
            row = rows[i]
            if row < 0 or row + 1 >= sizes[k]:
                return i
            memcpy(firsts + 8 * i, tables[k] + 8 * row, 8)
            memcpy(seconds + 8 * i, tables[k] + 8 * row + 8, 8)
            i += 1
    return i
