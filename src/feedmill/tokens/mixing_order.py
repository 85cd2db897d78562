"""Mix documents of many files in Dolma's order: take batches from a ring of open files, and shuffle each batch.

Documents are taken from the files of the ring in turn, or at random in proportion to the files' sizes. The next file
replaces one that is exhausted. The order depends only on the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class Ring:
    """Parameters of mixing.

    Attributes:
        files: number of open files.
        batch: number of turns per batch. A turn that finds its file exhausted yields no document.
        proportional: whether files are chosen at random in proportion to their sizes; otherwise in turn.
    """

    files: int = 8
    batch: int = 10_000
    proportional: bool = False


def batches(
    ring: Ring, open_file: Callable[[int], Iterator[Document]], sizes: Sequence[int], chance: random.Random
) -> Iterator[list[Document]]:
    """Yield the documents of files, in shuffled batches.

    Args:
        open_file: returns the documents of a file by number; the last file is opened first.
        sizes: sizes of the files in bytes.
    """
    waiting = list(range(len(sizes)))
    opened: list[Iterator[Document]] = []
    weights: list[int] = []

    def take() -> None:
        number = waiting.pop()
        opened.append(open_file(number))
        weights.append(max(1, sizes[number]))

    while waiting and len(opened) < ring.files:
        take()
    while waiting or opened:
        batch: list[Document] = []
        for turn in range(ring.batch):
            if not opened:
                take()
            at = chance.choices(range(len(opened)), weights)[0] if ring.proportional else turn % len(opened)
            document = next(opened[at], None)
            if document is not None:
                batch.append(document)
                continue
            del opened[at], weights[at]
            if not opened:
                break
            if waiting:
                take()
        chance.shuffle(batch)
        if batch:
            yield batch


def groups(count: int, processes: int, most: int | None) -> list[slice]:
    """Return which of `count` files belong to each group: one per process, or more with at most `most` files each.

    >>> [(g.start, g.stop) for g in groups(5, 2, None)], [(g.start, g.stop) for g in groups(5, 1, 2)]
    ([(0, 2), (2, 5)], [(0, 2), (2, 4), (4, 5)])
    """
    step = min(most or count, count / processes)
    found, at = [], 0.0
    while at < count:
        begin, end = round(at), min(round(at + step), count)
        if begin < end:
            found.append(slice(begin, end))
        at += step
    return found
