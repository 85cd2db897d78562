"""Spans of paragraphs and of their word n-grams, in bytes and in characters.

Two rules define where a paragraph ends in characters:

* `CHARACTERS`: a paragraph includes the separator after it. Empty text after the last separator is not a paragraph.
* `DOLMA`: counts as Dolma 1.2 does. It adds one character for the separator while the offset is below the number of
  bytes minus one. So the last newline of an ASCII text is skipped, the last end in other texts may lie one character
  beyond the text, and offsets drift if the separator has several characters.

Windows of n words begin at every `stride`-th word; under the `DOLMA` rule at 0, 1, 1 + stride, 1 + 2 stride, ...
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.machine import load64
from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.wordbreak import BLANK, kind_at, words

CHARACTERS, DOLMA = 0, 1
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


@kernel
def _separator_at(data, at, separator):  # type: ignore[no-untyped-def]
    for i in range(len(separator)):
        if data[at + i] != separator[i]:
            return False
    return True


@kernel
def blank(data, low, high, index, pages):  # type: ignore[no-untyped-def]
    """Return whether ``data[low:high]`` is empty or white space only."""
    while low < high:
        kind, size = kind_at(data, low, index, pages)
        if kind & BLANK == 0:
            return False
        low += size
    return True


def all_blank(data: Array, lows: Array, highs: Array, index: Array, pages: Array) -> Array:
    """Return whether each text is blank, bool[n]."""
    out = np.empty(len(lows), np.bool_)
    _all_blank(data, lows, highs, index, pages, out)
    return out


@kernel("u8[:], i64[:], i64[:], u8[:], u8[:], out b[:]")
def _all_blank(data, lows, highs, index, pages, out):  # type: ignore[no-untyped-def]
    for i in range(len(lows)):
        out[i] = blank(data, lows[i], highs[i], index, pages)


@kernel("u8[:], i64[:], u8[:], i64, out i64[:], out i64[:], out i64[:], out i64[:], out i64[:], out i64[:] -> i64")
def pieces(data, offsets, separator, rule, rows, starts, ends, lows, highs, lengths):  # type: ignore[no-untyped-def]
    """Find the paragraphs of the texts ``data[offsets[i]:offsets[i + 1]]`` and return their number.

    Args:
        separator: uint8, one byte or more.
        rows, starts, ends: int64, filled: the text of each paragraph and its span in characters.
        lengths: int64, filled: its number of characters without the separator.
        lows, highs: int64, filled: its bytes without the separator.
    """
    count, width, step = 0, len(separator), 0
    for i in range(width):
        step += (separator[i] & 0xC0) != 0x80
    if rule == DOLMA:
        step = 1
    first = separator[0]
    firsts = np.uint64(first) * _ONES
    for row in range(len(offsets) - 1):
        at, stop = offsets[row], offsets[row + 1]
        if at == stop:
            continue
        size, offset = stop - at, 0
        low, characters = at, 0
        while True:
            # Fast path: eight bytes at once while all are ASCII and none begins a separator.
            while at + 8 <= stop:
                word = load64(data, at)
                other = word ^ firsts
                if ((other - _ONES) & ~other | word) & _HIGHS:
                    break
                characters += 8
                at += 8
            found = at + width <= stop and data[at] == first and (width == 1 or _separator_at(data, at, separator))
            if not found and at < stop:
                characters += (data[at] & 0xC0) != 0x80
                at += 1
                continue
            if rule == CHARACTERS and not found and characters == 0:
                break
            rows[count], starts[count], lows[count], highs[count] = row, offset, low, at
            lengths[count] = characters
            offset += characters
            if offset < size - 1 if rule == DOLMA else found:
                offset += step
            ends[count] = offset
            count += 1
            if not found:
                break
            at += width
            low, characters = at, 0
    return count


def ngrams(
    data: Array,
    lows: Array,
    highs: Array,
    chosen: Array,
    length: int,
    stride: int,
    rule: int,
    keep_short: bool,
    index: Array,
    pages: Array,
    parts: Array,
    keys: Array,
) -> tuple[int, int, Array]:
    """Return the keys of the n-grams of the `chosen` paragraphs.

    Args:
        lows, highs: int64[n], byte spans of the paragraphs.
        chosen: bool[n].
        keep_short: whether a paragraph with fewer than two windows is itself one key. Under the `DOLMA` rule its only
            window, if it has one, is still looked up first, and the result is ignored.
        parts: int64[2, m], filled: start and end of each word (or whole paragraph) that keys consist of.
        keys: int64[2, m], filled: the first part and the number of parts of each key.

    Returns:
        The number of parts, the number of keys, and int64[2, n]: the range [first, end) of the keys that count for each
        paragraph.
    """
    bounds = np.empty((2, len(lows)), np.int64)
    made = np.empty(1, np.int64)
    count = _ngrams(
        data, lows, highs, chosen, length, stride, rule, keep_short, index, pages, parts, keys, bounds, made
    )
    return count, int(made[0]), bounds


@kernel(
    "u8[:], i64[:], i64[:], b[:], i64, i64, i64, i64, u8[:], u8[:], out i64[:,:], out i64[:,:], "
    "out i64[:,:], out i64[:] -> i64"
)
def _ngrams(data, lows, highs, chosen, length, stride, rule, keep_short, index, pages, parts, keys, bounds, keys_made):  # type: ignore[no-untyped-def]
    count, made = 0, 0
    for i in range(len(lows)):
        bounds[0, i] = bounds[1, i] = made
        if not chosen[i]:
            continue
        first = count
        count = words(data, lows[i], highs[i], index, pages, parts[0], parts[1], count)
        last, used = 0, 0
        for start in range(count - first - length + 1):
            if rule == DOLMA:
                take = last == 0 or start - last >= stride
            else:
                take = start % max(1, stride) == 0
            if take:
                last = start
                keys[0, made + used] = first + start
                keys[1, made + used] = length
                used += 1
        if used < 2 and keep_short:
            if rule == DOLMA:
                made, used = made + used, 0
            else:
                count, used = first, 0
            parts[0, count], parts[1, count] = lows[i], highs[i]
            keys[0, made], keys[1, made] = count, 1
            count, used = count + 1, 1
            bounds[0, i] = made
        made += used
        bounds[1, i] = made
    keys_made[0] = made
    return count
