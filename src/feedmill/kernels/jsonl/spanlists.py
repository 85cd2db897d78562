"""Pack lists of spans as JSON, ``[[0,5,1],[5,9,0.5]]``, into records of numbers.

Packed spans are records of 24 bytes: start and end as int64, the score as float64. A list can be
packed if starts and ends have no sign and at most 18 digits, and scores are finite and, if they are integers, have
fewer than 16 digits (a float cannot represent larger ones exactly). Other lists must be parsed as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]

RECORD = 24
"""Size of a packed span in bytes."""
_PLACE_DIGITS, _EXACT_DIGITS = 18, 15
"""Maximum digits of the start or end of a span, and of integers that a float represents exactly."""


def pack(lists: Sequence[bytes]) -> list[bytes] | None:
    """Return the packed spans of each list; None if any list cannot be packed.

    Args:
        lists: JSON values, valid except for the bytes of strings.
    """
    joined = b"".join(lists)
    most = len(joined) // len("[0,0,0]") + 1
    records, long = np.empty((most, 3), np.int64), np.empty((most, 3), np.int64)
    scores = records.view(np.float64)
    counts = np.zeros(2, np.int64)
    ends = np.cumsum([len(one) for one in lists], dtype=np.int64)
    bounds = np.zeros(len(lists) + 1, np.int64)
    if not _read_spans(np.frombuffer(joined, np.uint8), ends, records, scores, long, bounds[1:], counts):
        return None
    for n, low, high in long[: counts[1]].tolist():
        scores[n, 2] = score = float(joined[low:high])
        if not math.isfinite(score):
            return None
    data = records[: counts[0]].tobytes()
    bounds *= RECORD
    return [data[low:high] for low, high in pairwise(bounds.tolist())]


def unpack(packed: bytes) -> list[tuple[int, int, float]]:
    """Return the spans of a packed list.

    >>> unpack(pack([b"[[0, 5, 1], [5, 9, 0.25]]"])[0])
    [(0, 5, 1.0), (5, 9, 0.25)]
    """
    records = np.frombuffer(packed, np.int64).reshape(-1, 3)
    scores = records.view(np.float64)[:, 2]
    return list(zip(records[:, 0].tolist(), records[:, 1].tolist(), scores.tolist(), strict=True))


class Chosen(NamedTuple):
    """Chosen spans of several rows.

    Attributes:
        first: int64[n + 1], the start of each row's spans.
        starts, ends, which: int64[spans], start, end and choice of each span. A row's spans are sorted by start; the
            sort is stable.
    """

    first: Int64s
    starts: Int64s
    ends: Int64s
    which: Int64s


def choose(packed: Sequence[Sequence[bytes]], bounds: Sequence[tuple[float, float]], rows: int) -> Chosen:
    """Return the spans with ``low <= score < high``.

    Args:
        packed: for each choice, the packed spans of each row.
        bounds: (low, high) of each choice.
        rows: number of rows.
    """
    records = np.frombuffer(b"".join([one for column in packed for one in column]), np.int64).reshape(-1, 3)
    sizes = np.array([list(map(len, column)) for column in packed], np.int64).reshape(len(packed), rows)
    at = bounds_of(sizes.sum(axis=1) // RECORD)
    lows, highs = np.array(bounds, np.float64).reshape(-1, 2).T.copy()
    starts, ends, which = np.empty((3, len(records)), np.int64)
    first = np.zeros(rows + 1, np.int64)
    scores = records.view(np.float64)
    sorted_ = _choose_spans(records, scores, sizes, at[:-1], lows, highs, starts, ends, which, first)
    starts, ends, which = starts[: first[-1]], ends[: first[-1]], which[: first[-1]]
    if not sorted_:
        order = np.lexsort((starts, np.repeat(np.arange(rows), np.diff(first))))
        starts, ends, which = starts[order], ends[order], which[order]
    return Chosen(first, starts, ends, which)


# --- compiled ---------------------------------------------------------------------------------------------------------

_OPEN, _CLOSE, _COMMA, _SPACE, _MINUS, _PLUS, _POINT, _E = 91, 93, 44, 32, 45, 43, 46, 101
_MOVES = 8
"""Maximum mean number of sorting steps per span."""
_POWERS = np.array([10**i for i in range(_EXACT_DIGITS + 1)], np.float64)


@kernel
def _token(data, at, end, byte):  # type: ignore[no-untyped-def]
    """Return the position after this byte and any spaces around it; -1 for another byte, or if `at` is -1."""
    if at < 0:
        return at
    while at < end and data[at] == _SPACE:
        at += 1
    if at >= end or data[at] != byte:
        return -1
    at += 1
    while at < end and data[at] == _SPACE:
        at += 1
    return at


@kernel
def _digits(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the digits at `at`."""
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at


@kernel
def _whole(data, low, high):  # type: ignore[no-untyped-def]
    """Return the number of these digits."""
    value = np.int64(0)
    for i in range(low, high):
        value = value * 10 + (np.int64(data[i]) - 48)
    return value


