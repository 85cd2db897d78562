"""The unpacked bytes of a web archive, in order, with the place of each gzip member.

Archives are plain, zstd, or gzip: one member for each record, or any other division. The first bytes decide. Behind a
corrupt gzip member, reading continues at the next member that begins with a WARC record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from isal import isal_zlib

from feedmill.errors import DataError
from feedmill.storage.codec import ZSTD, unpacked

BEGIN = b"WARC/"
"""First bytes of every record."""
_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_BAD: Any = isal_zlib.IsalError
_STEP = 1 << 18
_MOST = 1 << 20
_HEADER = 31  # wbits of zlib
_FLAGS, _EXTRA, _LENGTH = 3, 4, slice(10, 12)
_LONGEST_EXTRA = 256
"""Largest extra field of a member, in bytes; archives have 8 to 12. A corrupt flag would skip up to 64 KiB."""


class Chunk(NamedTuple):
    """Unpacked bytes that follow those before.

    Attributes:
        data: the bytes; empty for a break.
        offset: offset in the file of the gzip member that begins with this chunk; None if none begins.
        broken: why the bytes before do not continue, from the beginning of the member at `offset` on; empty if they do.
    """

    data: bytes
    offset: int | None = None
    broken: str = ""


def chunks(raw: BinaryIO, file: str) -> Iterator[Chunk]:
    """Yield the unpacked bytes of an archive, at most a megabyte at a time.

    Args:
        raw: the stored file.
        file: path or URL, for errors.
    """
    first = raw.read(_STEP)
    if first.startswith(_ZSTD):
        yield from _unpacked(_Prefixed(first, raw), file)
    elif not first.lstrip().startswith(BEGIN) and _GZIP in first:  # even if the first member is corrupt
        yield from _Members(raw, first).chunks()
    else:
        while first:
            yield Chunk(first)
            first = raw.read(_STEP)


def _unpacked(raw: Any, file: str) -> Iterator[Chunk]:
    try:
        with unpacked(raw, ZSTD, file=file) as stream:
            while data := stream.read(_MOST):
                yield Chunk(data)
    except DataError as error:
        yield Chunk(b"", None, error.what)


class _Prefixed:
    """A file whose first bytes were read already."""

    def __init__(self, first: bytes, raw: BinaryIO) -> None:
        self._first, self._raw = first, raw

    def read(self, size: int = -1) -> bytes:
        if not self._first:
            return self._raw.read(size)
        data = self._first if size < 0 else self._first[:size]
        self._first = self._first[len(data) :]
        return data + self._raw.read(-1) if size < 0 else data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return False

    def close(self) -> None:
        """Leave the file to its owner."""


class _Members:
    """Reader of gzip members. `_data` is read and not yet used; it begins at `_at` in the file."""

    def __init__(self, raw: BinaryIO, first: bytes) -> None:
        self._raw, self._data, self._at = raw, first, 0

    def chunks(self) -> Iterator[Chunk]:
        while self._data or self._fill():
            if self._data[:1] == b"\0":  # padding behind the last member
                self._skip(len(self._data) - len(self._data.lstrip(b"\0")))
                continue
            begin = self._at
            try:
                yield from self._member(begin)
            except (_BAD, EOFError) as error:
                yield Chunk(b"", begin, str(error) or type(error).__name__)
                if self._at == begin:
                    self._skip(1)
                self._seek_member()

    def _member(self, begin: int) -> Iterator[Chunk]:
        while len(self._data) < _LENGTH.stop and self._fill():
            pass
        extra = self._data[:_FLAGS] == _GZIP and self._data[_FLAGS : _FLAGS + 1] and self._data[_FLAGS] & _EXTRA
        if extra and int.from_bytes(self._data[_LENGTH], "little") > _LONGEST_EXTRA:
            raise EOFError("the header of the gzip member has a field that is too long")
        stream = isal_zlib.decompressobj(_HEADER)
        offset: int | None = begin
        while not stream.eof:
            ended = not self._data and not self._fill()
            data = stream.decompress(self._data, _MOST)
            left = stream.unused_data if stream.eof else stream.unconsumed_tail
            self._skip(len(self._data) - len(left))
            if ended and not data and not stream.eof:
                raise EOFError("the file ends within a gzip member")
            if data or offset is not None:
                yield Chunk(data, offset)
                offset = None

    def _seek_member(self) -> None:
        """Go to the next member that begins with a WARC record, or to the end."""
        while True:
            at = self._data.find(_GZIP)
            if at < 0:
                self._skip(max(0, len(self._data) - len(_GZIP) + 1))
                if not self._fill():
                    self._skip(len(self._data))
                    return
                continue
            self._skip(at)
            while len(self._data) < _STEP and self._fill():  # enough to unpack the first bytes
                pass
            if _begins_record(self._data[:_STEP]):
                return
            self._skip(1)

    def _skip(self, count: int) -> None:
        self._data, self._at = self._data[count:], self._at + count

    def _fill(self) -> bool:
        more = self._raw.read(_STEP)
        self._data += more
        return bool(more)


def _begins_record(data: bytes) -> bool:
    try:
        return isal_zlib.decompressobj(_HEADER).decompress(data, len(BEGIN)).startswith(BEGIN)
    except (_BAD, EOFError):
        return False
