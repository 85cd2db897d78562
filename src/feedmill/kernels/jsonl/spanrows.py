"""Write attribute rows of spans as deduplication stores them: ``{"attributes":{"dup":[[0,5,1]]},"id":"a"}``."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import kernel

_0 = np.uint8(48)
NUMBER = 20
"""Maximum bytes of a number."""


@kernel
def _copy(out, at, data, low, high):  # type: ignore[no-untyped-def]
    for i in range(high - low):
        out[at + i] = data[low + i]
    return at + high - low


@kernel
def _number(out, at, value):  # type: ignore[no-untyped-def]
    size, rest = 1, value // 10
    while rest:
        size, rest = size + 1, rest // 10
    for i in range(size - 1, -1, -1):
        out[at + i] = _0 + np.uint8(value % 10)
        value //= 10
    return at + size


@kernel("u8[:], i64[:], b[:], i64[:], i64[:], i64[:], i64[:], u8[:], i64[:], u8[:], i64[:], out u8[:] -> i64")
def fill_rows(ids, id_ends, bare, rows, starts, ends, scores, score_bytes, score_ends, marks, mark_ends, out):  # type: ignore[no-untyped-def]
    """Write the rows to `out`, uint8, which must be large enough. Return the number of bytes.

    Args:
        ids, score_bytes, marks: uint8, concatenated strings; the `..._ends`, int64, are their ends.
        bare: bool[n], whether a row without spans has no list of spans.
        rows, starts, ends, scores: int64[spans], ordered by row; scores are indices of strings in `score_bytes`.
        marks: beginning of a row with spans and without, text between spans and id with spans and without, and the end
            of a row.
    """
    at, span = 0, 0
    for row in range(len(id_ends)):
        without = bare[row] and not (span < len(rows) and rows[span] == row)
        kind = 1 if without else 0
        at = _copy(out, at, marks, mark_ends[kind - 1] if kind else 0, mark_ends[kind])
        first = True
        while span < len(rows) and rows[span] == row:
            if not first:
                out[at] = 44  # ,
                at += 1
            first = False
            out[at] = 91  # [
            at = _number(out, at + 1, starts[span])
            out[at] = 44
            at = _number(out, at + 1, ends[span])
            out[at] = 44
            score = scores[span]
            at = _copy(out, at + 1, score_bytes, score_ends[score - 1] if score else 0, score_ends[score])
            out[at] = 93  # ]
            at += 1
            span += 1
        at = _copy(out, at, marks, mark_ends[1 + kind], mark_ends[2 + kind])
        at = _copy(out, at, ids, id_ends[row - 1] if row else 0, id_ends[row])
        at = _copy(out, at, marks, mark_ends[3], mark_ends[4])
    return at
