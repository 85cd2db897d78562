"""Write the b-trees of a SQLite database bottom-up: a bulk loader for tables whose rows are all known.

Source: "Database File Format" of the SQLite documentation (b-tree pages, cell formats, record format, the lock-byte
page). Pages are filled in key order, level by level, and each page is written once:

* A table leaf holds its rows by rowid (1, 2, 3, ...); a table interior cell repeats the last rowid of its left child.
* An index leaf holds records of the indexed columns and the rowid, in order; a record in an interior page is in no
  leaf.

Supported is only what an index of samples needs: int64 columns, one column of UTF-8 text, no NULL, and records that fit
a page (`LONGEST_TEXT`). SQLite itself is the reference, and writes all other tables (`feedmill.formats.energon.index`).
Tests compare a database with one that SQLite wrote, and run ``PRAGMA integrity_check``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]

PAGE = 4096
LONGEST_TEXT = 900
"""Maximum bytes of text in a record: an index cell holds at most 1,002 bytes, the other columns under 70."""
LOCK_PAGE = (1 << 30) // PAGE + 1
"""SQLite takes its file locks on the bytes of this page, so it holds no data."""
TEXT, ROWID = -1, -2
"""Kinds of record fields other than the number of an integer column."""

_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
_LEAF_HEADER, _INTERIOR_HEADER = 8, 12
_CHUNK = 512  # maximum number of pages written in one call


class Columns(NamedTuple):
    """One table in memory.

    Attributes:
        ints: int64[k, n], the integer columns.
        text: uint8, the text column as UTF-8, with a NUL after each value.
        starts: int64[n + 1], the offset of each value.
    """

    ints: Int64s
    text: npt.NDArray[np.uint8]
    starts: Int64s


class Tree(NamedTuple):
    """One b-tree to write.

    Attributes:
        columns: its table.
        fields: for each field of a record, the number of an integer column, `TEXT`, or `ROWID`.
        order: int64[n], the rows in key order; None for the table itself.
        root: number of its root page.
    """

    columns: Columns
    fields: tuple[int, ...]
    order: Int64s | None
    root: int


@kernel
def _width(value):  # type: ignore[no-untyped-def]
    """Return the number of body bytes of an integer; 0 for the constants 0 and 1."""
    if value == 0 or value == 1:
        return 0
    size = value ^ (value >> 63)
    if size < 1 << 7:
        return 1
    if size < 1 << 15:
        return 2
    if size < 1 << 23:
        return 3
    if size < 1 << 31:
        return 4
    return 6 if size < 1 << 47 else 8


@kernel("i64 -> i64")
def varint_width(value):  # type: ignore[no-untyped-def]
    """Return the number of bytes of a non-negative number below 2^56 as a varint."""
    width = 1
    while value > 127:
        value >>= 7
        width += 1
    return width


@kernel("out u8[:], i64, i64 -> i64")
def put_varint(out, at, value):  # type: ignore[no-untyped-def]
    """Write a varint (seven bits per byte, the highest first), and return its end."""
    end = at + varint_width(value)
    more = 0
    for i in range(end - 1, at - 1, -1):
        out[i] = (value & 127) | more
        value >>= 7
        more = 128
    return end


@kernel("i64, i64[:], i64[:,:], i64[:], i64[:], out u16[:]")
def _cell_sizes(table, fields, ints, starts, rows, sizes):  # type: ignore[no-untyped-def]
    """Compute the size of the leaf cell of each row in bytes."""
    for i in range(len(rows)):
        row = rows[i]
        size = 1 + len(fields)
        for f in range(len(fields)):
            field = fields[f]
            if field >= 0:
                size += _width(ints[field, row])
            elif field == TEXT:
                length = starts[row + 1] - starts[row] - 1
                size += length + (1 if length > 57 else 0)
            else:
                size += _width(row + 1)
        size += varint_width(size)
        sizes[i] = size + varint_width(row + 1) if table else size


@kernel("u16[:], i64, i64, i64, out i64[:] -> i64")
def _partition(sizes, extra, room, promote, bounds):  # type: ignore[no-untyped-def]
    """Divide cells into full pages, and return the number of pages.

    Page p begins with cell bounds[p]. With `promote`, the cell before it moves to the level above.
    """
    n = len(sizes)
    last = n - 1 if promote else 0  # whose page must not be empty if the cell before it is promoted
    pages, used = 1, 0
    bounds[0] = 0
    i = 0
    while i < n:
        while i < n and used + extra + sizes[i] <= room:
            used += extra + sizes[i]
            i += 1
        if i < n:
            bounds[pages] = i + 1 if i < last else i
            used = 0 if i < last else extra + sizes[i]
            pages += 1
            i += 1
    bounds[pages] = n + promote
    return pages


@kernel
def _put_integer(out, head, body, value):  # type: ignore[no-untyped-def]
    """Write an integer in its shortest form: its serial type at `head`, its bytes from `body` on. Return their end."""
    width = _width(value)
    if width == 0:
        out[head] = 8 + value
    elif width <= 4:
        out[head] = width
    else:
        out[head] = width // 2 + 2
    for i in range(body + width - 1, body - 1, -1):
        out[i] = value & 255
        value >>= 8
    return body + width


@kernel
def _put_record(out, at, fields, ints, text, starts, row):  # type: ignore[no-untyped-def]
    """Write a record: its header of serial types, then the values."""
    head = at + 1
    body = head + len(fields)
    for f in range(len(fields)):
        if fields[f] == TEXT and starts[row + 1] - starts[row] - 1 > 57:
            body += 1
    out[at] = body - at
    for f in range(len(fields)):
        field = fields[f]
        if field == TEXT:
            begin, end = starts[row], starts[row + 1] - 1
            head = put_varint(out, head, 13 + 2 * (end - begin))
            for i in range(begin, end):
                out[body] = text[i]
                body += 1
        else:
            body = _put_integer(out, head, body, ints[field, row] if field >= 0 else row + 1)
            head += 1


@kernel("out u8[:], i64, i64, i64[:], i64, i64[:], u16[:], i64, i64[:], i64[:,:], u8[:], i64[:]")
def _put_pages(out, first, kind, bounds, promote, rows, sizes, child, fields, ints, text, starts):  # type: ignore[no-untyped-def]
    """Write pages first, first + 1, ... of one level to out, uint8[pages * 4096]."""
    interior = kind in (_INDEX_INTERIOR, _TABLE_INTERIOR)
    table = kind in (_TABLE_LEAF, _TABLE_INTERIOR)
    link = 4 if interior else 0
    # Pages are addressed in one flat array: a view of each would cost a reference count at every call.
    for p in range(len(out) // PAGE):
        page = p * PAGE
        begin = bounds[first + p]
        end = bounds[first + p + 1] - promote
        pointer = page + (_INTERIOR_HEADER if interior else _LEAF_HEADER)
        top = page + PAGE
        for i in range(begin, end):
            row = rows[i]
            stop = top
            top -= link + sizes[i]
            at = top + link
            if interior:
                _put_number(out, top, _stepped(child + i), 4)
            if kind == _TABLE_INTERIOR:
                put_varint(out, at, row + 1)
            else:
                payload = stop - at - (varint_width(row + 1) if table else 0)
                at = put_varint(out, at, payload - (1 if payload <= 128 else 2))
                if table:
                    at = put_varint(out, at, row + 1)
                _put_record(out, at, fields, ints, text, starts, row)
            _put_number(out, pointer, top - page, 2)
            pointer += 2
        out[pointer:top] = 0
        out[page] = kind
        _put_number(out, page + 1, 0, 2)  # no free block
        _put_number(out, page + 3, end - begin, 2)
        _put_number(out, page + 5, top - page, 2)
        out[page + 7] = 0  # no fragments
        if interior:
            _put_number(out, page + 8, _stepped(child + end), 4)


@kernel("i64 -> i64")
def _stepped(page):  # type: ignore[no-untyped-def]
    """Return a page's number, from its number among the pages that may hold data."""
    return page if page < LOCK_PAGE else page + 1


