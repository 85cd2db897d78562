"""Split large files into blocks of lines, so that several processes can work on one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

LARGE = 32 << 20
"""Stored size in bytes above which a file can be split."""


class Block(NamedTuple):
    """Lines of a file, and the number of the first one, from 1."""

    line: int
    lines: bytes

    def __repr__(self) -> str:
        return f"the lines from {self.line} on"


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Yield blocks of a file that is read in chunks of whole lines."""
    line = 1
    for lines in chunks:
        yield Block(line, lines)
        line += lines.count(b"\n")


def first_to_cut(sizes: Iterable[int], workers: int) -> int:
    """Return how many of the largest files to split over all workers.

    A file is split if it is larger than `LARGE` and than the share of one worker.

    Args:
        sizes: File sizes in bytes, in descending order.
    """
    sizes = list(sizes)
    return sum(workers > 1 and size > max(LARGE, sum(sizes) / workers) for size in sizes)
