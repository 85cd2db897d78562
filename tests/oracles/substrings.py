"""Repeated substrings of texts, window by window; see `feedmill.curation.dedupe.substrings`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby


def spans(
    files: Sequence[Sequence[str]], length: int, *, every: bool = False, known: Sequence[str] = ()
) -> list[list[list[list[int]]]]:
    """Return the spans of each text of each file."""
    texts = [text.encode() for text in known] or [text.encode() for members in files for text in members]
    counts = Counter(window for text in texts for window in windows(text, length))
    seen = set[bytes]()
    out = []
    for members in files:
        out.append([])
        for text in members:
            data = text.encode()
            covered = [False] * len(data)
            for at, window in enumerate(windows(data, length)):
                repeated = window in counts if known else counts[window] > 1 if every else window in seen
                if repeated:
                    covered[at : at + length] = [True] * length
                seen.add(window)
            out[-1].append(_characters(text, covered))
    return out


def windows(data: bytes, length: int) -> list[bytes]:
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
