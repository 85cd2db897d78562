"""Line index of a JSONL file, built with NumPy over blocks at several GB/s, without a compiled kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

STEP = 4 << 20
_NEWLINE = 10


class LineIndex(NamedTuple):
    """Index of the lines of a file.

    Attributes:
        starts: int64[n + 1], the offset of each line that is not blank; the first is 0, the last the size of the file.
        bad: int64, the offsets of lines that do not begin with ``{`` and end with ``}``.
    """

    starts: npt.NDArray[np.int64]
    bad: npt.NDArray[np.int64]


def newlines(buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the offset of every newline byte, int64."""
    found = [np.flatnonzero(buffer[low : low + STEP] == _NEWLINE) + low for low in range(0, len(buffer), STEP)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def index_lines(buffer: npt.NDArray[np.uint8]) -> LineIndex:
    """Index the lines of a JSONL file. A line of only white space belongs to the line before it.

    Args:
        buffer: uint8[size], the file, usually memory-mapped.
    """
    found = line_starts(buffer)
    return joined([found], len(buffer))


def joined(parts: Sequence[LineIndex], size: int) -> LineIndex:
    """Return the index of a file of this size from the lines of its ranges, see `line_starts`."""
    starts = np.concatenate([np.zeros(0, np.int64), *(part.starts for part in parts), [size]]).astype(np.int64)
    if len(starts) > 1:
        starts[0] = 0
    return LineIndex(starts, np.concatenate([np.zeros(0, np.int64), *(part.bad for part in parts)]))


def line_starts(buffer: npt.NDArray[np.uint8]) -> LineIndex:
    """Return the lines of a range of whole lines; `starts` has only those of lines that are not blank, int64[n]."""
    ends = newlines(buffer)
    size = len(buffer)
    begins = np.concatenate(([0], ends + 1))
    ends = np.append(ends, size)
    if begins[-1] == size:
        begins, ends = begins[:-1], ends[:-1]
    # Nearly every line begins with '{' and ends with '}': only the others are checked one by one.
    plain = ends > begins
    plain[plain] &= (buffer[begins[plain]] == ord("{")) & (buffer[ends[plain] - 1] == ord("}"))
    keep = plain.copy()
    bad: list[int] = []
    for i in np.flatnonzero(~plain).tolist():
        text = buffer[begins[i] : ends[i]].tobytes().strip()
        if text:
            keep[i] = True
            if not (text.startswith(b"{") and text.endswith(b"}") and len(text) > 1):
                bad.append(int(begins[i]))
    return LineIndex(begins[keep].astype(np.int64), np.asarray(bad, np.int64))
