"""Repeated substrings of texts, window by window; see `feedmill.curation.dedupe.substrings`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any


def spans(
    files: Sequence[Sequence[str]],
    length: int,
    *,
    every: bool = False,
    known: Sequence[str] = (),
    tokens: Callable[[str], tuple[list[int], list[tuple[int, int]]]] | None = None,
) -> list[list[list[list[int]]]]:
    """Return the spans of each text of each file.

    Args:
        tokens: Returns the tokens of a text, and the characters of each, if these are compared and not bytes.
    """

    def units(text: str) -> Any:
        return text.encode() if tokens is None else tuple(tokens(text)[0])

    texts = [units(text) for text in known] or [units(text) for members in files for text in members]
    counts = Counter(window for text in texts for window in windows(text, length))
    seen = set[Any]()
    out = []
    for members in files:
        out.append([])
        for text in members:
            data = units(text)
            covered = [False] * len(data)
            for at, window in enumerate(windows(data, length)):
                repeated = window in counts if known else counts[window] > 1 if every else window in seen
                if repeated:
                    covered[at : at + length] = [True] * length
                seen.add(window)
            out[-1].append(_characters(text, covered) if tokens is None else _of_tokens(tokens(text)[1], covered))
    return out


def windows(data: Any, length: int) -> list[Any]:
    """Return every window of a text."""
    return [data[at : at + length] for at in range(len(data) - length + 1)]


def _characters(text: str, covered: list[bool]) -> list[list[int]]:
    """Return the characters that are whole in each run of covered bytes."""
    begins = [at for at, letter in enumerate(text) for _ in letter.encode()]
    found, byte = [], 0
    for inside, run in groupby(covered):
        size = len(list(run))
        own = begins[byte : byte + size]
        whole = [at for at in dict.fromkeys(own) if own.count(at) == len(text[at].encode())]
        if inside and whole:
            found.append([whole[0], whole[-1] + 1, 1])
        byte += size
    return found


def _of_tokens(places: list[tuple[int, int]], covered: list[bool]) -> list[list[int]]:
    """Return the characters of each run of covered tokens that are in none of the other tokens."""
    found, first = [], 0
    for inside, run in groupby(covered):
        last = first + len(list(run))
        before = max((end for _, end in places[:first]), default=0)
        after = min((begin for begin, _ in places[last:]), default=places[-1][1])
        low, high = max(places[first][0], before), min(places[last - 1][1], after)
        if inside and low < high:
            found.append([low, high, 1])
        first = last
    return found
