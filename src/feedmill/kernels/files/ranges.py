"""Read or copy many ranges of bytes in one call.

The GIL is released once for all ranges of a batch. Otherwise threads that read small samples would spend their time
acquiring it.
"""

from __future__ import annotations

from feedmill.kernels.machine import memcpy, pread
from feedmill.kernels.native import kernel


@kernel("i64[:], i64[:], i64[:], i64[:] -> i64")
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
            got = pread(files[i], addresses[i] + done, length - done, offsets[i] + done)
            if got <= 0:
                return i
            done += got
        i = j
    return i


@kernel("i64[:], i64[:], i64[:]")
def copy_all(origins, lengths, addresses):  # type: ignore[no-untyped-def]
    """Copy ranges of memory.

    Args:
        origins, lengths, addresses: int64[n]: where each range is, its bytes, and where to copy it.
    """
    for i in range(len(origins)):
        memcpy(addresses[i], origins[i], lengths[i])


@kernel(
    "i64[:], token[:], i64, i64[:], out i64[:,:]",
    "i64[:], u8[:], i64, i64[:], out u8[:,:]",
    "i64[:], u16[:], i64, i64[:], out u16[:,:]",
    "i64[:], u32[:], i64, i64[:], out u32[:,:]",
)
def copy_rows(origins, row, begin, rows, out):  # type: ignore[no-untyped-def]
    """Copy numbers from memory to rows of an array of the same type or of int64.

    Args:
        origins: int64[n], where the numbers of each row are; they need not be aligned.
        row: memory for the numbers of one row, in their stored type. It stays in the nearest cache.
        begin: the address of `row`.
        rows: int64[n], rows to fill.
        out: [m, len(row)], filled.
    """
    width = len(row)
    for i in range(len(origins)):
        memcpy(begin, origins[i], width * row.itemsize)
        line = out[rows[i]]
        for j in range(width):
            line[j] = row[j]


@kernel("i64[:], i64[:], i64[:], i64[:], i64, i64 -> i64")
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
