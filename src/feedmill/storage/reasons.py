"""Why a file cannot be read. Only `copy_again` says "Copy it again": a whole file gets the reason that it has.

A library's exception says that it failed, seldom why: a file of another format, one that a server sent as an error
page, and one that lacks its end all raise the same. So the first bytes are asked before a file is called damaged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from feedmill.errors import DataError

HEAD = 512
"""Bytes of a file's beginning that `content_of` looks at."""
_RENAME = "Rename it, or check the path."
_UNPACK = "Unpack it with the tool that made it."
_SERVER = "A server may have sent an error page instead of the file: look at it, and download the file itself."
_POINTER = "Fetch the file itself: 'git lfs pull'."
_MAGIC = (
    (b"\x1f\x8b", "gz", _RENAME),
    (b"\x28\xb5\x2f\xfd", "zst", _RENAME),
    (b"BZh", "bz2", _RENAME),
    (b"\xfd7zXZ\0", "xz", _RENAME),
    (b"\x04\x22\x4d\x18", "lz4", _UNPACK),
    (b"\xff\x06\0\0sNaPpY", "snappy", _UNPACK),
    (b"\x1f\x9d", "data packed by 'compress'", _UNPACK),
    (b"\x5d\0\0", "data packed by 'lzma'", _UNPACK),
    (b"PK\x03\x04", "zip", _RENAME),
    (b"PK\x05\x06", "zip", _RENAME),
    (b"7z\xbc\xaf\x27\x1c", "7z", _UNPACK),
    (b"Rar!", "rar", _UNPACK),
    (b"PAR1", "Parquet", _RENAME),
    (b"PARE", "an encrypted Parquet file", _RENAME),
    (b"ARROW1", "Arrow", _RENAME),
    (b"FEA1", "Feather of version 1", _RENAME),
    (b"\x93NUMPY", "an array saved by numpy (.npy)", _RENAME),
    (b"\x89HDF\r\n\x1a\n", "HDF5", _RENAME),
    (b"SQLite format 3\0", "SQLite", _RENAME),
    (b"MMIDIDX\0\0", "an index of Megatron-LM", _RENAME),
    (b"TNTIDX\0\0", "an index of fairseq", _RENAME),
    (b"%PDF", "PDF", _RENAME),
    (b"\x89PNG\r\n\x1a\n", "a PNG image", _RENAME),
    (b"\xff\xd8\xff", "a JPEG image", _RENAME),
    (b"WARC/", "a web archive (WARC)", _RENAME),
    (b"\xff\xfe", "text in UTF-16", "Write it as UTF-8."),
    (b"\xfe\xff", "text in UTF-16", "Write it as UTF-8."),
    (b"version https://git-lfs", "a pointer of Git LFS", _POINTER),
)
_LAX = ((b"<!doctype html", "HTML", _SERVER), (b"<html", "HTML", _SERVER), (b"<?xml", "XML", _SERVER))
_OLD_ZSTD = range(0x22, 0x28)
_TEXT = bytes(range(32, 127)) + b"\t\r\n"
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


class Content(NamedTuple):
    """What a file holds by its first bytes, and what to do with it."""

    name: str
    fix: str


def content_of(begin: bytes) -> Content | None:
    """Return what the first `HEAD` bytes of a file say that it is; None if they say nothing.

    >>> content_of(b"PAR1...").name, content_of(b"<html>404</html>").name, content_of(bytes(9))
    ('Parquet', 'HTML', None)
    """
    for magic, name, fix in _MAGIC:
        if begin.startswith(magic):
            return Content(name, fix)
    for magic, name, fix in _LAX:
        if begin.lstrip()[: len(magic)].lower() == magic:
            return Content(name, fix)
    if begin[257:262] == b"ustar":
        return Content("tar", _RENAME)
    if begin[:1] and begin[0] in _OLD_ZSTD and begin[1:4] == b"\xb5\x2f\xfd":
        return Content("zstd of before its version 1", _UNPACK)
    if begin[8:10] == b'{"' and int.from_bytes(begin[:8], "little") < 1 << 40:
        return Content("safetensors", _RENAME)
    if begin[:2] in _ZLIB:
        return Content("a stream of zlib", _UNPACK)
    if begin[:1] == b"\x80" and begin[1:2] in b"\x02\x03\x04\x05" and len(begin) > 1:
        return Content("a pickle of Python", _RENAME)
    if begin[:16].strip() and not begin[:16].translate(None, _TEXT):
        return Content("text", _RENAME)
    return None


def instead_of_data(begin: bytes) -> str:
    """Return what a download left in the place of data, in parentheses: a pointer or an error page; empty for others.

    >>> instead_of_data(b"<html>404</html>"), instead_of_data(b"no data")
    (' (it is HTML)', '')
    """
    found = content_of(begin)
    return f" (it is {found.name})" if found is not None and found.fix in (_POINTER, _SERVER) else ""


def other_format(begin: bytes, *known: str, file: str | None = None) -> DataError | None:
    """Return the error for a file whose first bytes say that it is another one; None if they do not.

    Args:
        begin: its first `HEAD` bytes.
        known: names of `content_of` that were expected.
    """
    found = content_of(begin)
    if found is None or found.name in known:
        return None
    return DataError(
        f"the file holds {found.name}, not what its name says", file=file, kind="other-format", fix=found.fix
    )


def unreadable(begin: bytes, *known: str, what: str, kind: str, file: str | None = None, **more: Any) -> DataError:
    """Return the error for a file that a reader refuses: that it is empty, or another one; else that it is `damaged`.

    Args:
        begin: its first `HEAD` bytes; empty for an empty file.
        known: names of `content_of` that were expected.
    """
    if not begin:
        fix = "Write it again, or leave it out."
        return DataError("the file is empty (0 bytes)", file=file, kind="empty-file", fix=fix)
    return other_format(begin, *known, file=file) or damaged(what, kind=kind, file=file, **more)


def damaged(what: str, *, kind: str, instead: str = "", **more: Any) -> DataError:
    """Return the error for a file that is not as it was written.

    Args:
        instead: as in `copy_again`.
        more: `file`, `record` and `offset` of the error.
    """
    return DataError(what, kind=kind, fix=copy_again(instead=instead), **more)


def copy_again(it: str = "it", instead: str = "") -> str:
    """Return the fix for what is not as it was written, and for nothing else.

    Args:
        it: what must be copied.
        instead: what else helps.

    >>> copy_again("both files", "tokenize again")
    'Copy both files again, or tokenize again.'
    """
    return f"Copy {it} again{f', or {instead}' if instead else ''}."
