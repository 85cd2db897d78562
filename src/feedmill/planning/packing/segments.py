"""Sidecar of a packing plan: the plan is stored in files that later runs map into memory.

The stream of documents is cut into segments of equal numbers of documents, planned in order, each when it is first
needed. One folder holds one plan and is named by a hash of everything that determines it, so a file never needs to be
compared with the data. One segment is one file, ``00000000.pack``, ``00000001.pack``, ...; all numbers are
little-endian:

========  ==========  ==================================================================================
bytes     type        content
========  ==========  ==================================================================================
0-7       bytes       ``FMPACK01``
8-15      uint64      xxh3-64 of bytes 16-87
16-23     uint64      xxh3-64 of the body
24-87     int64[8]    segment; documents; units before it; units in it; tokens placed; tokens dropped; W; N
88-       int64[W]    body: rows' first spans (packing) or tokens before every chunk (windows), with the end
          int32[N]    body: spans' document, piece and length, one column after another (packing)
========  ==========  ==================================================================================

A unit is a row for packing, and a token for windows. Files are published atomically. A damaged, missing or foreign file
is planned again and replaced. If several processes need a segment, one plans it and the others wait. Without working
file locks, each plans it, and they replace each other's file with an identical one.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, StorageError
from feedmill.storage.base import storage_error
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.local import publish
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import make_folder, staged

MAGIC = b"FMPACK01"
FOLDER = "packing"
"""Folder of all plans in the cache folder; their size counts into that of the cache (`DiskCache`)."""

_FIELDS = struct.Struct("<Q8q")
_HEADER = struct.Struct("<8sQ")
_BODY = _HEADER.size + _FIELDS.size
_KEPT_OPEN = 8
_MOST_EMPTY = 16


@dataclass(frozen=True, slots=True)
class Segment:
    """One planned segment.

    Attributes:
        number: its number.
        documents: number of positions of the stream that it covers.
        first: units (rows, or tokens) of all segments before it.
        units: units in it.
        tokens: tokens that its rows hold.
        left_out: tokens of its documents that no row holds.
        wide: int64[W].
        narrow: int32[N].
    """

    number: int
    documents: int
    first: int
    units: int
    tokens: int
    left_out: int
    wide: npt.NDArray[np.int64]
    narrow: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Head:
    """The header of a segment's file."""

    digest: int
    number: int
    documents: int
    first: int
    units: int
    tokens: int
    left_out: int
    wide: int
    narrow: int


