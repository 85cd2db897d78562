"""Groups of files and samples for workers, which are pickled as a few columns.

Sending 10^5 small files to workers takes most of its time for the objects around each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, TypeVar

from feedmill.importing.layouts import Part, Planned

Row = TypeVar("Row")


def to_columns(rows: Sequence[tuple[Any, ...]]) -> tuple[int, list[Any]]:
    """Return the number of rows and their columns; a column with one value in all rows is that value in a list."""
    columns = zip(*rows, strict=True)
    return len(rows), [[column[0]] if len({*column}) == 1 else column for column in columns]


def from_columns(make: Callable[..., Row], count: int, columns: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of `to_columns`."""
    return map(make, *(repeat(column[0], count) if isinstance(column, list) else column for column in columns))


class Group(Sequence[Planned]):
    """The samples of a shard, as a sequence that is pickled as columns."""

    def __init__(self, samples: list[Planned]) -> None:
        self._samples = samples

    @property
    def size(self) -> int:
        """Upper bound of the shard's size in bytes."""
        return sum([planned.size for planned in self._samples])

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index]

    def __iter__(self) -> Iterator[Planned]:
        return iter(self._samples)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        parts = list(chain.from_iterable([planned.parts for planned in self._samples]))
        rows = [(planned.key, planned.size, len(planned.parts)) for planned in self._samples]
        return _group, (to_columns(rows), to_columns(parts))


def _group(samples: tuple[int, list[Any]], parts: tuple[int, list[Any]]) -> Group:
    row = from_columns(Part, *parts)
    return Group([Planned(k, tuple(islice(row, n)), size) for k, size, n in from_columns(_as_tuple, *samples)])


def _as_tuple(*row: Any) -> tuple[Any, ...]:
    return row


def cut(samples: Sequence[Planned], count: int, most: int) -> Iterator[Group]:
    """Yield the samples of each shard: at most `count`, of at most `most` bytes unless one is larger."""
    group: list[Planned] = []
    size = 0
    for planned in samples:
        if group and (len(group) == count or size + planned.size > most):
            yield Group(group)
            group, size = [], 0
        group.append(planned)
        size += planned.size
    if group:
        yield Group(group)
