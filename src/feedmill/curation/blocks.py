"""Split large files into blocks of lines, so that several processes can work on one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from feedmill.jobs.engine import in_units
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run, run_largest_first

Item = TypeVar("Item")
Result = TypeVar("Result")

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


def run_cut(
    function: Callable[..., Result],
    items: Sequence[Item],
    sizes: Sequence[int],
    *,
    workers: int | None,
    others: Callable[..., list[Result]] = run_largest_first,
    **options: Any,
) -> list[Result]:
    """Return ``function(item)`` for each item, in the order of the items.

    An item that would keep one process busy alone comes first: this process calls ``function(item, workers=N)``, which
    splits the item over all workers. On an engine, and with limits of units, the item is the unit.

    Args:
        sizes: Stored size of each item in bytes.
        others: Runs the other items, with the arguments of `run_largest_first`.
        options: See `feedmill.jobs.run.run`.
    """
    count = available_cores() if workers is None else workers
    order = sorted(range(len(items)), key=lambda i: -sizes[i])
    cut = order[: 0 if in_units() else first_to_cut((sizes[i] for i in order), count)]
    if not cut:
        return others(function, items, sizes, workers=workers, **options)
    if (progress := options.get("progress")) is not None:
        progress.of_sizes([sizes[i] for i in cut])
    here = {name: options[name] for name in ("progress", "policy") if name in options}
    split = run(partial(function, workers=count), [items[i] for i in cut], workers=1, **here)
    found = dict(zip(cut, split, strict=True))
    rest = [i for i in range(len(items)) if i not in found]
    made = others(function, [items[i] for i in rest], [sizes[i] for i in rest], workers=workers, **options)
    found.update(zip(rest, made, strict=True))
    return [found[i] for i in range(len(items))]
