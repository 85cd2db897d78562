"""Repetitions in a text: a unit of one or more characters followed by at least three more copies of it.

The regular expression ``(.+?)(?:\\s?\\1){3,}`` defines a repetition. It is the test oracle of
`feedmill.kernels.text.repetitions_compiled`: its time grows with the square of a line's length or worse.
"""

from __future__ import annotations

import re

_PATTERN = re.compile(r"(.+?)(?:\s?\1){3,}")


def repetitions(text: str) -> list[tuple[int, int, int]]:
    """Return (start, end, characters of the unit) for each repetition, from the left, without overlap."""
    return [(match.start(), match.end(), len(match[1])) for match in _PATTERN.finditer(text)]
