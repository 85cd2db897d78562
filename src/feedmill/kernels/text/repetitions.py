"""Repetitions in a text: a unit of one or more characters followed by at least three more copies of it.

The regular expression ``(.+?)(?:\\s?\\1){3,}`` defines a repetition; its own time grows with the square of a line's
length or worse.

At each position, units are tried from the shortest to the longest. Units of at least `_GRAM` characters are tried only
where the next `_GRAM` characters occur again at the right distance: the occurrences of each such gram are chained. If
they are so frequent, or match so far, that the time would grow with the square of a line's length, the units come from
`_long_units`, which compares hashes.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.characters import SPACE

_NEWLINE = 10
_GRAM = 6
_COPIES = 3
_MIX = np.uint64(0x9E3779B97F4A7C15)
_BUDGET = 32
"""Comparisons per character of a range; beyond them, hashes are compared instead."""
_PRIME = np.uint64((1 << 61) - 1)
_BASE = np.uint64(0x1F3A9C6E5B7D2481 % ((1 << 61) - 1))
_LOW31, _LOW30 = np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
_S61, _S31, _S30, _S1 = np.uint64(61), np.uint64(31), np.uint64(30), np.uint64(1)


@kernel
def _agree(codes, a, b, length):  # type: ignore[no-untyped-def]
    i = 0
    while i < length and codes[a + i] == codes[b + i]:
        i += 1
    return i


@kernel
def _run(codes, start, unit, high, table):  # type: ignore[no-untyped-def]
    """Return the end of the copies of a unit (-1 if there are too few) and the number of characters compared.

    A copy after a white space character takes precedence over one at it; the two compete only where the unit is white
    space, see `_blank_run`.
    """
    at, copies, cost = start + unit, 0, 0
    while True:
        if at < high and table[codes[at]] & SPACE and at + 1 + unit <= high:
            same = _agree(codes, start, at + 1, unit)
            cost += same
            if same == unit:
                at += 1 + unit
                copies += 1
                continue
        if at + unit > high:
            break
        same = _agree(codes, start, at, unit)
        cost += same
        if same < unit:
            break
        at += unit
        copies += 1
    return (at if copies >= _COPIES else -1), cost


@kernel
def _blank_run(codes, start, high, table):  # type: ignore[no-untyped-def]
    """Return the end of the copies, as `_run` does, for a unit of one white space character.

    The search is greedy. It tries all ways to match the first three copies, in the order of a regular expression.
    """
    code = codes[start]
    for way in range(1 << _COPIES):
        at, good = start + 1, True
        for copy in range(_COPIES):
            skip = not (way >> (_COPIES - 1 - copy)) & 1
            if skip:
                if at < high and table[codes[at]] & SPACE:
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
        while True:  # no backtracking from here on: the first match that continues wins
            if at + 1 < high and table[codes[at]] & SPACE and codes[at + 1] == code:
                at += 2
            elif at < high and codes[at] == code:
                at += 1
            else:
                return at
    return -1


@kernel
def _chains(codes, low, high, following, heads):  # type: ignore[no-untyped-def]
    """Fill `following`: for each position the next one where the same `_GRAM` characters may begin, -1 for none."""
    heads[:] = -1
    mask = np.uint64(len(heads) - 1)
    for i in range(high - _GRAM, low - 1, -1):
        value = np.uint64(0)
        for j in range(_GRAM):
            value = (value ^ np.uint64(codes[i + j])) * _MIX
        slot = (value ^ (value >> np.uint64(32))) & mask
        following[i - low] = heads[slot]
        heads[slot] = i


@kernel
def _times(a, b):  # type: ignore[no-untyped-def]
    """Return a * b modulo 2**61 - 1, for uint64 below it."""
    a_high, a_low, b_high, b_low = a >> _S31, a & _LOW31, b >> _S31, b & _LOW31
    middle = a_low * b_high + a_high * b_low
    total = ((a_high * b_high) << _S1) + (middle >> _S30) + ((middle & _LOW30) << _S31) + a_low * b_low
    total = (total >> _S61) + (total & _PRIME)
    return total - _PRIME if total >= _PRIME else total


@kernel
def _hash(sums, powers, start, length):  # type: ignore[no-untyped-def]
    whole = sums[start + length] + _PRIME - _times(sums[start], powers[length])
    return whole - _PRIME if whole >= _PRIME else whole


@kernel
def _copied(codes, table, sums, powers, start, unit):  # type: ignore[no-untyped-def]
    """Return whether `_COPIES` copies follow a unit, by their hashes."""
    count = len(codes)
    first = _hash(sums, powers, start, unit)
    at = start + unit
    for _ in range(_COPIES):
        if at + 1 + unit <= count and table[codes[at]] & SPACE and _hash(sums, powers, at + 1, unit) == first:
            at += 1 + unit
        elif at + unit <= count and _hash(sums, powers, at, unit) == first:
            at += unit
        else:
            return False
    return True


@kernel("u32[:], u8[:], out u64[:], out u64[:], out i32[:], out i32[:], out i32[:], out i32[:]")
def _long_units(codes, table, sums, powers, room, heads, following, units):  # type: ignore[no-untyped-def]
    """Fill `units`: the length of the shortest repeated unit of at least `_GRAM` characters at each position.

    The other arrays are scratch space, see `_room_for_long_units`. The length is 0 if no unit is repeated, and -1 if a
    shorter unit repeats.

    Takes time in proportion to n log n. Units of g to 2 g - 1 characters begin with a gram of g characters that occurs
    again at most 2 g characters further on. If two of these occurrences are at most g / 4 apart, the gram has a period
    of that length: a shorter unit repeats. So at most eight of them are examined. Hashes are polynomials modulo
    2**61 - 1; grams and copies are compared only by hashes.
    """
    n = len(codes)
    sums[0], powers[0] = np.uint64(0), _S1
    for i in range(n):
        total = _times(sums[i], _BASE) + np.uint64(codes[i]) + _S1
        sums[i + 1] = total - _PRIME if total >= _PRIME else total
        powers[i + 1] = _times(powers[i], _BASE)
    line, longest = n, 0  # room: the longest unit from each position on
    for i in range(n - 1, -1, -1):
        if codes[i] == _NEWLINE:
            line = i
        room[i] = min(line - i, (n - i) // (_COPIES + 1))
        longest = max(longest, room[i])
    size = 64
    while size < n:
        size *= 2
    mask = np.uint64(size - 1)
    heads = heads[:size]
    units[:n] = 0
    gram = _GRAM
    while gram <= longest:
        heads[:] = -1
        for i in range(n - gram, -1, -1):
            value = _hash(sums, powers, i, gram)
            slot = ((value * _MIX) >> _S31) & mask
            other = heads[slot]
            following[i], heads[slot] = other, i
            if units[i] or room[i] < gram:
                continue
            last = i
            while other >= 0 and other - i <= 2 * gram and not units[i]:
                if _hash(sums, powers, other, gram) == value:
                    if 4 * (other - last) <= gram:
                        units[i] = -1
                        break
                    last = other
                    for unit in (other - i - 1, other - i):
                        fits = not units[i] and gram <= unit < 2 * gram and unit <= room[i]
                        if fits and _copied(codes, table, sums, powers, i, unit):
                            units[i] = unit
                other = following[other]
        gram *= 2


def _room_for_long_units(most: int) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return the last arguments of `_long_units` for texts of up to this many characters."""
    sums, powers = np.empty((2, most + 1), np.uint64)
    room, following, units = np.empty((3, most), np.int32)
    return sums, powers, room, np.empty(2 * most + 64, np.int32), following, units


