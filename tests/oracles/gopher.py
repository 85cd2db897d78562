"""The signals of `feedmill.kernels.text.gopher` in plain Python; those that a text is too short for are omitted."""

from __future__ import annotations

import re
from collections import Counter
from statistics import median

from feedmill.kernels.text.gopher import REQUIRED, SIGNALS

SCALARS = SIGNALS[9:]


def signals(text: str, joined_newlines: bool) -> dict[str, float]:
    """Return the signals of a text, in the order of `SIGNALS`.

    Args:
        joined_newlines: whether a run of newlines separates lines (version 2) rather than each newline (version 1).
    """
    if not text:
        return dict.fromkeys(SCALARS, 0.0)
    words = text.split()
    characters = max(1, sum(map(len, words)))
    found = _grams(words, characters)
    count = max(1, len(words))
    lines = re.split(r"\n+", text) if joined_newlines else text.split("\n")
    repeated = {line: n for line, n in Counter(lines).items() if n > 1}
    values = (
        len(text),
        len(words),
        median(map(len, words)) if words else 0,
        sum("#" in word or "…" in word for word in words) / count,
        sum(any(map(str.isalpha, word)) for word in words) / count,
        sum(word in REQUIRED for word in words),
        sum(line.startswith(("*", "-")) for line in lines) / len(lines),
        sum(line.endswith("…") for line in lines) / len(lines),
        sum(repeated.values()) / len(lines),
        sum(len(line) * n for line, n in repeated.items()) / characters,
    )
    return found | dict(zip(SCALARS, map(float, values), strict=True))


def _grams(words: list[str], characters: int) -> dict[str, float]:
    found = {}
    for n in range(2, 11):
        if len(words) < n:
            break
        counts = Counter(zip(*(words[i:] for i in range(n)), strict=False))
        if n < 5:
            gram, count = counts.most_common(1)[0]
            found[SIGNALS[n - 2]] = count * sum(map(len, gram)) / characters
        else:
            size = {gram: count * sum(map(len, gram)) for gram, count in counts.items()}
            found[SIGNALS[n - 2]] = sum(size[g] for g, count in counts.items() if count > 1) / sum(size.values())
    return found
