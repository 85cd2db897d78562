"""Quality signals of Gopher (Rae et al. 2021, https://arxiv.org/abs/2112.11446, appendix A1), of a batch of texts.

Signals that a text is too short for are NaN. Words are numbered with a hash table that compares their characters, so
equal numbers mean equal words. N-grams of n words are numbered from pairs of overlapping n-grams of n - 1 words, which
is exact too. An n-gram that contains an (n - 1)-gram that occurs once occurs once itself and needs no table entry, so
texts with few repetitions are cheap.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.characters import ALPHA

SIGNALS = (
    *(f"fraction_of_characters_in_most_common_{n}grams" for n in (2, 3, 4)),
    *(f"fraction_of_characters_in_duplicate_{n}grams" for n in (5, 6, 7, 8, 9, 10)),
    "character_count",
    "word_count",
    "median_word_length",
    "symbol_to_word_ratio",
    "fraction_of_words_with_alpha_character",
    "required_word_count",
    "fraction_of_lines_starting_with_bullet_point",
    "fraction_of_lines_ending_with_ellipsis",
    "fraction_of_duplicate_lines",
    "fraction_of_characters_in_duplicate_lines",
)
REQUIRED = ("the", "be", "to", "of", "and", "that", "have", "with")

_NEWLINE, _HASH, _ELLIPSIS, _STAR, _DASH = 10, 0x23, 0x2026, 0x2A, 0x2D
_LARGEST = 10


_REQUIRED = tuple(int.from_bytes(word.encode(), "big") for word in REQUIRED)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _hash(codes, start, end):  # type: ignore[no-untyped-def]
    value = np.uint64(end - start)
    for i in range(start, end):
        value = (value ^ np.uint64(codes[i])) * _MIX
        value ^= value >> np.uint64(29)
    return value


@kernel
def _number(codes, starts, ends, low, high, table, numbers, counts):  # type: ignore[no-untyped-def]
    """Number the spans [low, high) from 0 in the order of first occurrence, and return the number of distinct spans.

    Spans with equal characters get equal numbers. `table` is cleared.
    """
    size = 16
    while size < 2 * (high - low):
        size *= 2
    for free in range(size):
        table[free] = -1
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


@kernel
def _pair(numbers, counts, n, table, keys, then, then_counts):  # type: ignore[no-untyped-def]
    """Number the `n` pairs of neighbors in `numbers`, and return the number of distinct pairs.

    A pair that is certain to occur only once gets -1.
    """
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
            for free in range(size):
                table[free] = -1
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


@kernel
def _gram_signal(n, count, numbers, counts, distinct, sizes, characters):  # type: ignore[no-untyped-def]
    """Return the signal of the `count` n-grams; `sizes` holds running sums of word lengths."""
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


def word_signals(codes: Array, offsets: Array, starts: Array, ends: Array, first: Array, table: Array) -> Array:
    """Return the signals that do not depend on lines, float64[texts, 15]; NaN where a signal does not exist."""
    found = np.full((len(offsets) - 1, 15), np.nan)
    most = max(1, int(np.diff(first).max(initial=0)))
    slots, keys = np.empty(max(16, 4 * most), np.int64), np.empty(most, np.uint64)
    numbers, then, counts, then_counts = (np.empty(most, np.int64) for _ in range(4))
    sizes = np.zeros(most + 1, np.int64)
    work = (slots, keys, numbers, then, counts, then_counts, sizes)
    _word_signals(codes, offsets, starts, ends, first, table, found, *work)
    return found


@kernel(
    "u32[:], i64[:], i64[:], i64[:], i64[:], u8[:], out f64[:,:], out i64[:], out u64[:], out i64[:], "
    "out i64[:], out i64[:], out i64[:], out i64[:]"
)
def _word_signals(  # type: ignore[no-untyped-def]
    codes, offsets, starts, ends, first, table, found, slots, keys, numbers, then, counts, then_counts, sizes
):
    n = len(offsets) - 1
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
                letter |= (table[code] & ALPHA) != 0
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
            found[k, size - 2] = _gram_signal(size, count - size + 1, numbers, counts, distinct, sizes, characters)


@kernel
def _median(sizes, count):  # type: ignore[no-untyped-def]
    """Return the median difference of `sizes`, 0 if there is none."""
    if count == 0:
        return 0.0
    low, high = (count - 1) // 2, count // 2
    below, a = -1, 0  # bisect for the least length `a` that more than `low` words do not exceed
    for i in range(count):
        a = max(a, sizes[i + 1] - sizes[i])
    longest = a
    while a - below > 1:
        middle = (below + a) // 2
        if _at_most(sizes, count, middle) > low:
            a = middle
        else:
            below = middle
    b = a
    if _at_most(sizes, count, a) <= high:  # even count: the upper middle word is longer
        b = longest
        for i in range(count):
            length = sizes[i + 1] - sizes[i]
            if a < length < b:
                b = length
    return (a + b) / 2


@kernel
def _at_most(sizes, count, bound):  # type: ignore[no-untyped-def]
    """Return the number of differences of `sizes` that do not exceed `bound`."""
    total = 0
    for i in range(count):
        total += sizes[i + 1] - sizes[i] <= bound
    return total


def line_signals(codes: Array, offsets: Array, characters: Array, joined: bool) -> Array:
    """Return the line signals, float64[texts, 4]: bullets, ellipses, duplicate lines, characters in those.

    Args:
        characters: int64[texts], the number of characters in words.
        joined: whether a run of newlines separates lines, rather than each newline.
    """
    found = np.zeros((len(offsets) - 1, 4))
    newlines = np.searchsorted(np.flatnonzero(codes == _NEWLINE), offsets)
    most = 1 + int(np.diff(newlines).max(initial=0))
    starts, ends, numbers, counts = (np.empty(most, np.int64) for _ in range(4))
    slots = np.empty(max(16, 4 * most), np.int64)
    _line_signals(codes, offsets, characters, joined, found, starts, ends, numbers, counts, slots)
    return found


@kernel("u32[:], i64[:], i64[:], i64, out f64[:,:], out i64[:], out i64[:], out i64[:], out i64[:], out i64[:]")
def _line_signals(codes, offsets, characters, joined, found, starts, ends, numbers, counts, slots):  # type: ignore[no-untyped-def]
    n = len(offsets) - 1
    for k in range(n):
        low, high = offsets[k], offsets[k + 1]
        if low == high:
            continue
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
        _number(codes, starts, ends, np.int64(0), m, slots, numbers, counts)
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
