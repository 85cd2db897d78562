"""The compiled form of `feedmill.kernels.text.repetitions`.

From each position the units are tried from the shortest on. Units of `_GRAM` characters and more are only tried where
the next `_GRAM` characters occur again later at the right distance: the occurrences of each such piece are chained.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.codecache import njit

_SPACE = 1
_NEWLINE = 10
_GRAM = 6
_COPIES = 3
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def _equal(codes, a, b, length):  # type: ignore[no-untyped-def]
    i = 0
    while i < length and codes[a + i] == codes[b + i]:
        i += 1
    return i == length


@njit()
def _run(codes, start, unit, high, table):  # type: ignore[no-untyped-def]
    """Where the copies of a unit end, or -1 if there are too few. Behind white space a copy is tried first, then at
    it; the two compete only where the unit is white space, see `_blank_run`."""
    at, copies = start + unit, 0
    while True:
        if at < high and table[codes[at]] & _SPACE and at + 1 + unit <= high and _equal(codes, start, at + 1, unit):
            at += 1 + unit
        elif at + unit <= high and _equal(codes, start, at, unit):
            at += unit
        else:
            break
        copies += 1
    return at if copies >= _COPIES else -1


@njit()
def _blank_run(codes, start, high, table):  # type: ignore[no-untyped-def]
    """`_run` for a unit of one white space character: greedy with all ways of taking the first three copies tried,
    in the order in which a regular expression does."""
    code = codes[start]
    for way in range(1 << _COPIES):
        at, good = start + 1, True
        for copy in range(_COPIES):
            skip = not (way >> (_COPIES - 1 - copy)) & 1
            if skip:
                if at < high and table[codes[at]] & _SPACE:
                    at += 1
                else:
                    good = False
                    break
            if at < high and codes[at] == code:
                at += 1
            else:
                good = False
                break
        if not good:
            continue
        while True:  # from here on, the first way that continues is taken
            if at + 1 < high and table[codes[at]] & _SPACE and codes[at + 1] == code:
                at += 2
            elif at < high and codes[at] == code:
                at += 1
            else:
                return at
    return -1


@njit()
def _chains(codes, low, high, following, heads):  # type: ignore[no-untyped-def]
    """The next position at which the same `_GRAM` characters may begin, for each position; -1 for none."""
    heads[:] = -1
    mask = np.uint64(len(heads) - 1)
    for i in range(high - _GRAM, low - 1, -1):
        value = np.uint64(0)
        for j in range(_GRAM):
            value = (value ^ np.uint64(codes[i + j])) * _MIX
        slot = (value ^ (value >> np.uint64(32))) & mask
        following[i - low] = heads[slot]
        heads[slot] = i


@njit()
def repetitions(codes, starts, ends, table):  # type: ignore[no-untyped-def]
    """int64[4, found]: range, start and end in the whole run of codes, characters of the unit.

    Args:
        codes: uint32[characters].
        starts, ends: int64[ranges], the texts to look at, each for itself.
        table: see `feedmill.kernels.text.characters`.
    """
    found = np.empty((4, 64), np.int64)
    m = 0
    for k in range(len(starts)):
        low, high = starts[k], ends[k]
        if high - low < _COPIES + 1:
            continue
        size = 64
        while size < high - low:
            size *= 2
        following = np.full(high - low, -1, np.int64)
        heads = np.empty(size, np.int64)
        _chains(codes, low, high, following, heads)
        line = low  # where the line of `i` ends: no unit reaches beyond
        i = low
        while i + _COPIES < high:
            if line <= i:
                line = i
                while line < high and codes[line] != _NEWLINE:
                    line += 1
                if line == i:
                    i += 1
                    continue
            longest = min(line - i, (high - i) // (_COPIES + 1))
            end, unit = -1, 1
            if table[codes[i]] & _SPACE:
                end = _blank_run(codes, i, high, table)
            while end < 0 and unit < min(_GRAM, longest + 1):
                if unit > 1 or not table[codes[i]] & _SPACE:
                    end = _run(codes, i, unit, high, table)
                unit += end < 0
            other = following[i - low]
            before = 0
            while end < 0 and other >= 0 and other - i <= longest + 1:
                # The copy begins right behind the unit, or behind one more character of white space.
                for distance in (other - i - 1, other - i):
                    if end < 0 and before < distance <= longest and distance >= _GRAM:
                        before = distance
                        if codes[i + distance] == codes[i] or table[codes[i + distance]] & _SPACE:
                            end = _run(codes, i, distance, high, table)
                            unit = distance
                other = following[other - low]
            if end < 0:
                i += 1
                continue
            if m == found.shape[1]:
                more = np.empty((4, 2 * m), np.int64)
                more[:, :m] = found
                found = more
            found[0, m], found[1, m], found[2, m], found[3, m] = k, i, end, unit
            m += 1
            i = end
    return found[:, :m]
