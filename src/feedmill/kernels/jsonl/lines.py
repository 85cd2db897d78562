"""Line index of a JSONL file, built with NumPy over pieces at several GB/s, without a compiled kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

STEP = 1 << 18
"""Bytes of a piece: what is computed of it stays in the processor's cache."""
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_BLANK = -1

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]


class LineIndex(NamedTuple):
    """Lines of a file that are not blank.

    Attributes:
        starts: int64[n], the offset of each. For a whole file int64[n + 1], with its size, and the first is 0: blank
            lines belong to the line before them, or to the first.
        bad: int64, the offsets of lines that do not begin with ``{`` and end with ``}``.
    """

    starts: Int64s
    bad: Int64s


def newlines(buffer: UInt8s) -> Int64s:
    """Return the offset of every newline byte, int64."""
    found = [np.flatnonzero(buffer[low : low + STEP] == _NEWLINE) + low for low in range(0, len(buffer), STEP)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def index_lines(buffer: UInt8s) -> LineIndex:
    """Index the lines of a JSONL file. A line of only white space belongs to the line before it.

    Args:
        buffer: uint8[size], the file, usually memory-mapped.
    """
    scan = LineScan()
    parts = [scan.add(buffer[low : low + STEP]) for low in range(0, len(buffer), STEP)]
    return joined([*parts, scan.finish()], len(buffer))


def joined(parts: Iterable[LineIndex], size: int) -> LineIndex:
    """Return the index of a file of this size from the lines of its pieces."""
    known = list(parts)
    starts = np.concatenate([np.zeros(0, np.int64), *(part.starts for part in known), [size]]).astype(np.int64)
    if len(starts) > 1:
        starts[0] = 0
    return LineIndex(starts, np.concatenate([np.zeros(0, np.int64), *(part.bad for part in known)]))


class LineScan:
    """Index the lines of a file that is given in consecutive pieces. No line is held, however long it is.

    Args:
        at: offset of the first piece, at which a line begins.

    Attributes:
        at: offset of the next piece.
        aligned: whether no blank line precedes a line that is not blank, so that record i is line i.
    """

    def __init__(self, at: int = 0) -> None:
        self.at, self.aligned = at, True
        self._begin = at  # of the unfinished line
        self._first = self._last = _BLANK  # its first and last byte that are not white space
        self._skipped = False  # whether the last finished line is blank

    def add(self, piece: UInt8s) -> LineIndex:
        """Return the lines that end in a piece, uint8[n], with their offsets in the file."""
        base, self.at = self.at, self.at + len(piece)
        ends = np.flatnonzero(piece == _NEWLINE)
        if not len(ends):
            self._extend(piece)
            return LineIndex(ends, ends)
        self._extend(piece[: ends[0]])
        begins, stops = ends[:-1] + 1, ends[1:]
        # Nearly every line begins with '{' and ends with '}' or, before a carriage return, with '}'.
        plain = (piece[begins] == _OPEN) & (piece[stops - 1] == _CLOSE)
        doubtful = np.flatnonzero(~plain)
        plain[doubtful] = (
            (stops[doubtful] - begins[doubtful] > 1)
            & (piece[begins[doubtful]] == _OPEN)
            & (piece[stops[doubtful] - 1] == _RETURN)
            & (piece[stops[doubtful] - 2] == _CLOSE)
        )
        keep, bad = plain, []
        for i in doubtful[~plain[doubtful]].tolist():
            text = piece[begins[i] : stops[i]].tobytes().strip()
            keep[i] = bool(text)
            if text and not (text[0] == _OPEN and text[-1] == _CLOSE):
                bad.append(int(begins[i]) + base)
        first = self.finish()
        self._begin = base + int(ends[-1]) + 1
        self._extend(piece[int(ends[-1]) + 1 :])
        if len(keep):
            self._align(keep)
            begins = begins[keep] if len(doubtful) else begins
        return LineIndex(
            np.concatenate((first.starts, begins + base)), np.concatenate((first.bad, np.asarray(bad, np.int64)))
        )

    def finish(self) -> LineIndex:
        """Return the line that is not finished yet, as at the end of the file: none if it is blank."""
        first, last = self._first, self._last
        self._first = self._last = _BLANK
        self._align(np.array([first != _BLANK]))
        line = np.asarray([] if first == _BLANK else [self._begin], np.int64)
        return LineIndex(line, line[:0] if (first, last) == (_OPEN, _CLOSE) else line)

    def _extend(self, piece: UInt8s) -> None:
        """Add bytes to the unfinished line."""
        text = piece.tobytes().strip()
        if text:
            self._first, self._last = text[0] if self._first == _BLANK else self._first, text[-1]

    def _align(self, filled: npt.NDArray[np.bool_]) -> None:
        """Note which of the next lines are not blank."""
        if self._skipped or not filled.all():
            last = int(np.flatnonzero(filled)[-1]) if filled.any() else -1
            self.aligned &= last < 0 or bool(not self._skipped and filled[: last + 1].all())
            self._skipped = (self._skipped and last < 0) or last < len(filled) - 1
