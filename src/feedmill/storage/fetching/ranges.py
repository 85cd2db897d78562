"""Merge ranges of remote files to requests.

A request costs as much CPU as about 256 KiB of bytes, and a round trip of latency, so ranges that lie close together
are fetched in one request. Bridged gaps of more than 32 KiB add up to at most a quarter of the bytes of the ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.storage.base import bad_range

Int64s = npt.NDArray[np.int64]

TARGET = 4 << 20
"""Bytes of a request from which its latency hardly matters: of blocks of a shuffle, and of pieces of whole objects."""
LONG, LARGEST = 6 << 20, 9 << 20
"""Runs of ranges longer than `LARGEST` bytes (two blocks and a little) become requests of about `LONG` bytes: larger
requests cost memory and do not raise the rate."""
OFFSET_BITS = 44
"""Bits of the offset in an int64 that orders ranges by file and offset. Objects have at most a few TiB."""
_NEAR = 32 << 10
"""Gaps up to this number of bytes are always bridged."""
_WASTE = 4
"""Larger gaps may add one byte for this number of bytes of the ranges."""


class Requests(NamedTuple):
    """Requests for ranges that are sorted by file and offset.

    Attributes:
        begins, ends: int64[m], with the number of the file in the bits above `OFFSET_BITS`.
        first: int64[m], the number of the first range of each request; its ranges are consecutive.
    """

    begins: Int64s
    ends: Int64s
    first: Int64s

    @property
    def size(self) -> int:
        """Return the bytes of all requests."""
        return int((self.ends - self.begins).sum())


def requests_for(begins: Int64s, ends: Int64s, gap: int) -> Requests:
    """Merge ranges to requests. Each range lies in one request.

    Args:
        begins, ends: int64[n], n > 0, ascending by begin, with the number of the file in the bits above `OFFSET_BITS`.
        gap: the largest gap to bridge, in bytes; see `Fetcher.gap`.
    """
    reached = np.maximum.accumulate(ends)
    gaps = begins[1:] - reached[:-1]
    same_file = (begins[1:] >> OFFSET_BITS) == (begins[:-1] >> OFFSET_BITS)
    joined = same_file & (gaps <= _affordable(gaps[same_file], int((ends - begins).sum()), gap))
    starts = np.flatnonzero(np.concatenate(([True], ~joined)))
    run = np.cumsum(np.concatenate(([0], ~joined)))
    length = reached[np.append(starts[1:], len(begins)) - 1] - begins[starts]
    chunks = np.where(length > LARGEST, length // LONG, 1)
    chunk = (begins - begins[starts][run]) * chunks[run] // np.maximum(length[run], 1)
    first = np.flatnonzero(np.concatenate(([True], (run[1:] != run[:-1]) | (chunk[1:] != chunk[:-1]))))
    return Requests(begins[first], np.maximum.reduceat(ends, first), first)


def _affordable(gaps: Int64s, wanted: int, gap: int) -> int:
    """Return the largest gap to bridge so that bridged gaps add up to at most a quarter of the ranges.

    Args:
        gaps: int64[n], bytes between neighboring ranges; 0 or less if they touch or overlap.
        wanted: bytes of the ranges.
        gap: the largest gap whose bridging saves time.
    """
    near = min(gap, _NEAR)
    wide = np.sort(gaps[(gaps > near) & (gaps <= gap)])
    count = int(np.searchsorted(np.cumsum(wide), wanted // _WASTE, side="right"))
    return int(wide[count - 1]) if count else near


def merged(
    files: Sequence[str], ranges: Sequence[tuple[int, int, int]], gap: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Merge ranges of several files to requests.

    Args:
        files: paths or URLs, for errors.
        ranges: file number, offset and length of each.
        gap: as for `requests_for`.

    Returns:
        File number, begin and end of each request; and for each range the number of its request, and its offset in it.
        Empty ranges have no request.

    Raises:
        DataError: a range is negative or too large.
    """
    for number, offset, length in ranges:
        if offset < 0 or length < 0 or offset + length >= 1 << OFFSET_BITS:
            raise bad_range(files[number], offset, length)
    if len(ranges) == 1:
        number, offset, length = ranges[0]
        return [(number, offset, offset + length)][: length and 1], [(0, 0)]
    positions = [(0, 0)] * len(ranges)
    filled = np.asarray([row for row, (_, _, length) in enumerate(ranges) if length], np.int64)
    if not len(filled):
        return [], positions
    number, offset, length = np.asarray(ranges, np.int64)[filled].T
    begins = (number << OFFSET_BITS) + offset
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], (begins + length)[order]
    requests = requests_for(begins, ends, gap)
    owner = np.repeat(np.arange(len(requests.first)), np.diff(np.append(requests.first, len(begins))))
    rows = zip(filled[order].tolist(), owner.tolist(), (begins - requests.begins[owner]).tolist(), strict=True)
    for row, request, start in rows:
        positions[row] = (request, start)
    files_of = (requests.begins >> OFFSET_BITS).tolist()
    offsets = (requests.begins & ((1 << OFFSET_BITS) - 1)).tolist()
    sizes = (requests.ends - requests.begins).tolist()
    return [(n, begin, begin + size) for n, begin, size in zip(files_of, offsets, sizes, strict=True)], positions
