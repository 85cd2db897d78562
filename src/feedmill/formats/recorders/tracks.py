"""Columns of recordings as tables of byte ranges: what must be read for some steps, and what these bytes mean.

A `Track` is one column of a file. It is asked twice: `pieces` returns the byte ranges that some rows need, which are
then read together with those of other columns, and `values` makes the values from their bytes. So rows cost exactly
their ranges, also in a bucket, and no library has to read.

- `ArrayTrack`: an array in chunks (HDF5, Zarr). Rows that are stored as they are, are read alone. Otherwise the chunks
  of a row are read, decoded and cached.
- `BlobTrack`: a value of any length per row, each at its own place.
- `ImageTrack`: rows of bytes padded with zeros, such as ALOHA's JPEG files.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.formats.rows import BlockCache
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import copy_again

ABSENT = -1
"""Offset of a chunk that was never written: its values are the fill value."""
IMAGE, TEXT, BYTES = "image", "string", "bytes"
"""Kinds of columns beside arrays, whose kind is the name of a dtype."""
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"\0\0\0\x0cjP", b"BM", b"II*\0", b"MM\0*")


class Column(NamedTuple):
    """What all episodes of a dataset have in common of a column.

    Attributes:
        kind: name of a dtype, or `IMAGE` (an encoded file), `TEXT` or `BYTES`.
        shape: axes of the value of one step; () for numbers.
    """

    kind: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}{list(self.shape)}" if self.shape else self.kind


class Pieces(NamedTuple):
    """Byte ranges that some rows need, and that are not cached.

    Attributes:
        row: int64[m], which of the rows each range is for, as its position among them.
        piece: int64[m], number of the range in the track; several rows can need one.
        file: int64[m], number of its file in `Track.paths`.
        begin, end: int64[m], the range in bytes.
    """

    row: Int64s
    piece: Int64s
    file: Int64s
    begin: Int64s
    end: Int64s


Blocks = Mapping[int, bytes]
"""Number of a range in its track -> its bytes."""


class Track(ABC):
    """A column of a file.

    Attributes:
        paths: paths of the files that its ranges lie in.
        name: what it is called there, for errors.
    """

    paths: Sequence[str]
    name: str

    @abstractmethod
    def pieces(self, rows: Int64s) -> Pieces:
        """Return what must be read for rows, int64[n]."""

    @abstractmethod
    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:
        """Return the values of rows, in their order.

        Args:
            blocks: bytes of `pieces`.
            read: reads a range that was cached when `pieces` was asked, and is not any more: file, begin and end.

        Raises:
            DataError: the bytes do not match the index.
        """


class Chunks(NamedTuple):
    """Where the chunks of an array lie, in the order of its grid (the last axis fastest).

    Attributes:
        file, begin, size: int64[chunks]; `begin` is `ABSENT` for a chunk that was never written.
        mask: int64[chunks], bits of the filters that a chunk was written without.
    """

    file: Int64s
    begin: Int64s
    size: Int64s
    mask: Int64s


Decoder = Callable[[bytes, int, int], Any]
"""(stored bytes, bytes of the decoded chunk, mask) -> a buffer of that size, or an array of the chunk's shape. Raises
`ValueError`."""


class ArrayTrack(Track):
    """An array whose first axis counts steps.

    Args:
        dtype: of the stored values.
        shape: axes of the array.
        chunk: axes of a chunk; those at the edges are as large.
        chunks: where they lie.
        decode: makes the values of a chunk from its stored bytes; None if these are the values.
        fill: value of chunks that were never written.
        cache, key: cache of decoded rows of chunks, and what identifies the array there.
        fail: makes the error for a corrupt chunk: from the file, its offset and the reason.
        fortran: whether the values of a chunk are in Fortran order.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        dtype: np.dtype[Any],
        shape: Sequence[int],
        chunk: Sequence[int],
        chunks: Chunks,
        decode: Decoder | None,
        fill: Any,
        cache: BlockCache,
        key: Hashable,
        fail: Callable[[int, int, str], DataError],
        *,
        fortran: bool = False,
    ) -> None:
        self.name, self.paths, self.dtype, self.shape, self.chunk = name, paths, dtype, tuple(shape), tuple(chunk)
        self.chunks, self._decode, self._fill, self._fail = chunks, decode, fill, fail
        self._cache, self._key, self._fortran = cache, key, fortran
        self._grid = [-(-size // step) for size, step in zip(self.shape[1:], self.chunk[1:], strict=True)]
        self._across = math.prod(self._grid)
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self._alone = decode is None and self._across == 1 and self.chunk[1:] == self.shape[1:] and not fortran

    def pieces(self, rows: Int64s) -> Pieces:
        slabs = rows // self.chunk[0]
        if self._alone:
            begin = self.chunks.begin[slabs]
            there = np.flatnonzero(begin != ABSENT)
            first = (begin + rows % self.chunk[0] * self._row_bytes)[there]
            return Pieces(there, rows[there], self.chunks.file[slabs[there]], first, first + self._row_bytes)
        cached = {slab: self._key_of(slab) in self._cache for slab in set(slabs.tolist())}
        wanted = np.flatnonzero([not cached[slab] for slab in slabs.tolist()])
        numbers = (slabs[wanted][:, None] * self._across + np.arange(self._across)).ravel()
        which = np.repeat(wanted, self._across)
        there = self.chunks.begin[numbers] != ABSENT
        numbers, which = numbers[there], which[there]
        begin = self.chunks.begin[numbers]
        return Pieces(which, numbers, self.chunks.file[numbers], begin, begin + self.chunks.size[numbers])

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:
        if self._alone:
            return [self._value(blocks.get(row)) for row in rows.tolist()]
        out = []
        for row in rows.tolist():
            slab, at = divmod(row, self.chunk[0])
            values = self._cache.get(self._key_of(slab), partial(self._slab, slab, blocks, read))[at]
            out.append(values.copy() if self.shape[1:] else values.item())
        return out

    def _value(self, block: bytes | None) -> Any:
        shape = self.shape[1:]
        if block is None:
            found = np.full(shape, self._fill, self.dtype)
        else:
            found = np.frombuffer(block, self.dtype).reshape(shape)
        if not shape:
            return found.item()
        return np.array(found, self.dtype.newbyteorder("="))

    def _key_of(self, slab: int) -> Hashable:
        return self._key, slab

    def _slab(self, slab: int, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> tuple[Any, int]:
        """Return the values of the rows of a row of chunks, and their bytes in memory."""
        rows = min(self.chunk[0], self.shape[0] - slab * self.chunk[0])
        size = rows * self._row_bytes
        stored = int(self.chunks.size[slab * self._across : (slab + 1) * self._across].sum())
        if size > (limit := max_unpacked(stored)):
            raise too_large(limit, file=self.paths[0], record=self.name)
        out = np.full((rows, *self.shape[1:]), self._fill, self.dtype.newbyteorder("="))
        each = self.dtype.itemsize * math.prod(self.chunk)
        for number, corner in enumerate(itertools.product(*map(range, self._grid))):
            place = slab * self._across + number
            begin = int(self.chunks.begin[place])
            if begin == ABSENT:
                continue
            file, end = int(self.chunks.file[place]), begin + int(self.chunks.size[place])
            block = blocks[place] if place in blocks else read(file, begin, end)
            try:
                made = block if self._decode is None else self._decode(block, each, int(self.chunks.mask[place]))
                if isinstance(made, np.ndarray) and made.shape == self.chunk and made.dtype == out.dtype:
                    values = made  # which is not the bytes of a chunk, but of pictures
                else:
                    values = np.frombuffer(made, self.dtype)
                    values = values.reshape(self.chunk, order="F" if self._fortran else "C")
            except ValueError as error:
                raise self._fail(file, begin, f"a chunk of {self.name!r} cannot be read: {error}") from None
            first = [at * step for at, step in zip(corner, self.chunk[1:], strict=True)]
            lasts = [min(step, s - at) for at, step, s in zip(first, self.chunk[1:], self.shape[1:], strict=True)]
            inside = tuple(slice(0, last) for last in (rows, *lasts))
            target = (slice(0, rows), *(slice(at, at + last) for at, last in zip(first, lasts, strict=True)))
            out[target] = values[inside]
        return out, out.nbytes


class BlobTrack(Track):
    """A value of any length per row, each at a place of its own.

    Args:
        file, begin, size: int64[rows].
        make: makes a value from its bytes. Raises `ValueError`.
        fail: as in `ArrayTrack`.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        file: Int64s,
        begin: Int64s,
        size: Int64s,
        make: Callable[[bytes], Any],
        fail: Callable[[int, int, str], DataError],
    ) -> None:
        self.name, self.paths, self._file, self._begin, self._size = name, paths, file, begin, size
        self._make, self._fail = make, fail

    def pieces(self, rows: Int64s) -> Pieces:
        there = np.flatnonzero(self._size[rows])
        wanted = rows[there]
        begin = self._begin[wanted]
        return Pieces(there, wanted, self._file[wanted], begin, begin + self._size[wanted])

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:  # noqa: ARG002
        out = []
        for row in rows.tolist():
            try:
                out.append(self._make(blocks.get(row, b"")))
            except ValueError as error:
                where = int(self._file[row]), int(self._begin[row])
                raise self._fail(*where, f"the value of {self.name!r} cannot be read: {error}") from None
        return out


class MadeTrack(Track):
    """A track whose values are made into others, such as rows padded with zeros into images.

    Args:
        make: makes a value of the inner track's value. Raises `ValueError`.
        fail: as in `ArrayTrack`.
    """

    def __init__(self, inner: Track, make: Callable[[Any], Any], fail: Callable[[int, int, str], DataError]) -> None:
        self.name, self.paths, self._inner, self._make, self._fail = inner.name, inner.paths, inner, make, fail

    def pieces(self, rows: Int64s) -> Pieces:
        return self._inner.pieces(rows)

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:
        try:
            return list(map(self._make, self._inner.values(rows, blocks, read)))
        except ValueError as error:
            raise self._fail(0, 0, f"the value of {self.name!r} cannot be read: {error}") from None


def unpadded(row: npt.NDArray[np.uint8]) -> bytes:
    """Return the bytes of a file behind which a row has zeros. Neither JPEG nor PNG files end in one."""
    return row.tobytes().rstrip(b"\0")


def as_text(value: Any) -> str:
    """Return bytes as text. Raises `ValueError` if they are not UTF-8."""
    return value if isinstance(value, str) else bytes(value).rstrip(b"\0").decode()


def is_image(data: bytes) -> bool:
    """Return whether bytes begin as a file of an image does."""
    return data.startswith(_MAGIC)


def corrupt(file: str, offset: int, what: str) -> DataError:
    """Return the error for bytes that do not match the index."""
    return DataError(what, file=file, offset=offset, kind="bad-data", fix=copy_again())
