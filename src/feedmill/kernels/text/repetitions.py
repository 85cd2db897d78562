"""Repetitions in a text: a unit of one or more characters and at least three more copies of it, one after another.

What is found is what the regular expression ``(.+?)(?:\\s?\\1){3,}`` finds, which is the oracle of
`feedmill.kernels.text.repetitions_compiled` here; but that takes time with the square of a line's length and worse.
"""

from __future__ import annotations

import re

_PATTERN = re.compile(r"(.+?)(?:\s?\1){3,}")


def repetitions(text: str) -> list[tuple[int, int, int]]:
    """(start, end, characters of the unit) of each repetition, from the left, none overlapping."""
    return [(match.start(), match.end(), len(match[1])) for match in _PATTERN.finditer(text)]
