"""Signals of the C4 cleaning rules (Raffel et al. 2020, https://arxiv.org/abs/1910.10683), over code points of texts.

Words and phrases are found with the Aho-Corasick automaton (1975).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.characters import SPACE

NAUGHTY, SCRIPT_WORD, SCRIPT, LOREM, BRACE = 1, 2, 4, 8, 16
DOTTED = 32
"""Set by `flags` when the text contains U+0130 and needs `flags_of_lowered`.

U+0130 is the only letter whose lower case has two characters.
"""

_PHRASE, _JAVASCRIPT, _LOREM, _BRACE = 1, 2, 4, 8
_LONGEST = 63
_NEWLINE = 10
_DOTTED_I = 0x130
_SCRIPT_LENGTH = 10
_KELVIN = "\u212a"  # the Kelvin sign, whose lower case is an ASCII k


def flags_of_lowered(lowered: str, words: frozenset[str], phrases: Sequence[str]) -> int:
    """Return the bits (`NAUGHTY` to `BRACE`) of what the text contains.

    Args:
        lowered: the text in lower case.
        words: match only between white space.
        phrases: match anywhere.
    """
    pieces = set(lowered.split())
    found = NAUGHTY * bool(pieces & words or any(phrase in lowered for phrase in phrases))
    found |= SCRIPT_WORD * ("javascript" in pieces) | SCRIPT * ("javascript" in lowered)
    return found | LOREM * ("lorem ipsum" in lowered) | BRACE * ("{" in lowered)


class Automaton(NamedTuple):
    """Automaton that finds all words and phrases in one pass, ignoring case.

    Attributes:
        symbols: uint8[128], the column of each ASCII character; 0 for characters in no pattern.
        rare: uint32, non-ASCII characters that occur in a pattern or whose lower case does.
        rare_symbols: uint8, the column of each character of `rare`.
        step: int32[states * columns], the next state for each state and column. State numbers are multiples of
            `columns`, which saves a multiplication per step.
        word_lengths: uint64[states], bit L is set where a word of L characters ends.
        kinds: uint8[states], bits for a phrase, "javascript", "lorem ipsum" or ``{`` that ends there.
        first: the first state (a multiple of `columns`) where a pattern ends; all later states are such states too.
        columns: the number of columns.
    """

    symbols: npt.NDArray[np.uint8]
    rare: npt.NDArray[np.uint32]
    rare_symbols: npt.NDArray[np.uint8]
    step: npt.NDArray[np.int32]
    word_lengths: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]
    first: int
    columns: int


def automaton(words: frozenset[str], phrases: Sequence[str]) -> Automaton:
    """Build the automaton for words and phrases of at most 63 characters each."""
    patterns = {**dict.fromkeys(words, 0), **dict.fromkeys(phrases, _PHRASE)}
    patterns["javascript"] = _JAVASCRIPT
    patterns["lorem ipsum"] = _LOREM
    patterns["{"] = _BRACE
    alphabet = sorted({c for pattern in patterns for c in pattern})
    column = {c: i + 1 for i, c in enumerate(alphabet)}
    children: list[dict[int, int]] = [{}]
    lengths, kinds = [0], [0]
    for pattern in sorted(patterns):
        at = 0
        for c in pattern:
            if column[c] not in children[at]:
                children[at][column[c]] = len(children)
                children.append({})
                lengths.append(0)
                kinds.append(0)
            at = children[at][column[c]]
        assert len(pattern) <= _LONGEST
        if pattern in words:
            lengths[at] |= 1 << len(pattern)
        kinds[at] |= patterns[pattern]
    step = np.zeros((len(children), len(alphabet) + 1), np.int16)
    back = [0] * len(children)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        if state:
            step[state] = step[back[state]]
            lengths[state] |= lengths[back[state]]
            kinds[state] |= kinds[back[state]]
        for symbol, child in children[state].items():
            back[child] = int(step[back[state], symbol]) if state else 0
            step[state, symbol] = child
            queue.append(child)
    for c in (*alphabet, _KELVIN):
        for capital in (c, c.upper()):
            if len(capital) == 1 and capital.lower() in column:
                column[capital] = column[capital.lower()]
    symbols = np.zeros(128, np.uint8)
    rare = [c for c in column if ord(c) >= 128]
    for c in column:
        if ord(c) < 128:
            symbols[ord(c)] = column[c]
    ends = np.array([bool(length or kind) for length, kind in zip(lengths, kinds, strict=True)])
    order = np.argsort(ends, kind="stable")  # states where no pattern ends first; the root stays at 0
    columns = step.shape[1]
    number = (np.argsort(order) * columns).astype(np.int32)
    return Automaton(
        symbols,
        np.array([ord(c) for c in rare], np.uint32),
        np.array([column[c] for c in rare], np.uint8),
        number[step[order]].reshape(-1),
        np.array(lengths, np.uint64)[order],
        np.array(kinds, np.uint8)[order],
        int(len(ends) - ends.sum()) * columns,
        columns,
    )


# --- compiled ---------------------------------------------------------------------------------------------------------


@kernel
def _bounded(codes, start, end, low, high, table):  # type: ignore[no-untyped-def]
    """Return whether each side is white space or an end of the text."""
    return (start == low or table[codes[start - 1]] & SPACE) and (end == high or table[codes[end]] & SPACE)


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

    The last eight arguments are the attributes of `Automaton`.
    """
    found = np.empty(len(offsets) - 1, np.uint8)
    _flags(codes, offsets, table, symbols, rare, rare_symbols, step, word_lengths, kinds, first, columns, found)
    return found


@kernel("u32[:], i64[:], u8[:], u8[:], u32[:], u8[:], i32[:], u64[:], u8[:], i64, i64, out u8[:]")
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
                    has |= DOTTED
                for j in range(len(rare)):
                    if rare[j] == code:
                        symbol = rare_symbols[j]
            state = step[state + symbol]
            if state < first:
                continue
            kind = kinds[state // columns]
            lengths = word_lengths[state // columns]
            if kind:
                if kind & _BRACE:
                    has |= BRACE
                if kind & _PHRASE:
                    has |= NAUGHTY
                if kind & _JAVASCRIPT:
                    has |= SCRIPT
                    if _bounded(codes, i + 1 - _SCRIPT_LENGTH, i + 1, low, high, table):
                        has |= SCRIPT_WORD
                if kind & _LOREM:
                    has |= LOREM
            if lengths and not has & NAUGHTY:
                length = 0
                while lengths:
                    if lengths & np.uint64(1) and _bounded(codes, i + 1 - length, i + 1, low, high, table):
                        has |= NAUGHTY
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
    """Return int64[5, lines]: text, start and end in it, unpunctuated, short.

    `unpunctuated` means that the line does not end in punctuation, `short` that it has fewer than three words. Each
    line but the last includes its newline; the last may be empty.
    """
    found = np.empty((5, int(np.count_nonzero(codes == _NEWLINE)) + len(offsets) - 1), np.int64)
    _lines(codes, offsets, table, found)
    return found


@kernel("u32[:], i64[:], u8[:], out i64[:,:]")
def _lines(codes, offsets, table, found):  # type: ignore[no-untyped-def]
    m = 0
    for k in range(len(offsets) - 1):
        low, high = offsets[k], offsets[k + 1]
        start, words, last, space = low, 0, np.uint32(0), True
        for i in range(low, high):
            code = codes[i]
            if (code > 32 and code < 127) or (code != _NEWLINE and not table[code] & SPACE):
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
