"""The compiled form of `feedmill.kernels.text.c4`, over the code points of a batch of texts."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel

_SPACE = 1
_NEWLINE = 10
_NAUGHTY, _SCRIPT_WORD, _SCRIPT, _LOREM, _BRACE, _DOTTED = 1, 2, 4, 8, 16, 32
_DOTTED_I = 0x130
_SCRIPT_LENGTH = 10


@kernel
def _bounded(codes, start, end, low, high, table):  # type: ignore[no-untyped-def]
    """Return whether each side is white space or an end of the text."""
    return (start == low or table[codes[start - 1]] & _SPACE) and (end == high or table[codes[end]] & _SPACE)


def flags(
    codes: Array,
    offsets: Array,
    table: Array,
    symbols: Array,
    rare: Array,
    rare_symbols: Array,
    step: Array,
    word_lengths: Array,
    kinds: Array,
    first: int,
    columns: int,
) -> Array:
    """Return the case-insensitive bits of each text, uint8[texts].

    The last eight arguments are the attributes of `feedmill.kernels.text.c4.Automaton`.
    """
    found = np.empty(len(offsets) - 1, np.uint8)
    _flags(codes, offsets, table, symbols, rare, rare_symbols, step, word_lengths, kinds, first, columns, found)
    return found


@kernel
def _flags(codes, offsets, table, symbols, rare, rare_symbols, step, word_lengths, kinds, first, columns, found):  # type: ignore[no-untyped-def]
    for k in range(len(offsets) - 1):
        low, high = offsets[k], offsets[k + 1]
        state = 0
        has = 0
        for i in range(low, high):
            code = codes[i]
            symbol = 0
            if code < 128:
                symbol = symbols[code]
            else:
                if code == _DOTTED_I:
                    has |= _DOTTED
                for j in range(len(rare)):
                    if rare[j] == code:
                        symbol = rare_symbols[j]
            state = step[state + symbol]
            if state < first:
                continue
            kind = kinds[state // columns]
            lengths = word_lengths[state // columns]
            if kind:
                if kind & 8:
                    has |= _BRACE
                if kind & 1:
                    has |= _NAUGHTY
                if kind & 2:
                    has |= _SCRIPT
                    if _bounded(codes, i + 1 - _SCRIPT_LENGTH, i + 1, low, high, table):
                        has |= _SCRIPT_WORD
                if kind & 4:
                    has |= _LOREM
            if lengths and not has & _NAUGHTY:
                length = 0
                while lengths:
                    if lengths & np.uint64(1) and _bounded(codes, i + 1 - length, i + 1, low, high, table):
                        has |= _NAUGHTY
                        break
                    lengths >>= np.uint64(1)
                    length += 1
        found[k] = has


@kernel
def _note(found, m, k, start, end, last, words):  # type: ignore[no-untyped-def]
    found[0, m], found[1, m], found[2, m] = k, start, end
    found[3, m] = not (last == 46 or last == 63 or last == 33 or last == 34)  # . ? ! "
    found[4, m] = words < 3


def lines(codes: Array, offsets: Array, table: Array) -> Array:
    """Return int64[5, lines]: text, start and end in it, unpunctuated, short; see `feedmill.kernels.text.c4.lines`."""
    found = np.empty((5, int(np.count_nonzero(codes == _NEWLINE)) + len(offsets) - 1), np.int64)
    _lines(codes, offsets, table, found)
    return found


@kernel
def _lines(codes, offsets, table, found):  # type: ignore[no-untyped-def]
    m = 0
    for k in range(len(offsets) - 1):
        low, high = offsets[k], offsets[k + 1]
        start, words, last, space = low, 0, np.uint32(0), True
        for i in range(low, high):
            code = codes[i]
            if (code > 32 and code < 127) or (code != _NEWLINE and not table[code] & _SPACE):
                words += space
                space = False
                last = code
                continue
            space = True
            if code == _NEWLINE:
                _note(found, m, k, start - low, i + 1 - low, last, words)
                m += 1
                start, words, last = i + 1, 0, np.uint32(0)
        _note(found, m, k, start - low, high - low, last, words)
        m += 1
