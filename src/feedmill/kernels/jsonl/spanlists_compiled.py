"""The compiled loop of `feedmill.kernels.jsonl.spanlists`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.jsonl.limits import EXACT_DIGITS, PLACE_DIGITS, RECORD
from feedmill.kernels.native import kernel

_OPEN, _CLOSE, _COMMA, _SPACE, _MINUS, _PLUS, _POINT, _E = 91, 93, 44, 32, 45, 43, 46, 101
MOVES = 8
"""Maximum mean number of sorting steps per span."""
_POWERS = 10.0 ** np.arange(EXACT_DIGITS + 1)


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
    if size < 1 or size > PLACE_DIGITS or (size > 1 and data[at] == 48):
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
    elsewhere = size + after > EXACT_DIGITS
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


@kernel
def read_spans(data, ends, records, scores, long, bounds, counts):  # type: ignore[no-untyped-def]
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


@kernel
def choose_spans(records, scores, sizes, at, lows, highs, starts, ends, which, first):  # type: ignore[no-untyped-def]
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
    size, left = 0, MOVES * len(records)
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
