"""Read and write files of documents: JSON lines, plain or compressed, in the folder layout of Dolma.

Layout: ``<dataset>/documents/<any tree>/*.jsonl.gz`` and, for each attribute set, the same tree below
``<dataset>/attributes/<name>/``: row n of an attribute file belongs to row n of the document file. Only the byte 0x0A
ends a row (U+2028 and carriage returns occur inside rows); the last row may lack it.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import BinaryIO, cast

import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError
from feedmill.storage import Store
from feedmill.storage.codec import compression, packed, unpacked
from feedmill.storage.hashed import HashedReader, HashedWriter
from feedmill.storage.limits import max_unpacked, too_large

BLOCK = 1 << 20
_GATHERED = 1 << 16
DOCUMENTS, ATTRIBUTES = "documents", "attributes"
_ESCAPES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
"""An escape of JSON: a surrogate pair, a lone surrogate (the group), or any other."""


def read_rows(
    store: Store, path: str, *, kind: str | None = None, advance: Callable[[int], None] | None = None
) -> Iterator[list[bytes]]:
    """Return the rows of a file without their line ends, about a megabyte at a time.

    Arguments and errors are those of `read_lines`.
    """
    return map(rows_of, read_lines(store, path, kind=kind, advance=advance, json=True))


def read_lines(
    store: Store,
    path: str,
    *,
    kind: str | None = None,
    advance: Callable[[int], None] | None = None,
    hashed: Callable[[str], None] | None = None,
    json: bool = False,
) -> Generator[bytes, None, None]:
    """Yield the rows of a file with their line ends, about a megabyte at a time; the last row may lack its line end.

    Args:
        kind: the compression (``"gz"``, ``"zst"``, ``""``); by default, that of the file's suffix.
        advance: called with the number of stored bytes read.
        hashed: called at the end with the 128-bit xxh3 of the stored bytes.
        json: reject a file that does not begin like JSON lines, with an error that names its format.

    Raises:
        NotFound, StorageError: the file does not exist or cannot be read.
        DataError: the compressed data is corrupt, or a row decompresses to more than the limit.
    """
    kind = compression(path) if kind is None else kind
    with (
        store.local_copy(path) as local,
        open(local, "rb", buffering=0) as file,
    ):
        raw = file if hashed is None else cast(BinaryIO, HashedReader(file))
        limit = max_unpacked(os.fstat(file.fileno()).st_size) if kind else None
        with unpacked(raw, kind, file=store.locate(path)) as stream:
            chunks = _chunks(whole_lines(stream, limit, store.locate(path)), raw, advance)
            yield from json_lines(chunks, store.locate(path)) if json else chunks
        if isinstance(raw, HashedReader) and hashed is not None:
            hashed(raw.hexdigest())


def _chunks(lines: Iterator[bytes], raw: BinaryIO, advance: Callable[[int], None] | None) -> Iterator[bytes]:
    before = 0
    for chunk in lines:
        if advance is not None:
            now = raw.tell()
            advance(now - before)
            before = now
        yield chunk


def whole_lines(
    stream: BinaryIO, limit: int | None = None, file: str | None = None, *, begins: bool = True
) -> Iterator[bytes]:
    """Yield blocks of whole lines of a stream, without a byte order mark at its beginning.

    Memory is limited by a block, or by the longest line.

    Args:
        limit: maximum bytes of a line (see `feedmill.storage.limits`); None for a stream that is not compressed.
        file: path or URL for errors.
        begins: whether the stream begins where the file does.

    Raises:
        DataError: a line is longer than the limit (kind ``too-large``).
    """
    rest: list[bytes] = []
    begin = size = 0  # offset of the current line in the stream, and its bytes read so far
    first = begins
    while chunk := stream.read(BLOCK):
        if first:
            chunk, first = chunk.removeprefix(codecs.BOM_UTF8), False
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest.append(chunk)
            size += len(chunk)
            if limit is not None and size > limit:
                raise too_large(limit, file=file, record=f"the line at byte {begin:,} of the decompressed text")
            continue
        yield b"".join([*rest, memoryview(chunk)[:cut]])
        rest = [chunk[cut:]]
        begin += size + cut
        size = len(chunk) - cut
    if any(rest):
        yield b"".join(rest)


def one_a_line(block: bytes | memoryview, count: int) -> bool:
    """Return whether each of the `count` JSON objects that were decoded from a block is on a line of its own.

    A decoder of lines accepts any white space between values, and line ends inside them. A line end between ``}`` and
    ``{`` must be between two values: inside a value, JSON requires a comma there, and strings must not contain line
    ends. So every line has at least one value, and equal numbers of lines and values mean one value per line. Returns
    False if lines end differently, for example with a carriage return.
    """
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10)
    if len(ends) and ends[-1] == len(data) - 1:
        ends = ends[:-1]
    if count != len(ends) + 1 or (len(ends) and ends[0] == 0):
        return False
    return bool((data[ends - 1] == 125).all() and (data[ends + 1] == 123).all())


def rows_of(lines: bytes) -> list[bytes]:
    """Return the rows of whole lines, without their line ends."""
    rows = lines.split(b"\n")
    if not rows[-1]:
        rows.pop()
    return rows


def json_fault(data: bytes, why: object) -> str:
    """Return why a parser rejected JSON: the parser's message `why`, or a clearer one where that misleads.

    For example, msgspec reports a lone surrogate near the end as truncated input.
    """
    if not data.strip():
        return "the line is blank"
    if data.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark, which JSON does not allow"
    if any(word in str(why) for word in ("recursion", "depth limit")):
        return "it is nested too deeply"
    lone = next((found for found in _ESCAPES.finditer(data) if found[1]), None)
    if lone is None:
        return str(why)
    return f"it has a lone surrogate, which is not a valid character: {lone[0].decode()} at byte {lone.start()}"


@contextlib.contextmanager
def write_rows(store: Store, path: str, *, kind: str | None = None) -> Iterator[Callable[[Iterable[bytes]], object]]:
    """Yield a function that appends rows without line ends. The file is published if the block ends without an error.

    Args:
        kind: the compression; by default, that of the file's suffix.
    """
    with write_lines(store, path, kind=kind) as write:
        yield lambda rows: write(b"".join([part for row in rows for part in (row, b"\n")]))


@contextlib.contextmanager
def write_lines(
    store: Store,
    path: str,
    *,
    kind: str | None = None,
    level: int | None = None,
    hashed: Callable[[str], None] | None = None,
    gather: bool = False,
) -> Iterator[Callable[[bytes], object]]:
    """Like `write_rows`, but the function takes any number of rows as one block of bytes with line ends.

    Args:
        gather: gather small blocks before they are compressed. What igzip makes of rows depends on how they are
            divided into writes (findings/isal_bytes_depend_on_writes.sh).
        level: compression level, see `feedmill.storage.codec.packed`.
        hashed: called at the end with the 128-bit xxh3 of the stored bytes.
    """
    kind = compression(path) if kind is None else kind
    with store.write(path) as file:
        raw = file if hashed is None else cast(BinaryIO, HashedWriter(file))
        with packed(raw, kind, level) as stream:
            if gather and kind:
                gathered = io.BufferedWriter(cast(io.RawIOBase, stream), _GATHERED)
                yield gathered.write
                gathered.detach()
            else:
                yield stream.write
        if isinstance(raw, HashedWriter) and hashed is not None:
            hashed(raw.hexdigest())


def attribute_path(path: str, name: str, documents: str = DOCUMENTS) -> str:
    """Return the path of the attributes `name` of a document file: the first ``documents`` becomes ``attributes/name``.

    >>> attribute_path("documents/web/0.jsonl.gz", "lengths")
    'attributes/lengths/web/0.jsonl.gz'

    Raises:
        ConfigError: no folder of the path has that name.
    """
    parts = path.split("/")
    if documents not in parts[:-1]:
        raise ConfigError(
            f"no folder of the path is named {documents!r}, so the path of its attributes is unknown",
            file=path,
            kind="bad-option",
            fix=f"Keep documents in a folder {documents!r}, or set the destination of the attributes (--output, or"
            " 'destination' in a configuration).",
        )
    at = parts.index(documents)
    return "/".join([*parts[:at], ATTRIBUTES, name, *parts[at + 1 :]])


_COLUMNS = "Rename it so that its name ends with {}."
_SUFFIX = "Rename it so that its name ends with {}. If it already does, the file was compressed twice."
_UNPACK = "Decompress it; you can compress the JSON lines as .gz or .zst."
_LEAVE_OUT = "exclude the file with a pattern such as '*.jsonl*'."
_MAGIC = (
    (b"PAR1", "Parquet", _COLUMNS.format(".parquet")),
    (b"ARROW1", "Arrow", _COLUMNS.format(".arrow")),
    (b"\xfd7zXZ\0", "data compressed by xz", _SUFFIX.format(".xz")),
    (b"BZh", "data compressed by bzip2", _SUFFIX.format(".bz2")),
    (b"\x04\x22\x4d\x18", "data compressed by lz4", _UNPACK),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"\x1f\x8b", "data compressed by gzip", _SUFFIX.format(".gz")),
    (b"\x28\xb5\x2f\xfd", "data compressed by zstd", _SUFFIX.format(".zst")),
    (b"WARC/", "a web archive (WARC)", "Make documents of its pages: 'feedmill documents extract'."),
    (b"%PDF", "a PDF", f"Extract the text, or {_LEAVE_OUT}"),
)
WRITE_LINES = f"Write each text as a JSON object with 'id' and 'text' on a line of its own, or {_LEAVE_OUT}"
_BY_NAME = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".md": "Markdown",
    ".html": "HTML",
    ".htm": "HTML",
    ".xml": "XML",
    ".rst": "reStructuredText",
}
_LONGEST_LINE = 1 << 16


def foreign(head: bytes, name: str) -> tuple[str, str] | None:
    """Return the format of a file that does not begin like JSON lines, and a suggestion; None if it does.

    Args:
        head: the first bytes, decompressed by suffix; whole lines, or the whole file.
        name: name of the file.

    >>> foreign(b"PAR1...", "x.parquet")[0], foreign(b"It was a dark night", "x.txt")[0], foreign(b'{"id": "a', "x")
    ('Parquet', 'plain text', None)
    """
    for magic, what, fix in _MAGIC:
        if head.startswith(magic):
            return what, fix
    if head[257:262] == b"ustar":
        return "a tar file", "Documents are JSON lines; use the other verbs for datasets of tar files."
    line = head.lstrip(b"\xef\xbb\xbf").partition(b"\n")[0].strip()
    if not line or line.startswith((b"{", b"[")) or _is_json(line[:_LONGEST_LINE]):
        return None
    if b"\0" in head[:4096]:
        return "binary data", f"Documents are JSON lines; {_LEAVE_OUT}"
    plain = name.lower().removesuffix(".gz").removesuffix(".zst")
    return next((what for end, what in _BY_NAME.items() if plain.endswith(end)), "plain text"), WRITE_LINES


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def json_lines(chunks: Iterable[bytes], file: str) -> Generator[bytes, None, None]:
    """Yield the chunks of a file of JSON lines unchanged.

    Args:
        file: path or URL for errors.

    Raises:
        DataError: the file is not JSON lines (kind ``other-format``).
    """
    first = True
    for chunk in chunks:
        if first and (found := foreign(chunk, file)) is not None:
            raise DataError(f"expected JSON lines, found {found[0]}", file=file, kind="other-format", fix=found[1])
        first = False
        yield chunk
