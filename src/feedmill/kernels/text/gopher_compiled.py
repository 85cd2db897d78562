"""The compiled form of `feedmill.kernels.text.gopher`, over a batch of texts.

Words get numbers by a hash table that compares the characters, so that equal numbers are equal words. The n-grams of n
words are numbered from the pairs of overlapping n-grams of n - 1 words, which is exact too; one whose part occurs once
occurs once itself and needs no table, which leaves little to do on texts that repeat little.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.codecache import njit
from feedmill.kernels.text.gopher import REQUIRED

_SPACE, _ALPHA = 1, 2
_NEWLINE, _HASH, _ELLIPSIS, _STAR, _DASH = 10, 0x23, 0x2026, 0x2A, 0x2D
_LARGEST = 10


def _packed(word: str) -> int:
    value = 0
    for character in word:
        value = value << 8 | ord(character)
    return value


_REQUIRED = tuple(_packed(word) for word in REQUIRED)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def _hash(codes, start, end):  # type: ignore[no-untyped-def]
    value = np.uint64(end - start)
    for i in range(start, end):
        value = (value ^ np.uint64(codes[i])) * _MIX
        value ^= value >> np.uint64(29)
    return value


@njit()
def _number(codes, starts, ends, low, high, table, numbers, counts):  # type: ignore[no-untyped-def]
    """Numbers for the pieces [low, high), equal where their characters are, counted up from 0 in the order of first
    occurrence; `table` is cleared. Returns how many there are."""
    size = 16
    while size < 2 * (high - low):
        size *= 2
    table[:size] = -1
    mask = np.uint64(size - 1)
    m = 0
    for k in range(low, high):
        start, length = starts[k], ends[k] - starts[k]
        slot = _hash(codes, start, start + length)
        slot = (slot ^ (slot >> np.uint64(32))) & mask
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = k
                numbers[k - low] = m
                counts[m] = 1
                m += 1
                break
            if ends[other] - starts[other] == length:
                same, at = True, starts[other]
                for i in range(length):
                    if codes[at + i] != codes[start + i]:
                        same = False
                        break
                if same:
                    number = numbers[other - low]
                    numbers[k - low] = number
                    counts[number] += 1
                    break
            slot = (slot + np.uint64(1)) & mask
    return m


@njit()
def _pair(numbers, counts, n, table, keys, then, then_counts):  # type: ignore[no-untyped-def]
    """Numbers of the `n` pairs of neighbours in `numbers` (-1 where a pair occurs once for sure). Returns how many."""
    size = 16
    while size < 2 * n:
        size *= 2
    mask = np.uint64(size - 1)
    cleared = False
    m = 0
    for i in range(n):
        a, b = numbers[i], numbers[i + 1]
        if a < 0 or b < 0 or counts[a] == 1 or counts[b] == 1:
            then[i] = -1
            continue
        if not cleared:
            table[:size] = -1
            cleared = True
        key = np.uint64(a) << np.uint64(32) | np.uint64(b)
        slot = key * _MIX
        slot = (slot ^ (slot >> np.uint64(32))) & mask
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = m
                keys[m] = key
                then[i] = m
                then_counts[m] = 1
                m += 1
                break
            if keys[other] == key:
                then[i] = other
                then_counts[other] += 1
                break
            slot = (slot + np.uint64(1)) & mask
    return m


@njit()
def _grams(n, count, numbers, counts, distinct, sizes, characters):  # type: ignore[no-untyped-def]
    """The signal of the `count` n-grams; ``sizes`` are running sums of word lengths."""
    if n < 5:
        best, at = 1, 0
        for i in range(count):
            number = numbers[i]
            if number >= 0 and counts[number] > best:
                best, at = counts[number], i
        return best * (sizes[at + n] - sizes[at]) / characters
    total, twice = 0, 0
    for i in range(count):
        size = sizes[i + n] - sizes[i]
        total += size
        number = numbers[i]
        if distinct and number >= 0 and counts[number] > 1:
            twice += size
    return twice / total


@njit()
def word_signals(codes, offsets, starts, ends, first, table):  # type: ignore[no-untyped-def]
    """float64[texts, 15]: the signals that do not depend on lines, NaN where there is none."""
    n = len(offsets) - 1
    found = np.full((n, 15), np.nan)
    most = 1
    for k in range(n):
        most = max(most, first[k + 1] - first[k])
    slots = np.empty(max(16, 4 * most), np.int64)
    keys = np.empty(most, np.uint64)
    numbers, then = np.empty(most, np.int64), np.empty(most, np.int64)
    counts, then_counts = np.empty(most, np.int64), np.empty(most, np.int64)
    sizes = np.zeros(most + 1, np.int64)
    for k in range(n):
        low, high = first[k], first[k + 1]
        count = high - low
        found[k, 9] = offsets[k + 1] - offsets[k]
        found[k, 10] = count
        symbols = alpha = required = 0
        for w in range(low, high):
            start, end = starts[w], ends[w]
            sizes[w - low + 1] = sizes[w - low] + end - start
            letter = symbol = False
            for i in range(start, end):
                code = codes[i]
                letter |= (table[code] & _ALPHA) != 0
                symbol |= (code == _HASH) | (code == _ELLIPSIS)
            symbols += symbol
            alpha += letter
            if end - start <= 4:
                value = 0
                for i in range(start, end):
                    value = value << 8 | codes[i] if 0 < codes[i] < 128 else -1
                    if value < 0:
                        break
                for word in _REQUIRED:
                    required += value == word
        found[k, 11] = _median(sizes, count)
        found[k, 12] = symbols / max(1, count)
        found[k, 13] = alpha / max(1, count)
        found[k, 14] = required
        characters = max(1, sizes[count])
        distinct = _number(codes, starts, ends, low, high, slots, numbers, counts)
        for size in range(2, min(_LARGEST, count) + 1):
            distinct = _pair(numbers, counts, count - size + 1, slots, keys, then, then_counts)
            numbers, then = then, numbers
            counts, then_counts = then_counts, counts
            found[k, size - 2] = _grams(size, count - size + 1, numbers, counts, distinct, sizes, characters)
    return found


@njit()
def _median(sizes, count):  # type: ignore[no-untyped-def]
    """Of the differences of `sizes`; 0 of none."""
    if count == 0:
        return 0.0
    counts = np.zeros(64, np.int64)
    for i in range(count):
        length = sizes[i + 1] - sizes[i]
        counts[min(length, 63)] += 1
    low, high = (count - 1) // 2, count // 2
    a = b = -1
    seen = 0
    for length in range(64):
        seen += counts[length]
        if a < 0 and seen > low:
            a = length
        if seen > high:
            b = length
            break
    if b == 63:  # some words are longer than the table
        lengths = np.sort(sizes[1 : count + 1] - sizes[:count])
        a, b = lengths[low], lengths[high]
    return (a + b) / 2


@njit()
def line_signals(codes, offsets, characters, joined):  # type: ignore[no-untyped-def]
    """float64[texts, 4]: bullets, ellipses, duplicate lines, characters in them.

    Args:
        characters: int64[texts], characters in words.
        joined: whether runs of newlines divide lines, not each newline.
    """
    n = len(offsets) - 1
    found = np.zeros((n, 4))
    for k in range(n):
        low, high = offsets[k], offsets[k + 1]
        if low == high:
            continue
        most = 1
        for i in range(low, high):
            most += codes[i] == _NEWLINE
        starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
        m, start, i = 0, low, low
        while i < high:
            if codes[i] == _NEWLINE:
                starts[m], ends[m] = start, i
                m += 1
                while joined and i + 1 < high and codes[i + 1] == _NEWLINE:
                    i += 1
                start = i + 1
            i += 1
        starts[m], ends[m] = start, high
        m += 1
        slots = np.empty(max(16, 4 * m), np.int64)
        numbers, counts = np.empty(m, np.int64), np.empty(m, np.int64)
        _number(codes, starts, ends, 0, m, slots, numbers, counts)
        bullets = ellipses = repeated = inside = 0
        for line in range(m):
            start, end = starts[line], ends[line]
            if end > start:
                bullets += codes[start] == _STAR or codes[start] == _DASH
                ellipses += codes[end - 1] == _ELLIPSIS
            if counts[numbers[line]] > 1:
                repeated += 1
                inside += end - start
        found[k, 0], found[k, 1], found[k, 2] = bullets / m, ellipses / m, repeated / m
        found[k, 3] = inside / max(1, characters[k])
    return found
