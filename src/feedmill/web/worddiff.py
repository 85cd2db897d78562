"""The words in which two texts differ: a longest common subsequence, in bounded time and memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

MOST_WORDS = 2_000
"""Words between the common beginning and the common end of two texts that are compared."""
_MOST_TEXT, _MOST_PIECE = 200_000, 4_000  # characters of a text that are compared, and of a piece that are shown
_AROUND = 30  # words that are the same, shown on each side of a difference
_WORD = re.compile(r"\s*\S+|\s+$")


def diff(a: str, b: str) -> dict[str, Any]:
    """Return the differences of two texts as plain data.

    Returns:
        ``pieces``: ``kind`` is "same", "a" (only in the first text), "b", or "hidden"; ``text``, of a hidden piece its
        number of words; and ``cut``, the characters of a very long piece that are left out. ``same``, ``only_a`` and
        ``only_b`` are numbers of words. ``left_out`` words, and ``unread`` characters, of both texts were not compared.
    """
    one, other = _WORD.findall(a[:_MOST_TEXT]), _WORD.findall(b[:_MOST_TEXT])
    keys, others = [word.split() for word in one], [word.split() for word in other]
    least = min(len(one), len(other))
    head = next((n for n in range(least) if keys[n] != others[n]), least)
    tail = next((n for n in range(least - head) if keys[-1 - n] != others[-1 - n]), least - head)
    stops = len(one) - tail, len(other) - tail
    middle = min(stops[0], head + MOST_WORDS), min(stops[1], head + MOST_WORDS)
    left_out = stops[0] - middle[0] + stops[1] - middle[1]
    pieces = _merged(
        [("same", word) for word in one[:head]]
        + _differences(one[head : middle[0]], other[head : middle[1]])
        + ([("same", word) for word in one[stops[0] :]] if not left_out else [])
    )
    counts = {kind: sum(len(words) for of, words in pieces if of == kind) for kind in ("same", "a", "b")}
    return {
        "pieces": _shortened(pieces),
        "same": counts["same"],
        "only_a": counts["a"],
        "only_b": counts["b"],
        "left_out": left_out + (2 * tail if left_out else 0),
        "unread": sum(max(0, len(text) - _MOST_TEXT) for text in (a, b)),
    }


def _differences(a: list[str], b: list[str]) -> list[tuple[str, str]]:
    """Return the words of both texts in order, each with its kind."""
    known: dict[str, int] = {}
    one = np.array([known.setdefault(word.strip(), len(known)) for word in a], np.int64)
    other = np.array([known.setdefault(word.strip(), len(known)) for word in b], np.int64)
    best = np.zeros((len(a) + 1, len(b) + 1), np.int16)  # best[i, j]: words that a[:i] and b[:j] share in order
    for i, word in enumerate(one):
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], best[i, :-1] + (other == word)))
    found = []
    i, j = len(a), len(b)
    while i or j:
        if i and j and one[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            found.append(("same", a[i]))
        elif j and (not i or best[i, j - 1] >= best[i - 1, j]):
            j -= 1
            found.append(("b", b[j]))
        else:
            i -= 1
            found.append(("a", a[i]))
    return found[::-1]


def _merged(words: list[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Join neighbors of one kind."""
    found: list[tuple[str, list[str]]] = []
    for kind, word in words:
        if not found or found[-1][0] != kind:
            found.append((kind, []))
        found[-1][1].append(word)
    return found


def _shortened(pieces: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """Return the pieces, with words that are the same hidden where they are far from a difference."""
    found: list[dict[str, Any]] = []
    for place, (kind, words) in enumerate(pieces):
        before = _AROUND if place else 0
        after = _AROUND if place + 1 < len(pieces) else 0
        hidden = len(words) - before - after
        if kind != "same" or hidden < _AROUND or len(pieces) == 1:
            found.append(_piece(kind, words))
            continue
        found += [_piece(kind, words[:before])] if before else []
        found.append({"kind": "hidden", "text": hidden, "cut": 0})
        found += [_piece(kind, words[-after:])] if after else []
    return found


def _piece(kind: str, words: list[str]) -> dict[str, Any]:
    text = "".join(words)
    return {"kind": kind, "text": text[:_MOST_PIECE], "cut": max(0, len(text) - _MOST_PIECE)}
