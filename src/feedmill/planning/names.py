"""Unique display names."""

from __future__ import annotations

from collections.abc import Sequence


def unique_names(wanted: Sequence[str]) -> list[str]:
    """Return the names, with ``-2``, ``-3``, ... appended to duplicates.

    >>> unique_names(["docs", "code", "docs"])
    ['docs', 'code', 'docs-2']
    """
    taken: dict[str, int] = {}  # name -> the last suffix that was tried
    names = []
    for name in wanted:
        name = free = name or "source"
        while free in taken:
            taken[name] += 1
            free = f"{name}-{taken[name]}"
        taken[free] = 1
        names.append(free)
    return names
