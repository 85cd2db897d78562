"""Where the parts of a ``.pbin`` lie: recognize its version, and read its list of documents; see `pbin`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.formats.tokens.pickled import read_pairs
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

PICKLE = 0x80
MERGE_SHIFT = 12
_MAKE_AGAIN = copy_again(instead="write it again from its source")
_FORMAT = "Modalities .pbin"


class Layout(NamedTuple):
    """Layout of a file: token type, bytes before the tokens, bytes of tokens, bytes of the file."""

    dtype: np.dtype[Any]
    header: int
    data: int
    size: int

    @property
    def behind(self) -> int:
        """Return the offset of the pickled list."""
        return self.header + self.data


def find_layout(store: Store, path: str, size: int, ends: bytes | None = None) -> Layout:
    """Return the layout of a file, as needed to read its tokens. Raises `DataError`.

    Args:
        ends: its beginning and end, if they were read.
    """
    head = store.read(path, 0, min(12, size)) if ends is None else ends[:12]
    found = [layout for layout in _possible(head, size) if _is_index(store, path, layout)]
    if len(found) > 1:  # the first token of a V0 can look like a token size, so the documents must add up
        found = [layout for layout in found if _adds_up(store, path, layout)] or found[:1]
    if not found:
        raise _no_layout(store, path, head, size)
    layout = found[0]
    if (store.read(path, size - 1, 1) if ends is None else ends[-1:]) != b".":
        raise DataError(
            f"the list of documents at byte {layout.behind} is truncated",
            file=store.locate(path),
            kind="truncated",
            fix=_MAKE_AGAIN,
        )
    return layout


def _possible(head: bytes, size: int) -> Iterator[Layout]:
    """Yield the layouts that match the header and the sizes."""
    for order, name in (("<", "little"), (">", "big")):
        data, width = (int.from_bytes(part, name) for part in (head[:8], head[8:12]))  # type: ignore[arg-type]
        if len(head) == 12 and width in (1, 2, 4) and 12 + data < size and data % width == 0:
            yield Layout(np.dtype(f"{order}u{width}"), 12, data, size)
    data = int.from_bytes(head[:8], "big")
    if 8 + data < size and data % 4 == 0:
        yield Layout(np.dtype(">u4"), 8, data, size)


def _is_index(store: Store, path: str, layout: Layout) -> bool:
    """Return whether a pickled list begins after the tokens."""
    start = store.read(path, layout.behind, min(4, layout.size - layout.behind))
    if not (len(start) == 4 and start[0] == PICKLE and 2 <= start[1] <= 5 and start[2] in b"\x5d\x95"):
        return False
    return layout.data > 0 or _adds_up(
        store, path, layout
    )  # no tokens: either there are no documents, or the writer was killed


def _adds_up(store: Store, path: str, layout: Layout) -> bool:
    try:
        read_index(store, path, layout)
    except DataError:
        return False
    return True


def _no_layout(store: Store, path: str, head: bytes, size: int) -> DataError:
    """Return the error for a file that is not a .pbin, or is incomplete."""
    where = store.locate(path)
    data, width = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:12], "little")
    if size < 12:
        what, kind = f"the file has {size} bytes, fewer than the header of a {_FORMAT}", "truncated"
    elif data == 0 and width in (1, 2, 4, 0):
        return DataError(
            "the length field is 0 although there is data: the program that wrote the file did not finish",
            file=where,
            kind="unfinished",
            fix="Write the file again; it has no list of documents.",
        )
    elif width in (1, 2, 4) and 12 + data >= size:
        what, kind = (
            f"the file is truncated: its header declares {data} bytes of tokens and a list of documents, but the"
            f" file has {size} bytes",
            "truncated",
        )
    elif width in (1, 2, 4):
        odd = f"{data} bytes are not a whole number of tokens of {width} bytes"
        gone = f"no list of documents begins at byte {12 + data}, where the tokens end"
        what, kind = odd if data % width else gone, "bad-index"
    else:
        return DataError(
            f"this is not a {_FORMAT}: its header has tokens of {width} bytes, expected 1, 2 or 4",
            file=where,
            offset=8,
            kind="not-pbin",
            fix="Check the path.",
        )
    return DataError(what, file=where, kind=kind, fix=_MAKE_AGAIN)


class Index(NamedTuple):
    """Documents of a file: int64[n + 1] bounds in tokens, version of the file, number of corrected entries."""

    bounds: Int64s
    version: int
    repaired: int


def read_index(store: Store, path: str, layout: Layout) -> Index:
    """Read the pickled list of documents. Raises `DataError` if it is corrupt or does not match the tokens."""
    total = documents = repaired = base = 0
    width = layout.dtype.itemsize
    pieces = [np.zeros(1, np.int64)]
    bad = partial(_bad_entry, store.locate(path))
    for starts, lengths in read_pairs(store, path, layout.behind, layout.size - layout.behind, fix=_MAKE_AGAIN):
        if not len(starts):
            continue
        if documents == 0 and starts[0] == layout.header:
            base = layout.header
        wrong = np.flatnonzero((lengths > layout.data) | (lengths % width != 0))
        if len(wrong):
            i = int(wrong[0])
            raise bad(
                documents + i, f"a length of {lengths[i]} bytes, with tokens of {width} bytes, {layout.data} in all"
            )
        ends = total + np.cumsum(lengths)
        early = ends - lengths + base - starts
        wrong = np.flatnonzero((early < 0) | (early % MERGE_SHIFT != 0))
        if len(wrong):
            i = int(wrong[0])
            raise bad(documents + i, f"a start of {starts[i]}, expected {ends[i] - lengths[i] + base}")
        repaired += int(np.count_nonzero(early))
        total, documents = int(ends[-1]), documents + len(starts)
        pieces.append(ends // width)
    if total != layout.data:
        raise DataError(
            f"expected documents of {layout.data} bytes in total, found {total} in the index",
            file=store.locate(path),
            kind="bad-index",
            fix=_MAKE_AGAIN + " Windows (seq_len=...) can still be read.",
        )
    little = layout.dtype.str[0] != ">"
    version = (3 if base == 0 else 2) if little else (1 if layout.header == 12 else 0)
    return Index(np.concatenate(pieces), version, repaired)


def _bad_entry(where: str, number: int, found: str) -> DataError:
    return DataError(
        f"invalid entry in the index of documents: {found}",
        file=where,
        record=f"document {number}",
        kind="bad-index",
        fix=_MAKE_AGAIN + " Windows (seq_len=...) can still be read.",
    )
