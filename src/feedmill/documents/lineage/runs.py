"""Origins of rows as runs: neighbors in an output that are neighbors in an input are one run.

A filter keeps most rows in their order, so runs and the gaps between them are short numbers. They are stored as LEB128
varints, without a general compressor, whose bytes could differ between machines:

    groups    for each group of successive runs of one file: the difference to the last file (zigzag), and the runs
    gaps      for each run: 2 * zigzag(its first row - the end of the last run of the group) + (1 if it has two rows
              or more)
    lengths   for each run of two rows or more: its rows - 2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Encoded = tuple[bytes, bytes, bytes]
"""Groups, gaps and lengths."""


class Runs(NamedTuple):
    """Runs of rows, in the order of the output; int64[runs] each.

    Attributes:
        file: number of the input.
        start: first row in the input, from 0.
        length: number of rows.
    """

    file: Int64s
    start: Int64s
    length: Int64s

    @classmethod
    def of(cls, file: int | Int64s, rows: Sequence[int] | Int64s) -> Runs:
        """Return the runs of these rows of a file, or of the files `file`, int64[rows]."""
        start = np.asarray(rows, np.int64)
        files = np.broadcast_to(np.asarray(file, np.int64), start.shape)
        return _joined(cls(files, start, np.ones(len(start), np.int64)))

    @classmethod
    def whole(cls, file: int, rows: int) -> Runs:
        """Return the single run of a file from which every row was taken."""
        count = int(rows > 0)
        return cls(*(np.full(count, value, np.int64) for value in (file, 0, rows)))

    @property
    def ends(self) -> Int64s:
        """Number of rows of the output up to the end of each run, int64[runs]."""
        return np.cumsum(self.length)

    @property
    def rows(self) -> int:
        """Number of rows of the output."""
        return int(self.length.sum())

    def origins(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the file and the row in it of each of these rows of the output. Raises IndexError."""
        ends = self.ends
        run = np.searchsorted(ends, rows, side="right")
        return self.file[run], self.start[run] + rows - (ends[run] - self.length[run])

    def found(self, file: int, row: int) -> Int64s:
        """Return the rows of the output that came from a row of a file; none if it was dropped, several if repeated."""
        run = np.flatnonzero((self.file == file) & (self.start <= row) & (row < self.start + self.length))
        return self.ends[run] - self.length[run] + row - self.start[run]

    def part(self, first: int, last: int) -> Runs:
        """Return the runs of rows [first, last) of the output."""
        ends = self.ends
        low, high = np.maximum(ends - self.length, first), np.minimum(ends, last)
        kept = np.flatnonzero(low < high)
        return Runs(self.file[kept], (self.start + low - (ends - self.length))[kept], (high - low)[kept])


def joined(parts: Iterable[Runs]) -> Runs:
    """Return the runs of several parts of an output, one after another."""
    several = list(parts)
    if not several:
        return Runs(*(np.zeros(0, np.int64) for _ in range(3)))
    return _joined(Runs(*(np.concatenate(columns) for columns in zip(*several, strict=True))))


def _joined(runs: Runs) -> Runs:
    """Return the runs with neighbors joined."""
    file, start, length = runs
    if not len(file):
        return runs
    breaks = (file[1:] != file[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    return Runs(file[first], start[first], np.add.reduceat(length, first))


def encode_runs(runs: Runs, last: int = 0) -> Encoded:
    """Return groups, gaps and lengths; see the module.

    Args:
        last: the file of the last run before these, so that encoded parts can be concatenated.
    """
    file, start, length = runs
    new = np.ones(len(file), np.bool_)
    new[1:] = file[1:] != file[:-1]
    first = np.flatnonzero(new)
    counts = np.diff(np.append(first, len(file)))
    groups = np.stack([_zigzag(np.diff(file[first], prepend=last)), counts], axis=1).ravel()
    before = np.zeros(len(file), np.int64)
    before[1:] = (start + length)[:-1]
    before[new] = 0
    several = length > 1
    return encode(groups), encode(2 * _zigzag(start - before) + several), encode(length[several] - 2)


def decode_runs(groups: bytes, gaps: bytes, lengths: bytes) -> Runs:
    """Return the runs. Raises ValueError if the parts do not belong together."""
    pairs, found, more = decode(groups).reshape(-1, 2), decode(gaps), decode(lengths)
    several = (found & 1).astype(np.bool_)
    counts = pairs[:, 1]
    if counts.sum() != len(found) or several.sum() != len(more) or (counts < 1).any():
        raise ValueError("the numbers of runs differ")
    length = np.ones(len(found), np.int64)
    length[several] = more + 2
    # Within a group, the start is the sum of all gaps and lengths before.
    steps = _unzigzag(found >> 1)
    total = np.cumsum(steps + length) - length
    first = np.cumsum(counts) - counts
    base = np.repeat((total - steps)[first], counts) if len(found) else total
    return Runs(np.repeat(np.cumsum(_unzigzag(pairs[:, 0])), counts), total - base, length)


def _zigzag(values: Int64s) -> Int64s:
    return (values << 1) ^ (values >> 63)


def _unzigzag(values: Int64s) -> Int64s:
    return (values >> 1) ^ -(values & 1)


def encode(values: Int64s) -> bytes:
    """Return numbers, int64[n] from 0, as LEB128 varints: seven bits in each byte, the lowest first."""
    values = np.asarray(values, np.int64)
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 63, 7):
        sizes += values >> bits > 0
    out = np.empty(int(sizes.sum()), np.uint8)
    places = np.cumsum(sizes) - sizes
    for byte in range(int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > byte)
        more = (sizes[longer] > byte + 1).astype(np.int64) << 7
        out[places[longer] + byte] = values[longer] >> (7 * byte) & 0x7F | more
    return out.tobytes()


def decode(data: bytes) -> Int64s:
    """Return the numbers of LEB128 varints, int64[n]. Raises ValueError if one is truncated or too long."""
    found = np.frombuffer(data, np.uint8)
    if not len(found):
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(found < 0x80)
    if not len(ends) or ends[-1] != len(found) - 1:
        raise ValueError("truncated")
    sizes = np.diff(ends, prepend=-1)
    if sizes.max() > 9:
        raise ValueError("a number has more than 63 bits")
    first = ends - sizes + 1
    shifts = 7 * (np.arange(len(found)) - np.repeat(first, sizes))
    return np.add.reduceat((found & 0x7F).astype(np.int64) << shifts, first)
