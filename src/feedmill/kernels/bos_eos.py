"""Conversion of token ids for storage: add missing BOS and EOS and narrow the dtype, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]


class Tokens(NamedTuple):
    """Concatenated tokens of n documents.

    Attributes:
        tokens: concatenated tokens of all documents.
        lengths: int64[n], the number of tokens of each document.
        before: int64[n], 1 if a BOS was added, else 0.
    """

    tokens: npt.NDArray[Any]
    lengths: Int64s
    before: Int64s


def add_bos_eos(
    ids: npt.NDArray[np.uint32],
    lengths: Int64s,
    kept: npt.NDArray[np.bool_],
    *,
    bos: int | None,
    eos: int | None,
    always: bool,
    dtype: str,
) -> Tokens:
    """Add BOS and EOS to documents and narrow their ids to `dtype`. Empty documents stay empty.

    Args:
        ids, lengths: the concatenated ids of n documents, and the number of ids of each.
        kept: bool[n], true for documents to write.
        bos, eos: the token to add, or None.
        always: add BOS and EOS to every document; otherwise only to documents that lack them.
        dtype: ``<u2`` or ``<u4``; all ids must fit.

    >>> ids, lengths = np.array([7, 8, 9, 0, 5], np.uint32), np.array([2, 2, 1])
    >>> add_bos_eos(ids, lengths, np.array([True, True, False]), bos=None, eos=0, always=False, dtype="<u2")[:2]
    (array([7, 8, 0, 9, 0], dtype=uint16), array([3, 2, 0]))
    """
    out = np.empty(len(ids) + 2 * len(lengths), dtype)
    stored, before = np.empty((2, len(lengths)), np.int64)
    first, last = (-1 if token is None else token for token in (bos, eos))
    count = _add_bos_eos(ids, np.ascontiguousarray(lengths), kept, first, last, int(always), out, stored, before)
    return Tokens(out[:count], stored, before)


@kernel("u32[:], i64[:], b[:], i64, i64, i64, out u16|u32[:], out i64[:], out i64[:] -> i64")
def _add_bos_eos(ids, lengths, kept, bos, eos, always, out, stored, before):  # type: ignore[no-untyped-def]
    """Do the work of `add_bos_eos` and return the number of tokens written.

    Args:
        bos, eos: -1 for none.
        always: 1 to add them even if they are present, else 0.
        out: filled; must have space for all ids and two more for each document.
        stored, before: int64[n], filled.
    """
    at, begin = 0, 0
    for n in range(len(lengths)):
        size = lengths[n]
        source = ids[begin : begin + size]
        begin += size
        first, before[n] = at, 0
        if size > 0 and kept[n]:
            if bos >= 0 and (always or source[0] != bos):
                out[at] = bos
                at += 1
                before[n] = 1
            target = out[at : at + size]
            for i in range(size):  # LLVM vectorizes this loop, because it is over views
                target[i] = source[i]
            at += size
            if eos >= 0 and (always or source[size - 1] != eos):
                out[at] = eos
                at += 1
        stored[n] = at - first
    return at
