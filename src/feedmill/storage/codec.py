"""Compressed streams: gzip, zstd, bzip2 and xz, each with the fastest maintained library.

`compression` returns the kind of a file by its suffix; `unpacked` and `packed` open a stream of that kind, and
`unpacked_members` reads from any member on. gzip uses ISA-L; zstd uses the standard library (Python 3.14) or its
backport; bzip2 and xz use the standard library. Several members in one file are one stream; anything else behind a
member is an error. The output only depends on the bytes and the level: it has no names and
no times. ISA-L's levels 1 and 2 are not used because their output sometimes differs between processes (seen in
isal 1.9.1).
"""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

from isal import igzip, igzip_lib, isal_zlib

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.storage.base import Store
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import HEAD, Content, content_of, damaged

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_CORRUPT: tuple[Any, ...] = (
    EOFError,
    zlib.error,
    isal_zlib.IsalError,
    zstd.ZstdError,
    igzip.BadGzipFile,
    lzma.LZMAError,
)
"""What the libraries raise for corrupt data, besides `OSError` of bz2."""
_BAD_GZIP: Any = isal_zlib.IsalError
PLAIN, GZIP, ZSTD, BZIP2, XZ = "", "gz", "zst", "bz2", "xz"
KINDS = (PLAIN, GZIP, ZSTD, BZIP2, XZ)
_SUFFIXES = {".gz": GZIP, ".gzip": GZIP, ".zst": ZSTD, ".zstd": ZSTD, ".bz2": BZIP2, ".xz": XZ}
_LEVELS: dict[str, Sequence[int]] = {GZIP: (0, 3), ZSTD: range(-7, 23), BZIP2: range(1, 10), XZ: range(10)}
_DEFAULT_LEVEL = {GZIP: 0, ZSTD: 3, BZIP2: 9, XZ: 1}
_UNSUPPORTED = {  # in messages of the libraries
    "Dictionary mismatch": "a dictionary, without which it cannot be read",
    "Unsupported integrity check": "a kind of checksum that this xz library does not know",
    "Unsupported options": "filters that this xz library does not know",
}
_WINDOW: dict[int, int] = {
    zstd.DecompressionParameter.window_log_max: zstd.DecompressionParameter.window_log_max.bounds()[1]
}
"""Frames of any window are read: ``zstd --long=31`` has one of 2 GiB, of which only what the frame holds is used."""
_GZIP_HEADER = 31  # wbits of zlib
_PADDING = 4  # between xz streams, in bytes
_BLOCK = 1 << 20