@kernel
def _place(data, at, end):  # type: ignore[no-untyped-def]
    """Parse the start or end of a span: return the position after it, and its value; -1 if invalid, or `at` is -1."""
    if at < 0:
        return at, 0
    behind = _digits(data, at, end)
    size = behind - at
    if size < 1 or size > _PLACE_DIGITS or (size > 1 and data[at] == 48):
        return -1, 0
    return behind, _whole(data, at, behind)


@kernel
def _score(data, at, end):  # type: ignore[no-untyped-def]
    """Parse a score: return the position after it (-1 if invalid), its value, and whether Python must parse it."""
    if at < 0:
        return at, 0.0, False
    negative = at < end and data[at] == _MINUS
    low = at + 1 if negative else at
    point = _digits(data, low, end)
    size, after = point - low, 0
    if size < 1 or (size > 1 and data[low] == 48):
        return -1, 0.0, False
    behind = point
    if point < end and data[point] == _POINT:
        behind = _digits(data, point + 1, end)
        after = behind - point - 1
        if after < 1:
            return -1, 0.0, False
    elsewhere = size + after > _EXACT_DIGITS
    if behind < end and data[behind] | 32 == _E:
        digits = behind + 1
        if digits < end and (data[digits] == _PLUS or data[digits] == _MINUS):
            digits += 1
        behind = _digits(data, digits, end)
        if behind == digits:
            return -1, 0.0, False
        elsewhere = True
    elif after == 0 and elsewhere:
        return -1, 0.0, False
    if elsewhere:
        return behind, 0.0, True
    value = np.float64(_whole(data, low, point))
    if after:
        value = np.float64(_whole(data, low, point) * np.int64(_POWERS[after]) + _whole(data, point + 1, behind))
        value /= _POWERS[after]  # both are exact, so the quotient is correctly rounded
    return behind, -value if negative else value, False


@kernel("u8[:], i64[:], out i64[:,:], out f64[:,:], out i64[:,:], out i64[:], out i64[:] -> i64")
def _read_spans(data, ends, records, scores, long, bounds, counts):  # type: ignore[no-untyped-def]
    """Parse the spans of concatenated lists. Return 0 if a list cannot be packed.

    Args:
        ends: int64[n], the end of each list in `data`, uint8.
        records, scores: int64 and float64[m, 3], the same memory.
        long: int64[m, 3], spans whose score is skipped, and begin and end of the score in `data`.
        bounds: int64[n], number of spans up to the end of each list.
        counts: int64[2], numbers of rows of `records` and of `long`.
    """
    at, count, left = 0, 0, 0
    for n in range(len(ends)):
        end = ends[n]
        at = _token(data, at, end, _OPEN)
        more = at >= 0 and at < end and data[at] != _CLOSE
        while more:
            at = _token(data, at, end, _OPEN)
            at, records[count, 0] = _place(data, at, end)
            at = _token(data, at, end, _COMMA)
            at, records[count, 1] = _place(data, at, end)
            low = at = _token(data, at, end, _COMMA)
            at, scores[count, 2], elsewhere = _score(data, at, end)
            if elsewhere:
                long[left, 0], long[left, 1], long[left, 2] = count, low, at
                left += 1
            count += 1
            at = _token(data, at, end, _CLOSE)
            more = at >= 0 and at < end and data[at] == _COMMA
            if more:
                at = _token(data, at, end, _COMMA)
        at = _token(data, at, end, _CLOSE)
        if at != end:
            return 0
        bounds[n] = count
    counts[0], counts[1] = count, left
    return 1


@kernel(
    "i64[:,:], f64[:,:], i64[:,:], out i64[:], f64[:], f64[:], out i64[:], out i64[:], out i64[:], out i64[:] -> i64"
)
def _choose_spans(records, scores, sizes, at, lows, highs, starts, ends, which, first):  # type: ignore[no-untyped-def]
    """Fill in the spans that several choices select, sorted by start within each row.

    Returns 0 if sorting would take long; then they are only grouped by row.

    Args:
        records, scores: int64 and float64[m, 3], the same memory: spans of the first choice row by row, then of the
            second, ...
        sizes: int64[choices, rows], bytes of each row's spans.
        at: int64[choices], the first row of `records` of each choice.
        lows, highs: float64[choices], bounds of the scores.
        starts, ends, which: int64[m], filled: the chosen spans, and their choices.
        first: int64[rows + 1], filled: the start of each row's spans.
    """
    size, left = 0, _MOVES * len(records)
    for row in range(sizes.shape[1]):
        begin = size
        for k in range(len(at)):
            for i in range(at[k], at[k] + sizes[k, row] // RECORD):
                if lows[k] <= scores[i, 2] < highs[k]:
                    start, to = records[i, 0], size
                    while to > begin and starts[to - 1] > start and left > 0:
                        starts[to], ends[to], which[to] = starts[to - 1], ends[to - 1], which[to - 1]
                        to -= 1
                        left -= 1
                    starts[to], ends[to], which[to] = start, records[i, 1], k
                    size += 1
            at[k] += sizes[k, row] // RECORD
        first[row + 1] = size
    return 1 if left > 0 else 0
