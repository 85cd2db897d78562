"""Divide files of documents into units of work: byte ranges of lines, ranges of row groups, or whole files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from feedmill.documents.file import DocumentFile, Unit

UNIT_BYTES = 8 << 20
_MOST = 1024  # files in one unit of work


def together(units: Iterable[Unit], unit_bytes: int = UNIT_BYTES) -> Iterator[tuple[Unit, ...]]:
    """Group units of small whole files with their neighbors, in order. Parts of a file are not grouped.

    For small files, the overhead of a unit would take longer than reading it.
    """
    group: list[Unit] = []
    room = 0
    for unit, following in pairwise(chain(units, [None])):
        if unit is None:
            return
        whole = unit.begin == 0 and (following is None or following.begin == 0)
        if group and (not whole or unit.bytes > room or len(group) == _MOST):
            yield tuple(group)
            group = []
        if not whole:
            yield (unit,)
            continue
        room = (room if group else unit_bytes) - unit.bytes
        group.append(unit)
    if group:
        yield tuple(group)


def cut(files: Sequence[DocumentFile], unit_bytes: int = UNIT_BYTES) -> Iterator[Unit]:
    """Yield the units of files, in order. Raises the errors of opening a Parquet file."""
    for file in files:
        if file.kind == "lines" and not file.packed:
            for begin in range(0, file.size, unit_bytes):
                end = min(begin + unit_bytes, file.size)
                yield Unit(file, begin, end, end - begin)
        elif file.kind == "parquet":
            from feedmill.documents.columns import row_groups  # imports much that lines do not need

            for begin, end, size in row_groups(file, unit_bytes):
                yield Unit(file, begin, end, size)
        else:
            yield Unit(file, 0, file.size, file.size)
