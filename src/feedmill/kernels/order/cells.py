"""Find documents of cells: count codes by block, and find the n-th document of a cell by a search and a scan.

A code is a uint16 per document, the number of its cell. A table of counts has, for each cell, the number of its
documents before each block. So the n-th document of a cell is found by a binary search in one row of the table and a
scan of one block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Codes = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

OUTSIDE = 0xFFFF
"""Code of a document in no cell."""
_STRIDE = 256
"""Codes that a scan counts at a time: enough for vectors, few enough to be read again from the first cache."""


def tally(
    codes: Codes,
    first: int,
    block: int,
    lengths: Int64s,
    table: Counts,
    documents: Int64s,
    units: Int64s,
    marks: Counts,
) -> int:
    """Add consecutive documents to the counts, totals and digests of their cells.

    Args:
        codes: uint16[n], below the number of cells, or `OUTSIDE`.
        first: number of the first of these documents.
        block: documents per block.
        lengths: int64[n], units of each document; int64[0] if these are unknown.
        table: uint32[cells, blocks + 1] or uint64, documents of each cell before each block. The columns of blocks that
            begin with one of these documents are written.
        documents: int64[cells], documents of each cell so far.
        units: int64[cells], units of each cell so far.
        marks: uint64[cells], digest of each cell's document numbers so far.

    Returns:
        int: the first document whose code is no cell, counted from the first one here; -1 if there is none.
    """
    return int(_tally(codes, first, block, lengths, table, documents, units, marks))


def select(codes: Codes, block: int, table: Counts, cells: Int64s, ordinals: Int64s) -> Int64s:
    """Return the number of the document that is the `ordinals`-th of its cell, from 0, int64[n].

    Args:
        codes: uint16[documents].
        block: documents per block.
        table: see `tally`.
        cells, ordinals: int64[n], the cells, and ordinals below their numbers of documents.

    Returns:
        int64[n]; -1 where the table promises a document that the codes do not have.
    """
    out = np.empty(len(cells), np.int64)
    _select(codes, block, table, cells, ordinals, out)
    return out


def before(codes: Codes, block: int, table: Counts, cells: Int64s, numbers: Int64s) -> Int64s:
    """Return how many documents of a cell have a lower number, int64[n].

    Args:
        codes, block, table: see `select`.
        cells, numbers: int64[n], the cells, and numbers from 0 to the number of documents.
    """
    out = np.empty(len(cells), np.int64)
    _before(codes, block, table, cells, numbers, out)
    return out


@kernel("u16[:], i64, i64, i64[:], out u32|u64[:,:], out i64[:], out i64[:], out u64[:] -> i64")
def _tally(codes, first, block, lengths, table, documents, units, marks):  # type: ignore[no-untyped-def]
    """See `tally`."""
    counted = len(lengths) > 0
    for place in range(len(codes)):
        number = first + place
        if number % block == 0:
            column = number // block
            for cell in range(len(documents)):
                table[cell, column] = documents[cell]
        code = np.int64(codes[place])
        if code >= len(documents):
            if code != 0xFFFF:
                return place
            continue
        documents[code] += 1
        if counted:
            units[code] += lengths[place]
        word = (marks[code] ^ np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
        marks[code] = word ^ (word >> np.uint64(29))
    return -1


@kernel("u16[:], i64, u32|u64[:,:], i64[:], i64[:], out i64[:]")
def _select(codes, block, table, cells, ordinals, out):  # type: ignore[no-untyped-def]
    """See `select`."""
    for place in range(len(cells)):
        cell, wanted = cells[place], ordinals[place]
        low, high = 0, table.shape[1] - 1
        while high - low > 1:  # the last column that is not above the ordinal
            middle = (low + high) // 2
            if np.int64(table[cell, middle]) <= wanted:
                low = middle
            else:
                high = middle
        left = wanted - np.int64(table[cell, low])
        at = low * block
        stop = min(at + block, len(codes))
        while at < stop:
            found = _count(codes, at, min(at + _STRIDE, stop), cell)
            if found > left:
                break
            left -= found
            at += _STRIDE
        number = -1
        while at < stop:
            if np.int64(codes[at]) == cell:
                if left == 0:
                    number = at
                    break
                left -= 1
            at += 1
        out[place] = number


@kernel("u16[:], i64, u32|u64[:,:], i64[:], i64[:], out i64[:]")
def _before(codes, block, table, cells, numbers, out):  # type: ignore[no-untyped-def]
    """See `before`."""
    for place in range(len(cells)):
        cell, number = cells[place], numbers[place]
        column = number // block
        out[place] = np.int64(table[cell, column]) + _count(codes, column * block, number, cell)


@kernel(inline=False)
def _count(codes, low, high, cell):  # type: ignore[no-untyped-def]
    """Return how many codes in a range are of a cell."""
    part, found = codes[low:high], 0
    for place in range(len(part)):
        found += np.int64(part[place]) == cell
    return found
