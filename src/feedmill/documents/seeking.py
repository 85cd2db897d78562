"""Read rows of a file of lines at random, from the points at which reading can begin.

In a file that is not compressed, that is every line. In a compressed one, it is every member (gzip, bzip2, xz) or frame
(zstd); a file of one member can only be read from its beginning. Points that are `APART` from each other are noted when
rows are read, and kept for later in ``$FEEDMILL_CACHE_DIR/lines/<hash>``, an array file:

    points   int64[m, 3]   offset in the file, number of line ends before it, and whether it is inside a line
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Generator
from contextlib import ExitStack, closing
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from feedmill.documents.file import DocumentFile
from feedmill.formats.documents import BLOCK, json_lines, rows_of, whole_lines
from feedmill.formats.jsonl.index import FOLDER, kept_name
from feedmill.formats.kept import KeptArrays
from feedmill.storage.codec import compression, unpacked_members
from feedmill.storage.limits import max_unpacked
from feedmill.storage.window import Window

APART = 1 << 20
"""Least number of bytes of lines between two points."""


class Point(NamedTuple):
    """A place at which reading can begin.

    Attributes:
        offset: where in the file.
        lines: number of line ends before it.
        inside: whether it is inside a line, so that the first whole line is the next one.
    """

    offset: int
    lines: int
    inside: int

    @property
    def first(self) -> int:
        """Number of the first whole line from here on."""
        return self.lines + self.inside


class SeekRows:
    """Random access to the rows of a file of lines.

    Args:
        file: a file of the kind ``lines``, plain or compressed.
    """

    def __init__(self, file: DocumentFile) -> None:
        self.file, self._store = file, file.store()
        entry = self._store.stat(file.path)
        self._kept = KeptArrays(
            f"{FOLDER}/{kept_name(self._store, entry, 'points')[1]}",
            "cached points of a file of lines are corrupt and are found again",
            "",  # they are found again, which takes longer
        )
        self._size, self._kind = entry.size, compression(file.path)
        self._points = self._read() or [Point(0, 0, 0)]

    def read(self, rows: Collection[int]) -> tuple[dict[int, bytes], int]:
        """Return rows, counted from 0, without line ends; and, if the file lacks some of them, its number of rows.

        Raises:
            NotFound, StorageError: the file does not exist or cannot be read.
            DataError: it is corrupt, or does not begin like JSON lines.
        """
        wanted, found, known = sorted(set(rows)), dict[int, bytes](), list(self._points)

        def points_until(row: int) -> int:
            return bisect_right(known, row, key=lambda point: point.first)

        at = end = 0  # number of rows that were found, and the row after those that were read last
        while at < len(wanted):
            with closing(self._blocks(known[points_until(wanted[at]) - 1])) as blocks:
                for first, lines in blocks:
                    end = first + len(lines)
                    while at < len(wanted) and wanted[at] < end:
                        found[wanted[at]] = lines[wanted[at] - first]
                        at += 1
                    if at == len(wanted) or points_until(wanted[at]) - points_until(end + 1) > 1:
                        break  # all were found, or another point is nearer
                else:
                    break
        if len(self._points) > len(known):
            self._kept.write({"points": np.asarray(self._points, "<i8")})
        return found, end

    def _blocks(self, start: Point) -> Generator[tuple[int, list[bytes]], None, None]:
        """Yield the rows from a point on: number of the first one, and about a megabyte of them."""
        store, path, where = self._store, self.file.path, self._store.locate(self.file.path)
        limit = max_unpacked(self._size) if self._kind else None
        with ExitStack() as stack:
            if store.is_local or not start.offset:
                local = stack.enter_context(store.local_copy(path))
                raw: BinaryIO = stack.enter_context(open(local, "rb", buffering=0))
                raw.seek(start.offset)
            else:  # what lies before is not fetched
                raw = cast(BinaryIO, Window(store, path, start.offset, self._size - start.offset))
            stream = _Noting(raw, self._kind, where, start, self._points)
            lines = whole_lines(cast(BinaryIO, stream), limit, where, begins=not start.offset)
            first, inside = start.lines, bool(start.inside)
            for block in lines if start.offset else json_lines(lines, where):
                rows = rows_of(block)
                yield first + inside, rows[inside:]
                first, inside = first + len(rows), False

    def _read(self) -> list[Point]:
        points = (self._kept.read() or {}).get("points")
        return [] if points is None or points.shape[1:] != (3,) else [Point(*point) for point in points.tolist()]


class _Noting:
    """The lines of a file from a point on as a stream, which adds the points that it passes to a list."""

    def __init__(self, raw: BinaryIO, kind: str, file: str, start: Point, points: list[Point]) -> None:
        self._chunks = unpacked_members(raw, kind, BLOCK, file=file)
        self._at, self._points = start, points
        self._base = start.offset
        self._apart = 0  # bytes since the last point

    def read(self, _: int) -> bytes:
        """Return the next bytes; none at the end."""
        found = next(self._chunks, None)
        if found is None:
            return b""
        chunk, member = found
        self._apart += len(chunk)
        inside = int(chunk[-1:] != b"\n") if chunk else self._at.inside
        self._at = Point(self._at.offset, self._at.lines + chunk.count(b"\n"), inside)
        if member is not None and self._apart >= APART:
            point = self._at._replace(offset=self._base + member)
            if point.offset > self._points[-1].offset:
                self._points.append(point)
            self._apart = 0
        return chunk
