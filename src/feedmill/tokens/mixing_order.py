"""Documents of many files in Dolma's mixed order: a ring of open files, batches from it, each batch shuffled.

From the files of the ring documents are taken in turn, or by chance in proportion to the files' sizes. A file that has
come to its end makes room for the next. The order depends on the seed only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class Ring:
    """How documents are mixed.

    Attributes:
        files: how many are open at once.
        batch: turns between two shuffles; one in which a file is found to be at its end gives no document.
        proportional: whether files are taken in proportion to their sizes, else in turn.
    """

    files: int = 8
    batch: int = 10_000
    proportional: bool = False


def batches(
    ring: Ring, open_file: Callable[[int], Iterator[Document]], sizes: Sequence[int], chance: random.Random
) -> Iterator[list[Document]]:
    """Yield the documents of files, in shuffled batches.

    Args:
        open_file: the documents of the file of this number; numbers are taken from the last to the first.
        sizes: of the files, in bytes.
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
    """Which of `count` files belong to each group: as many groups as processes, or more if `most` files are a group.

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
