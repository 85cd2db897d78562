"""Rows whose width changes: the stream of documents in phases, each packed by itself into rows of its own width.

A phase is a range of the documents. Its rows hold documents of this range only, and follow those of the phase before
it, so their numbers are known once that one is planned as a whole. The last phase may have no end. A phase is packed as
a stream that begins and ends where it does: what ends a stream (the last buffer, the last window) ends a phase, too.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.planning.nodes.base import Node
from feedmill.planning.packing.best_fit import BestFit, Buffer
from feedmill.planning.packing.documents import IntArray
from feedmill.planning.packing.spans import Placements, Spans
from feedmill.planning.packing.windows import Windows


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase.

    Attributes:
        start: its first document, as a position in the whole stream.
        stop: the document after its last; None if it has no end.
        map: from its rows, counted from 0, to spans of its documents, counted from `start`.
    """

    start: int
    stop: int | None
    map: BestFit | Windows

    def held(self, rows: int) -> list[tuple[int, int, Fraction]]:
        """Return which documents of the whole stream its first rows hold: ranges, and how much of each."""
        return [(low + self.start, high + self.start, share) for low, high, share in self.map.held(rows)]


class Phases:
    """The maps of phases as one. Thread-safe.

    Args:
        phases: at least one; each begins where the one before it ends.

    Attributes:
        phases: as given.
        width: tokens in the widest row.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = list(phases)
        self.width = max(phase.map.width for phase in phases)
        self._starts = np.array([phase.start for phase in phases], np.int64)
        self._widths = np.array([phase.map.width for phase in phases], np.int64)
        self._firsts = [0]  # of the phases that are reached so far
        self._lock = threading.RLock()

    @property
    def total(self) -> int:
        """Return the number of rows of the whole stream, which must be finite."""
        last = len(self.phases) - 1
        return self._first(last) + self.phases[last].map.total

    @property
    def firsts(self) -> list[int]:
        """Return the first row of each phase; plans all but the last."""
        self._first(len(self.phases) - 1)
        return list(self._firsts)

    def widths(self, rows: IntArray) -> IntArray:
        """Return the tokens in each row, int64[n], if it is full."""
        return self._widths[self._owners(rows)]

    def has(self, row: int) -> bool:
        """Return whether the row exists; plans as far as needed."""
        number = self._owner(row)
        return self.phases[number].map.has(row - self._firsts[number])

    def spans(self, rows: IntArray) -> Spans:
        """Return the spans of rows, int64[n], all of which must exist."""
        owner = self._owners(rows)
        parts, counts = [], np.empty(len(rows), np.int64)
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == number)
            found = self.phases[number].map.spans(rows[mine] - self._firsts[number])
            counts[mine] = np.diff(found.row_offsets)
            parts.append((mine, found, self.phases[number].start))
        row_offsets = bounds_of(counts)
        position, start, length = (np.empty(int(row_offsets[-1]), np.int64) for _ in range(3))
        for mine, found, before in parts:
            to = ranges(row_offsets[mine], counts[mine])
            position[to], start[to], length[to] = found.position + before, found.start, found.length
        return Spans(row_offsets, position, start, length)

    def placements(self, positions: IntArray) -> Placements:
        """Return the rows that hold the documents at these positions, int64[n]."""
        owner = np.searchsorted(self._starts, positions, side="right") - 1
        parts, counts = [], np.empty(len(positions), np.int64)
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == number)
            found = self.phases[number].map.placements(positions[mine] - self.phases[number].start)
            counts[mine] = np.diff(found.offsets)
            parts.append((mine, found, self._first(number)))
        offsets = bounds_of(counts)
        row, at, start, length = (np.empty(int(offsets[-1]), np.int64) for _ in range(4))
        for mine, found, before in parts:
            to = ranges(offsets[mine], counts[mine])
            row[to], at[to], start[to], length[to] = found.row + before, found.at, found.start, found.length
        return Placements(offsets, row, at, start, length)

    def landmark(self, row: int) -> list[int]:
        """Return from where planning can begin for a row: a segment of its phase, and the rows before it.

        The first rows of the phases follow, so that the phases before need not be planned.
        """
        number = self._owner(row)
        return [*self.phases[number].map.landmark(row - self._firsts[number]), *self._firsts[1 : number + 1]]

    def begin_at(self, landmark: Sequence[int]) -> None:
        """Begin planning at a landmark."""
        segment, first, *firsts = landmark
        with self._lock:
            if len(firsts) < len(self.phases) and len(self._firsts) <= len(firsts) + 1:
                self._firsts = [0, *firsts]
                self.phases[len(firsts)].map.begin_at([segment, first])

    def reach(self, rows: int) -> int:
        """Return the number of documents up to those that the first `rows` rows come from."""
        if rows == 0:
            return 0
        number = self._owner(rows - 1)
        return self.phases[number].start + self.phases[number].map.reach(rows - self._firsts[number])

    def last_buffer(self, rows: int) -> Buffer:
        """Return the buffer that the last of the first `rows` rows comes from, see `BestFit`."""
        number = self._owner(max(rows - 1, 0))
        phase, before = self.phases[number], self._firsts[number]
        assert isinstance(phase.map, BestFit)
        last = phase.map.last_buffer(rows - before)
        return Buffer(last.start + phase.start, last.stop + phase.start, last.first + before, last.behind + before)

    def held(self, rows: int) -> list[tuple[int, int, Fraction]]:
        """Return which documents the first rows hold: ranges, and how much of each."""
        return [each for phase, _, own in self.begun(rows) for each in phase.held(own)]

    def counts(self, rows: int) -> tuple[int, int]:
        """Return the tokens in the first `rows` rows, and the dropped tokens of documents that they come from."""
        found = [self.counts_of(phase, own) for phase, _, own in self.begun(rows)]
        return sum(tokens for tokens, _ in found), sum(left_out for _, left_out in found)

    def counts_of(self, phase: Phase, rows: int) -> tuple[int, int]:
        """Return `counts` of the first rows of one phase; of all its documents, if these are all of its rows."""
        tokens, left_out = phase.map.counts(rows)
        if isinstance(phase.map, BestFit) and phase.stop is not None and rows == phase.map.total:
            behind = phase.map.reach(rows)  # documents that no row holds: what follows them is another phase
            left_out += sum(
                int(phase.map.documents.between(low, min(low + phase.map.size, phase.stop - phase.start)).sum())
                for low in range(behind, phase.stop - phase.start, phase.map.size)
            )
        return tokens, left_out

    def used_up(self, rows: int) -> dict[str, tuple[int, int]]:
        """Return which limits leave tokens free, see `BestFit`."""
        found: dict[str, tuple[int, int]] = {}
        for phase, _, own in self.begun(rows):
            for name, (count, free) in phase.map.used_up(own).items():
                before = found.get(name, (0, 0))
                found[name] = before[0] + count, before[1] + free
        return found

    def largest_buffer(self, rows: int) -> int:
        """Return the documents of the largest buffer in the first segments of the phases of the first rows."""
        maps = [(phase.map, own) for phase, _, own in self.begun(rows)]
        return max(map.largest_buffer(own) for map, own in maps if isinstance(map, BestFit))

    def ends_at(self, documents: int) -> bool:
        """Return whether a buffer or a phase ends after this many documents, also if the stream does not end there."""
        number = int(np.searchsorted(self._starts, documents, side="left")) - 1
        phase = self.phases[max(number, 0)]
        assert isinstance(phase.map, BestFit)
        return documents == phase.stop or phase.map.ends_at(documents - phase.start)

    def same_buffers(self, other: Node, documents: int) -> bool:
        """Return whether another stream with the same phases is cut into the same buffers by this many documents."""
        for phase in self.phases:
            stop = documents if phase.stop is None else min(documents, phase.stop)
            if phase.start >= documents:
                break
            assert isinstance(phase.map, BestFit)
            if not phase.map.same_buffers(other, stop - phase.start):
                return False
        return True

    def begun(self, rows: int) -> list[tuple[Phase, int, int]]:
        """Return the phases that the first rows are of: the phase, its first row, and how many of them are its own."""
        last = self._owner(max(rows - 1, 0))
        firsts = [*self._firsts[: last + 1], rows]
        parts = zip(self.phases, firsts, firsts[1:], strict=False)
        return [(phase, first, stop - first) for phase, first, stop in parts if stop > first]

    def _owner(self, row: int) -> int:
        """Return the phase of a row; rows beyond the end are of the last one."""
        with self._lock:
            while self._firsts[-1] <= row and len(self._firsts) < len(self.phases):
                self._first(len(self._firsts))
            return bisect_right(self._firsts, row) - 1

    def _owners(self, rows: IntArray) -> IntArray:
        if len(rows):
            self._owner(int(rows.max()))
        return np.searchsorted(np.array(self._firsts, np.int64), rows, side="right") - 1

    def _first(self, number: int) -> int:
        """Return the first row of a phase; plans the phases before it.

        Raises:
            ConfigError: one of them has no row.
        """
        with self._lock:
            while len(self._firsts) <= number:
                phase = self.phases[len(self._firsts) - 1]
                count = phase.map.total
                if not count:
                    raise self._empty(phase)
                self._firsts.append(self._firsts[-1] + count)
            return self._firsts[number]

    def _empty(self, phase: Phase) -> ConfigError:
        assert phase.stop is not None
        return ConfigError(
            f"the {phase.stop - phase.start:,} documents from {phase.start:,} to {phase.stop:,} give no row of"
            f" {phase.map.width:,} tokens",
            kind="too-few-samples",
            fix="Make the stages of this seq_len longer, or their seq_len smaller.",
        )