def repetitions(codes: Array, starts: Array, ends: Array, table: Array) -> Array:
    """Return int64[4, repetitions]: range, start and end in `codes`, and the number of characters of the unit.

    Args:
        codes: uint32[characters].
        starts, ends: int64[ranges], the texts to search, each separately.
        table: see `feedmill.kernels.text.characters`.
    """
    lengths = ends - starts
    most = int(lengths.max(initial=0))
    # Repetitions do not overlap. What is not used of these arrays takes no memory.
    found = np.empty((4, int(lengths.sum()) // (_COPIES + 1) + 1), np.int64)
    following, heads = np.empty(most, np.int64), np.empty(2 * most + 64, np.int64)
    count = _repetitions(codes, starts, ends, table, found, following, heads, *_room_for_long_units(most))
    return found[:, :count].copy()


@kernel(
    "u32[:], i64[:], i64[:], u8[:], out i64[:,:], out i64[:], out i64[:], "
    "out u64[:], out u64[:], out i32[:], out i32[:], out i32[:], out i32[:] -> i64"
)
def _repetitions(  # type: ignore[no-untyped-def]
    codes, starts, ends, table, found, following, heads, sums, powers, room, long_heads, long_following, units
):
    m = 0
    for k in range(len(starts)):
        low, high = starts[k], ends[k]
        if high - low < _COPIES + 1:
            continue
        size = 64
        while size < high - low:
            size *= 2
        following[: high - low] = -1
        _chains(codes, low, high, following, heads[:size])
        budget = _BUDGET * (high - low) + 1000
        known = False
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
            if table[codes[i]] & SPACE:
                end = _blank_run(codes, i, high, table)
            while end < 0 and unit < min(_GRAM, longest + 1):
                if unit > 1 or not table[codes[i]] & SPACE:
                    end, _ = _run(codes, i, unit, high, table)
                unit += end < 0
            other = following[i - low] if budget > 0 else -1
            before = 0
            while end < 0 and other >= 0 and other - i <= longest + 1 and budget > 0:
                budget -= 1
                # The copy begins right behind the unit, or behind one more character of white space.
                for distance in (other - i - 1, other - i):
                    if end < 0 and before < distance <= longest and distance >= _GRAM:
                        before = distance
                        if codes[i + distance] == codes[i] or table[codes[i + distance]] & SPACE:
                            end, cost = _run(codes, i, distance, high, table)
                            unit = distance
                            budget -= cost if end < 0 else 0
                other = following[other - low]
            if end < 0 and budget <= 0:
                if not known:
                    _long_units(codes[low:high], table, sums, powers, room, long_heads, long_following, units)
                    known = True
                unit = units[i - low]
                if unit > 0:
                    end, _ = _run(codes, i, unit, high, table)
            if end < 0:
                i += 1
                continue
            found[0, m], found[1, m], found[2, m], found[3, m] = k, i, end, unit
            m += 1
            i = end
    return m