def compression(path: str) -> str:
    """Return the compression of a file by its suffix: one of `KINDS`."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), PLAIN)


def missing_file(store: Store, path: str, noun: str = "file", **more: Any) -> NotFound:
    """Return the error for a file that does not exist; it names the same file compressed, or unpacked, if that does.

    Args:
        store: its folder; `path` is its path there.
        noun: what it might be.
        more: other fields of the error.
    """
    plain = next((path[: -len(suffix)] for suffix in _SUFFIXES if path.endswith(suffix)), path)
    there = [each for each in (plain, *(plain + suffix for suffix in _SUFFIXES)) if each != path and store.exists(each)]
    what, fix = f"there is no such {noun}", "Check the path."
    if there:
        name = there[0].rpartition("/")[2]
        what, fix = f"{what}, but there is {name!r} beside it", "Give that name, if it is meant."
    return NotFound(what, **{"file": store.locate(path), "fix": fix, **more})


@contextlib.contextmanager
def unpacked(raw: BinaryIO, kind: str, *, file: str) -> Iterator[BinaryIO]:
    """Open a decompressing stream.

    Args:
        raw: the compressed file.
        kind: one of `KINDS`.
        file: path or URL, for errors.

    Raises:
        DataError: of kind ``bad-compression`` if the file is corrupt, ``other-compression`` if it has another content
            than its name says, or needs what is not there; also from reads inside the block.
    """
    _check(kind)
    with _reported(raw, kind, file):
        if kind == GZIP:
            with igzip.open(raw, "rb") as stream:
                yield cast(BinaryIO, stream)
                # Which gzip takes for no members. Whoever reads may have closed it.
                if not stream.closed and stream.tell() == 0 and raw.tell() == 0 and not raw.read(1):
                    raise EOFError("it is empty")
        elif kind == ZSTD:
            with zstd.open(raw, "rb", options=_WINDOW) as stream:
                yield cast(BinaryIO, stream)
        elif kind in (BZIP2, XZ):
            with io.BufferedReader(_Members(raw, kind), _BLOCK) as stream:
                yield stream
        else:
            yield raw


@contextlib.contextmanager
def _reported(raw: BinaryIO, kind: str, file: str) -> Iterator[None]:
    """In a block, raise what the libraries raise for corrupt data as `DataError`."""
    try:
        yield
    except _CORRUPT as error:
        raise _unreadable(raw, kind, file, error) from None
    except OSError as error:
        if kind != BZIP2 or error.errno is not None:  # for corrupt data, bz2 raises it without errno
            raise
        raise _unreadable(raw, kind, file, error) from None


def unpacked_members(raw: BinaryIO, kind: str, size: int, *, file: str) -> Iterator[tuple[bytes, int | None]]:
    """Yield the content of a compressed file from its position on, where a member or frame of it must begin.

    Args:
        raw: the file.
        kind: one of `KINDS`.
        size: maximum number of bytes at once.
        file: path or URL, for errors.

    Yields:
        Bytes of the content; and where the next member begins if it begins after them, counted from the position at
        first; otherwise None. Of a file that is not compressed, one begins after any bytes.

    Raises:
        DataError: as `unpacked`.
    """
    _check(kind)
    with _reported(raw, kind, file):
        if kind != PLAIN:
            members = _Members(raw, kind)
            while data := members.read(size):
                yield data, members.next_at
            return
        at = 0
        while data := raw.read(size):
            at += len(data)
            yield data, at


class _Members(io.RawIOBase):
    """The content of the members of a compressed file; `bz2.open` and `lzma.open` drop all after a corrupt one.

    Between xz streams, and behind the last one, zeros are padding if their number is a multiple of four; behind members
    of gzip, any number of them.
    """

    def __init__(self, raw: BinaryIO, kind: str) -> None:
        self._raw, self._kind, self._read = raw, kind, 0
        self._stream, self._rest = self._new(), b""

    def _new(self) -> Any:
        if self._kind == GZIP:
            return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        if self._kind == ZSTD:
            return zstd.ZstdDecompressor(options=_WINDOW)
        return bz2.BZ2Decompressor() if self._kind == BZIP2 else lzma.LZMADecompressor(format=lzma.FORMAT_XZ)

    @property
    def next_at(self) -> int | None:
        """Offset of the next member if the current one has ended; None if that is not known."""
        rest = self._stream.unused_data if self._stream.eof else b""
        return None if rest[:1] in (b"", b"\0") else self._read - len(rest)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._stream.eof or self._begin_next():
            data = b""
            if self._stream.needs_input:
                data, self._rest = self._rest or self._more(), b""
                if not data:
                    raise EOFError("it ends within compressed data")
            if found := self._stream.decompress(data, len(view)):
                view[: len(found)] = found
                return len(found)
        return 0

    def _more(self) -> bytes:
        data = self._raw.read(_BLOCK)
        self._read += len(data)
        return data

    def _begin_next(self) -> bool:
        """Begin the next member; return False at the end of the file."""
        rest, zeros = self._stream.unused_data, 0
        while rest := rest or self._more():
            size = len(rest)
            rest = rest.lstrip(b"\0") if self._kind in (XZ, GZIP) else rest
            zeros += size - len(rest)
            if rest:
                break
        if zeros % _PADDING and self._kind == XZ:
            raise lzma.LZMAError(f"{zeros:,} zeros after a stream")
        if rest:
            self._stream, self._rest = self._new(), rest
        return bool(rest)


def _unreadable(raw: BinaryIO, kind: str, file: str, error: BaseException) -> DataError:
    """Return the error for a stream that cannot be unpacked, by its cause."""
    for words, what in _UNSUPPORTED.items():
        if words in str(error):
            return DataError(
                f"the file is compressed with {what}",
                file=file,
                kind="other-compression",
                fix="Decompress it with the tool that made it, and compress it again with default settings.",
            )
    found = _content(raw)
    if found is not None and found.name != kind:
        return DataError(
            f"the suffix says {kind}, but the file holds {found.name}",
            file=file,
            kind="other-compression",
            fix=found.fix,
        )
    what = f"the compressed file is corrupt or truncated ({error})"
    return damaged(what, file=file, kind="bad-compression", instead="compress it again")


def _content(raw: BinaryIO) -> Content | None:
    """Return what the first bytes of a file say that it is; None if they say nothing, or cannot be read again."""
    try:
        raw.seek(0)
        return content_of(raw.read(HEAD))
    except (OSError, ValueError, AttributeError, FeedmillError):  # a stream may not be able to go back
        return None


def gunzip(data: bytes, *, file: str | None = None, record: str | None = None) -> bytes:
    """Return the content of concatenated gzip members, optionally followed by zeros, as `gzip.decompress` does.

    Raises:
        DataError: of kind ``too-large``, before more than the limit is unpacked.
        OSError, EOFError: the data is not gzip, is corrupt, or is truncated.
    """
    limit, blocks, rest = max_unpacked(len(data)), list[bytes](), data
    remaining = limit
    while rest:
        stream = isal_zlib.decompressobj(_GZIP_HEADER)
        try:
            blocks.append(stream.decompress(rest, remaining + 1))
        except _BAD_GZIP as error:
            raise OSError(str(error)) from None
        remaining -= len(blocks[-1])
        if remaining < 0:
            raise too_large(limit, file=file, record=record)
        if not stream.eof:
            raise EOFError("it ends within compressed data")
        rest = stream.unused_data.lstrip(b"\0")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def inflate(data: bytes | memoryview, size: int, *, gzip: bool = False) -> bytes:
    """Return zlib data, or one gzip member, that unpack to `size` bytes. Raises `ValueError` for any other."""
    return _whole(zlib.decompressobj(_GZIP_HEADER if gzip else zlib.MAX_WBITS), data, size)


def unzstd(data: bytes | memoryview, size: int) -> bytes:
    """Return one zstd frame that unpacks to `size` bytes. Raises `ValueError` for any other."""
    return _whole(zstd.ZstdDecompressor(options=_WINDOW), data, size)


def _whole(unpacker: Any, data: bytes | memoryview, size: int) -> bytes:
    try:
        found = cast(bytes, unpacker.decompress(data, size + 1))
    except _CORRUPT as error:
        raise ValueError(f"the compressed data are corrupt ({error})") from None
    if len(found) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"the compressed data do not end after {size:,} unpacked bytes")
    return found


def read_within(stream: BinaryIO, limit: int, *, file: str | None = None) -> bytes:
    """Read an unpacked stream to its end. Raises `DataError` of kind ``too-large`` beyond `limit` bytes."""
    blocks, size = list[bytes](), 0
    while block := stream.read(_BLOCK):
        size += len(block)
        if size > limit:
            raise too_large(limit, file=file)
        blocks.append(block)
    return b"".join(blocks)


@contextlib.contextmanager
def packed(raw: BinaryIO, kind: str, level: int | None = None) -> Iterator[BinaryIO]:
    """Open a stream that compresses the bytes written to it into `raw`. It is finished when the block ends.

    Args:
        kind: ``"gz"`` (levels 0, fast, and 3, small), ``"zst"`` (-7 to 22), ``"bz2"`` (1 to 9), ``"xz"`` (0 to 9) or
            ``""``.
        level: by default 0 for gzip, 3 for zstd, 9 for bzip2 and 1 for xz.
    """
    _check(kind)
    if kind == PLAIN:
        yield raw
        return
    level = _DEFAULT_LEVEL[kind] if level is None else level
    if level not in _LEVELS[kind]:
        levels = "0 or 3" if kind == GZIP else f"{min(_LEVELS[kind])} to {max(_LEVELS[kind])}"
        raise ConfigError(f"level {level} of .{kind} compression is not supported", fix=f"Use {levels}.")
    stream: Any
    if kind == GZIP:
        stream = igzip.IGzipFile(filename="", mode="wb", compresslevel=level, fileobj=raw, mtime=0)
    elif kind == BZIP2:
        stream = bz2.BZ2File(raw, "wb", compresslevel=level)
    elif kind == XZ:
        stream = lzma.LZMAFile(raw, "wb", preset=level)  # noqa: SIM115 - closed below
    else:
        stream = zstd.ZstdFile(raw, "wb", level=level)
    with stream:
        yield stream


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"compression {kind!r} is unknown", fix="Use 'gz', 'zst', 'bz2', 'xz' or '' for none.")
