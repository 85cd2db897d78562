"""Ids of documents as they are stored: BOS and EOS where they are missing, and narrowed, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class Tokens(NamedTuple):
    """Tokens one after another; int64[n] of each document: its tokens there, and 1 where a BOS was put, else 0."""

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
    """Narrow ids, which all fit, to `dtype` (``<u2`` or ``<u4``). A document without ids stays without.

    Args:
        ids, lengths: of n documents one after another.
        kept: bool[n], which documents are written.
        always: put BOS and EOS around every document; else where it does not begin or end with them.

    >>> ids, lengths = np.array([7, 8, 9, 0, 5], np.uint32), np.array([2, 2, 1])
    >>> add_bos_eos(ids, lengths, np.array([True, True, False]), bos=None, eos=0, always=False, dtype="<u2")[:2]
    (array([7, 8, 0, 9, 0], dtype=uint16), array([3, 2, 0]))
    """
    from feedmill.kernels.bos_eos_compiled import add_bos_eos as compiled

    out = np.empty(len(ids) + 2 * len(lengths), dtype)
    stored, before = np.empty((2, len(lengths)), np.int64)
    first, last = (-1 if token is None else token for token in (bos, eos))
    count = compiled(ids, np.ascontiguousarray(lengths), kept, first, last, int(always), out, stored, before)
    return Tokens(out[:count], stored, before)
