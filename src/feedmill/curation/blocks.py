"""Large files cut into blocks of lines, so that several processes work on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

LARGE = 32 << 20
"""Bytes of a file, as stored, above which it may be cut."""


class Block(NamedTuple):
    """Some lines of a file, and the number of the first one, from 1."""

    line: int
    lines: bytes

    def __repr__(self) -> str:
        return f"the lines from {self.line} on"


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Blocks of a file that comes in chunks of whole lines."""
    line = 1
    for lines in chunks:
        yield Block(line, lines)
        line += lines.count(b"\n")


def first_to_cut(sizes: Iterable[int], workers: int) -> int:
    """Return how many of the largest files to cut over all workers: those that would keep one of them busy alone.

    Args:
        sizes: in bytes, the largest first.
    """
    sizes = list(sizes)
    return sum(workers > 1 and size > max(LARGE, sum(sizes) / workers) for size in sizes)
