"""Signals of the C4 cleaning rules (Raffel et al. 2020, https://arxiv.org/abs/1910.10683), in plain Python.

The test oracle of `feedmill.kernels.text.c4_compiled`. It also builds the Aho-Corasick automaton (1975) that the
compiled form searches with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NAUGHTY, SCRIPT_WORD, SCRIPT, LOREM, BRACE = 1, 2, 4, 8, 16
DOTTED = 32
"""Set by the compiled form when the text contains U+0130 and needs the plain form.

U+0130 is the only letter whose lower case has two characters.
"""

ENDINGS = (".", "?", "!", '"')
_PHRASE, _JAVASCRIPT, _LOREM, _BRACE = 1, 2, 4, 8
_LONGEST = 63
_KELVIN = "\u212a"  # the Kelvin sign, whose lower case is an ASCII k


def flags(lowered: str, words: frozenset[str], phrases: Sequence[str]) -> int:
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


def lines(text: str) -> list[tuple[int, int, bool, bool]]:
    """Return (start, end, unpunctuated, short) for each line.

    `unpunctuated` means that the line does not end in punctuation, `short` that it has fewer than three words. Each
    line but the last includes its newline; the last may be empty.
    """
    found, start = [], 0
    pieces = text.split("\n")
    for number, piece in enumerate(pieces):
        end = start + len(piece) + (number + 1 < len(pieces))
        found.append((start, end, not piece.strip().endswith(ENDINGS), len(piece.split()) < 3))
        start = end
    return found


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
