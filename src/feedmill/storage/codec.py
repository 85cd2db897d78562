"""Compressed streams: gzip and zstd by the file's suffix, read and written by the fastest library that is kept well.

gzip is read and written through ISA-L (several members in one file are one stream); zstd through the standard library
(Python 3.14) or its backport. What is written depends on the bytes and the level alone: no names, no times. ISA-L's
levels 1 and 2 are left out for that: now and then another process gets other bytes from them (seen in isal 1.9.1).
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

from isal import igzip, isal_zlib

from feedmill.errors import ConfigError, DataError
from feedmill.storage.limits import max_unpacked, too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_DAMAGE: tuple[Any, ...] = (EOFError, zlib.error, isal_zlib.IsalError, zstd.ZstdError, igzip.BadGzipFile)
_BAD_GZIP: Any = isal_zlib.IsalError
PLAIN, GZIP, ZSTD = "", "gz", "zst"
KINDS = (PLAIN, GZIP, ZSTD)
_SUFFIXES = {".gz": GZIP, ".gzip": GZIP, ".zst": ZSTD, ".zstd": ZSTD}
_LEVELS: dict[str, Sequence[int]] = {GZIP: (0, 3), ZSTD: range(-7, 23)}
_DEFAULT_LEVEL = {GZIP: 0, ZSTD: 3}
_GZIP_HEADER = 31  # wbits of zlib
_BLOCK = 1 << 20


def compression(path: str) -> str:
    """How a file of this name is compressed: ``"gz"``, ``"zst"`` or ``""``."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), PLAIN)


@contextlib.contextmanager
def unpacked(raw: BinaryIO, kind: str, *, file: str) -> Iterator[BinaryIO]:
    """The stream without its compression; `file` is named where it is damaged.

    Raises:
        DataError: of kind ``bad-compression``, also from reads inside the block.
    """
    _check(kind)
    try:
        if kind == GZIP:
            with igzip.open(raw, "rb") as stream:
                yield cast(BinaryIO, stream)
        elif kind == ZSTD:
            with zstd.open(raw, "rb") as stream:
                yield cast(BinaryIO, stream)
        else:
            yield raw
    except _DAMAGE as error:
        raise DataError(
            f"the compressed file is damaged or cut short ({error})",
            file=file,
            kind="bad-compression",
            fix="Copy it again, or compress it again.",
        ) from None


def gunzip(data: bytes, *, file: str | None = None, record: str | None = None) -> bytes:
    """The content of gzip members one after another, which may be followed by zeros, as `gzip.decompress` gives it.

    Raises:
        DataError: of kind ``too-large``, before more than the limit is unpacked.
        OSError, EOFError: it is no gzip, is damaged or is cut.
    """
    limit, done, rest = max_unpacked(len(data)), list[bytes](), data
    left = limit
    while rest:
        stream = isal_zlib.decompressobj(_GZIP_HEADER)
        try:
            done.append(stream.decompress(rest, left + 1))
        except _BAD_GZIP as error:
            raise OSError(str(error)) from None
        left -= len(done[-1])
        if left < 0:
            raise too_large(limit, file=file, record=record)
        if not stream.eof:
            raise EOFError("it ends within compressed data")
        rest = stream.unused_data.lstrip(b"\0")
    return done[0] if len(done) == 1 else b"".join(done)


def read_within(stream: BinaryIO, limit: int, *, file: str | None = None) -> bytes:
    """All that an unpacked stream has. Raises `DataError` of kind ``too-large`` once that is more than `limit`."""
    done, size = list[bytes](), 0
    while block := stream.read(_BLOCK):
        size += len(block)
        if size > limit:
            raise too_large(limit, file=file)
        done.append(block)
    return b"".join(done)


@contextlib.contextmanager
def packed(raw: BinaryIO, kind: str, level: int | None = None) -> Iterator[BinaryIO]:
    """A stream that compresses what is written to it into `raw`, finished when the block ends.

    Args:
        kind: ``"gz"`` (levels 0, fast, and 3, small), ``"zst"`` (-7 to 22) or ``""``.
        level: 0 for gzip and 3 for zstd by default, each the one that is fast for its size.
    """
    _check(kind)
    if kind == PLAIN:
        yield raw
        return
    level = _DEFAULT_LEVEL[kind] if level is None else level
    if level not in _LEVELS[kind]:
        known = "0 or 3" if kind == GZIP else "-7 to 22"
        raise ConfigError(f"there is no level {level} of .{kind} compression here", fix=f"Use {known}.")
    stream: Any
    if kind == GZIP:
        stream = igzip.IGzipFile(filename="", mode="wb", compresslevel=level, fileobj=raw, mtime=0)
    else:
        stream = zstd.ZstdFile(raw, "wb", level=level)
    with stream:
        yield stream


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"compression {kind!r} is unknown", fix="Use 'gz', 'zst' or '' for none.")