@kernel
def _put_number(out, at, value, width):  # type: ignore[no-untyped-def]
    """Write a big-endian number."""
    for i in range(at + width - 1, at - 1, -1):
        out[i] = value & 255
        value >>= 8


@dataclass(slots=True)
class _Level:
    """One level of a tree: cells, divided into pages.

    Attributes:
        kind: type of its pages.
        rows: int64[k], the row of each cell.
        sizes: uint16[k], bytes of each cell without the number of its child.
        bounds: see `_partition`.
        first, child: first page of this level and of the level below, not counting the lock-byte page.
    """

    tree: Tree
    kind: int
    rows: Int64s
    sizes: npt.NDArray[np.uint16]
    bounds: Int64s
    first: int = 0
    child: int = 0

    @property
    def pages(self) -> int:
        return len(self.bounds) - 1

    @property
    def promote(self) -> int:
        return int(self.kind != _TABLE_LEAF)


def _levels(tree: Tree) -> list[_Level]:
    """Return the levels of a tree, leaves first."""
    table = tree.order is None
    rows = np.arange(len(tree.columns.starts) - 1) if tree.order is None else tree.order
    sizes = np.empty(len(rows), np.uint16)
    _cell_sizes(table, np.asarray(tree.fields), tree.columns.ints, tree.columns.starts, rows, sizes)
    levels = [_level(tree, _TABLE_LEAF if table else _INDEX_LEAF, rows, sizes)]
    while levels[-1].pages > 1:
        below = levels[-1]
        cells = below.bounds[1:-1] - 1
        rows, sizes = below.rows[cells], below.sizes[cells]
        if below.kind == _TABLE_LEAF:
            # An interior cell of a table holds only a rowid.
            sizes = np.searchsorted(1 << np.arange(7, 56, 7), rows + 1, side="right").astype(np.uint16) + np.uint16(1)
        levels.append(_level(tree, _TABLE_INTERIOR if table else _INDEX_INTERIOR, rows, sizes))
    return levels