class Segments:
    """The segments of one plan. Thread-safe.

    Args:
        folder: the plan's own folder; created on the first write.
        make: ``make(number, first)`` plans one segment.
        end: number of segments; None for an endless stream.
        can_fill: whether any document of the stream gives a unit; asked when a segment has none.
    """

    def __init__(
        self, folder: Path, make: Callable[[int, int], Segment], end: int | None, can_fill: Callable[[], bool]
    ) -> None:
        self.folder, self.end = folder, end
        self._make, self._can_fill = make, can_fill
        self._lock = threading.RLock()
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._base = 0  # number of the first segment in `_heads`
        self._before: tuple[int, int] | None = (0, 0)  # placed and dropped tokens of the segments before that
        self._heads: list[_Head] = []
        self._starts = [0]
        self._table = np.zeros(1, np.int64)

    def of_units(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the segment of each unit, int64[n]; plans as far as needed. Units beyond the end are in the last."""
        with self._lock:
            if len(units):
                if int(units.min()) < self._starts[0]:
                    self._rewind()
                self.until(int(units.max()))
            found = np.searchsorted(self._table, units, side="right") - 1
            return np.minimum(found, len(self._table) - 2) + self._base

    def begin_at(self, number: int, first: int, before: tuple[int, int] | None = None) -> None:
        """Plan from segment `number` on, which has `first` units before it, unless something is planned already.

        Earlier segments are planned if a unit of them is needed, or their tokens, if `before` does not say them.
        """
        with self._lock:
            if number > 0 and not self._heads and (self.end is None or number < self.end):
                self._base, self._starts, self._table = number, [first], np.array([first], np.int64)
                self._before = before

    def tokens_before(self, number: int, *, plan: bool = True) -> tuple[int, int] | None:
        """Return the placed and the dropped tokens of all segments before one.

        Args:
            number: the segment.
            plan: plan segments if they are not known; else return None.
        """
        with self._lock:
            if number < self._base or self._before is None:
                if not plan:
                    return None
                self._rewind()
            while plan and self._base + len(self._heads) < number:
                self._advance()
            heads = self._heads[: number - self._base]
            if self._before is None or self._base + len(heads) < number:
                return None
            tokens, left_out = self._before
            return tokens + sum(head.tokens for head in heads), left_out + sum(head.left_out for head in heads)

    def landmark(self, unit: int) -> list[int]:
        """Return the arguments of `begin_at` for a unit: its segment, and the units before this."""
        number = int(self.of_units(np.array([unit]))[0])
        return [number, self.head(number).first]

    def _rewind(self) -> None:
        self._base, self._heads, self._starts, self._table = 0, [], [0], np.zeros(1, np.int64)
        self._before = (0, 0)

    def until(self, unit: int) -> None:
        """Plan until `unit` is in a segment, or to the end.

        Raises:
            ConfigError: the stream is endless, and many consecutive segments are empty.
            StorageError: the folder cannot be written.
        """
        with self._lock:
            empty = 0
            while self._starts[-1] <= unit and self._base + len(self._heads) != self.end:
                self._advance()
                empty = 0 if self._heads[-1].units else empty + 1
                if self.end is None and (empty == _MOST_EMPTY or (empty == 1 and not self._can_fill())):
                    count = sum(head.documents for head in self._heads[-empty:])
                    raise ConfigError(
                        f"{count:,} consecutive documents have no token to pack",
                        kind="too-few-samples",
                        fix="Check the datasets; with 'long: drop', whether seq_len is shorter than all documents.",
                    )

    def head(self, number: int) -> _Head:
        """Return the header of one segment; plans as far as needed."""
        with self._lock:
            if number < self._base:
                self._rewind()
            while self._base + len(self._heads) <= number:
                self._advance()
            return self._heads[number - self._base]

    def get(self, number: int) -> Segment:
        """Return one segment, mapped into memory; plans as far as needed."""
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            head = self.head(number)
            segment = self._load(number) or self._build(number, head.first)
            self._keep(segment)
            return segment

    @property
    def planned(self) -> int:
        """Return the number of units in the segments planned so far."""
        return self._starts[-1]

    @property
    def total(self) -> int:
        """Return the number of units in the whole stream, which must be finite; plans all of it."""
        self.until(2**63 - 1)
        return self._starts[-1]

    def _advance(self) -> None:
        """Add the next segment, from its file or by planning it."""
        number, first = self._base + len(self._heads), self._starts[-1]
        if not self._heads and self.folder.is_dir():
            self._hold()
        head = read_head(self._path(number))
        if head is None or head.number != number or head.first != first:
            segment = self._build(number, first)
            self._keep(segment)
            head = _head_of(segment, 0)
        self._heads.append(head)
        self._starts.append(first + head.units)
        self._table = np.array(self._starts, np.int64)

    def _hold(self, *, written: str = "") -> None:
        """Keep the plan, of which a file may be new, from being evicted if it lies in a cache folder."""
        if self.folder.parent.name == FOLDER:
            name = f"{FOLDER}/{self.folder.name}"
            disk_cache(self.folder.parent.parent).hold_derived(name, written=written and f"{name}/{written}")

    def _keep(self, segment: Segment) -> None:
        self._open[segment.number] = segment
        while len(self._open) > _KEPT_OPEN:
            self._open.popitem(last=False)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.pack"

    def _load(self, number: int) -> Segment | None:
        segment = load(self._path(number))
        known = None if segment is None else (segment.number, segment.first)
        return segment if known == (number, self.head(number).first) else None

    def _build(self, number: int, first: int) -> Segment:
        path = self._path(number)
        try:
            make_folder(os.path.abspath(self.folder))
            with FileLock(self.folder / "plan.lock", wait=True):
                segment = load(path)  # another process may have been faster
                if segment is None or (segment.number, segment.first) != (number, first):
                    save(path, self._make(number, first))
                    segment = load(path)
            self._hold(written=path.name)
        except OSError as error:
            raise StorageError(
                f"the packing plan cannot be written: {storage_error(error, str(path)).what}",
                file=str(path),
                fix="Set FEEDMILL_CACHE_DIR to a writable folder with enough space.",
            ) from None
        assert segment is not None
        return segment


def save(path: Path, segment: Segment) -> None:
    """Write one segment, atomically."""
    wide, narrow = segment.wide.astype("<i8", copy=False), segment.narrow.astype("<i4", copy=False)
    digest = xxhash.xxh3_64(wide.data)
    digest.update(narrow.data)
    head = _head_of(segment, digest.intdigest())
    fields = _FIELDS.pack(
        head.digest,
        head.number,
        head.documents,
        head.first,
        head.units,
        head.tokens,
        head.left_out,
        head.wide,
        head.narrow,
    )
    with staged(str(path)) as temporary:
        with open(temporary, "wb") as f:
            f.write(_HEADER.pack(MAGIC, xxhash.xxh3_64_intdigest(fields)))
            f.write(fields)
            f.write(wide.data)
            f.write(narrow.data)
        publish(temporary, str(path))


def load(path: Path) -> Segment | None:
    """Return one segment, mapped into memory and checked; None if the file is missing or damaged."""
    head = read_head(path)
    if head is None:
        return None
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):
        return None
    middle = _BODY + 8 * head.wide
    if len(data) != middle + 4 * head.narrow or xxhash.xxh3_64_intdigest(data[_BODY:].data) != head.digest:
        return None
    # Plain arrays over the map: numpy's own class for maps makes every small slice slow.
    plain = data.view(np.ndarray)
    return Segment(
        head.number,
        head.documents,
        head.first,
        head.units,
        head.tokens,
        head.left_out,
        plain[_BODY:middle].view("<i8"),
        plain[middle:].view("<i4"),
    )


def read_head(path: Path) -> _Head | None:
    """Return the header of a file; None if the file is missing, truncated or damaged."""
    try:
        with open(path, "rb") as f:
            data = f.read(_BODY)
            size = os.fstat(f.fileno()).st_size
    except OSError:
        return None  # any other error than a missing file is reported when the file is written
    if len(data) < _BODY:
        return None
    magic, digest = _HEADER.unpack_from(data)
    if magic != MAGIC or digest != xxhash.xxh3_64_intdigest(data[_HEADER.size :]):
        return None
    head = _Head(*_FIELDS.unpack_from(data, _HEADER.size))
    return head if size == _BODY + 8 * head.wide + 4 * head.narrow else None


def _head_of(segment: Segment, digest: int) -> _Head:
    numbers = (segment.number, segment.documents, segment.first, segment.units, segment.tokens, segment.left_out)
    return _Head(digest, *numbers, len(segment.wide), len(segment.narrow))