def _level(tree: Tree, kind: int, rows: Int64s, sizes: npt.NDArray[np.uint16]) -> _Level:
    leaf = kind in (_TABLE_LEAF, _INDEX_LEAF)
    extra, room = (2, PAGE - _LEAF_HEADER) if leaf else (6, PAGE - _INTERIOR_HEADER)
    most = 2 * (int(sizes.sum(dtype=np.int64)) + extra * len(sizes)) // room + 3
    level = _Level(tree, kind, rows, sizes, np.empty(most, np.int64))
    pages = _partition(sizes, extra, room, level.promote, level.bounds)
    level.bounds = level.bounds[: pages + 1]
    return level


def write_trees(file: int, trees: Sequence[Tree], pages: int, *, threads: int = 1) -> int:
    """Write b-trees to a database that has empty root pages.

    Args:
        file: a descriptor open for writing.
        trees: the trees to write.
        pages: present number of pages in the database; new pages follow them.
        threads: number of trees and runs of pages to write concurrently.

    Returns:
        The new number of pages in the database, for its header.

    Raises:
        OSError: the disk is full, or similar.
    """
    with ThreadPoolExecutor(threads) as pool:
        tasks: list[tuple[_Level, int, int, int]] = []
        for levels in pool.map(_levels, trees):
            for below, level in pairwise(levels):
                below.first = level.child = pages + 1
                pages += below.pages
            levels[-1].first = levels[-1].tree.root
            tasks += [(level, *chunk) for level in levels for chunk in _chunks(level)]
        for _ in pool.map(lambda task: _write_chunk(file, *task), tasks):
            pass
    return int(_stepped(pages))


def _chunks(level: _Level) -> Iterator[tuple[int, int, int]]:
    """Yield runs of a level's consecutive pages: (first, count, number of the first in the file)."""
    at = 0
    while at < level.pages:
        number = level.first + at
        count = min(_CHUNK, level.pages - at)
        if number < LOCK_PAGE:  # a run ends at the lock-byte page
            count = min(count, LOCK_PAGE - number)
        yield at, count, int(_stepped(number))
        at += count


def _write_chunk(file: int, level: _Level, at: int, count: int, number: int) -> None:
    out = np.empty(count * PAGE, np.uint8)
    columns, fields = level.tree.columns, np.asarray(level.tree.fields)
    _put_pages(
        out, at, level.kind, level.bounds, level.promote, level.rows, level.sizes, level.child, fields,
        columns.ints, columns.text, columns.starts,
    )  # fmt: skip
    view = out.data
    offset = (number - 1) * PAGE
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
