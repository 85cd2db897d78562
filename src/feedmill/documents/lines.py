"""Read documents of any kind as JSON lines, for tagging, deduplication, statistics and mixing.

Files of lines are read as they are. A row of Parquet or Arrow becomes an object of its columns without null values;
dates and decimals become text. A text file becomes one object with the fields ``id`` and ``text``. Generated ids are
``FILE:ROW``: the file's path below the folder ``documents``, and the row's number from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from feedmill.documents.file import AUTO, LINES, TEXT, DocumentFile
from feedmill.errors import DataError
from feedmill.formats.documents import read_lines, rows_of
from feedmill.jobs.progress import count_read
from feedmill.storage.hashed import hash_file
from feedmill.structs import decoder_of

_NONE = (b"", b"null")
_encode = msgspec.json.Encoder().encode
_fields = decoder_of(dict[str, msgspec.Raw]).decode


class _Id(msgspec.Struct, gc=False):
    id: msgspec.Raw = msgspec.Raw(b"")


class Block(NamedTuple):
    """Lines of a file, and the number of the first one, from 1."""

    line: int
    lines: bytes

    def __repr__(self) -> str:
        return f"the lines from {self.line} on"


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Yield blocks of a file that is read in chunks of whole lines."""
    line = 1
    for lines in chunks:
        yield Block(line, lines)
        line += lines.count(b"\n")


def read_blocks(
    file: DocumentFile,
    *,
    fields: Sequence[str] | None = None,
    shown: bool = False,
    packed: str | None = None,
    advance: Callable[[int], None] | None = None,
    hashed: Callable[[str], None] | None = None,
) -> Generator[bytes, None, None]:
    """Yield the documents of a file as JSON lines with line ends, block by block; the last line may lack its end.

    Args:
        file: The file.
        fields: Fields to read; other fields may be missing from the lines. None reads all.
        shown: Show bytes in columns as in `feedmill.documents.rows.shown_bytes`; by default they raise.
        packed: Compression of a file of lines; by default given by its name.
        advance: Called with the number of stored bytes read; default: the bar of the run that this is a unit of.
        hashed: Called at the end with the 128-bit xxh3 hash of the stored bytes.

    Raises:
        NotFound, StorageError: The file does not exist or cannot be read.
        DataError: The file is corrupt, is not text, or does not begin like JSON lines.
        ConfigError: Columns cannot be read as documents.
        MissingExtra: pyarrow is required, but not installed.
    """
    if file.kind == LINES:
        advance = count_read if advance is None else advance
        lines = read_lines(file.store(), file.path, kind=packed, advance=advance, hashed=hashed, json=True)
        yield from _with_ids(lines, file) if file.id else lines
        return
    rows: Iterable[Sequence[Any]]
    if file.kind == TEXT:
        rows = [_text(file)]
    else:
        from feedmill.documents.columns import read_rows  # imports much that lines do not need

        rows = read_rows(file, _needed(file, fields), shown=shown)
    blocks = (b"".join([_encode(row) + b"\n" for row in batch]) for batch in rows)
    yield from _with_ids(blocks, file) if file.id else blocks
    if advance is not None:
        advance(file.size)
    if hashed is not None:
        with file.store().local_copy(file.path) as local:
            hashed(hash_file(str(local)))


def made_id(file: DocumentFile, row: int) -> str:
    """Return the generated id of a document; `row` counts from 1."""
    return f"{file.below_documents}:{row}"


def _needed(file: DocumentFile, fields: Sequence[str] | None) -> Sequence[str] | None:
    return fields if fields is None or file.id in ("", AUTO) else [*fields, file.id]


def _text(file: DocumentFile) -> list[dict[str, str]]:
    data = file.store().read(file.path)
    if _is_line(data):
        raise DataError(
            "the file has the suffix of plain text, but contains JSON lines",
            file=file.name,
            kind="other-format",
            fix="Rename the file to .jsonl.",
        )
    try:
        return [{"id": made_id(file, 1), "text": data.decode("utf-8-sig")}]
    except UnicodeDecodeError as error:
        raise DataError(
            f"it is not valid UTF-8 (byte {error.start})",
            file=file.name,
            offset=error.start,
            kind="bad-document",
            fix="Encode the text as UTF-8, or exclude the file.",
        ) from None


def _is_line(data: bytes) -> bool:
    """Return whether a file begins with a document of JSON lines."""
    try:
        return data[:1] == b"{" and "text" in _fields(data[: data.find(b"\n") + 1 or None])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _with_ids(blocks: Iterable[bytes], file: DocumentFile) -> Iterator[bytes]:
    """Yield the lines with the ids required by `DocumentFile.id`. Lines that cannot be parsed stay as they are."""
    if file.id == AUTO:
        own: msgspec.json.Decoder[Any] = decoder_of(_Id)
    else:
        kind = msgspec.defstruct("_Field", [("id", msgspec.Raw, msgspec.Raw(b""))], rename={"id": file.id})
        own = decoder_of(kind)
    first = 1
    for block in blocks:
        rows = rows_of(block)
        yield b"".join([_with_id(row, own, file, number) for number, row in enumerate(rows, first)])
        first += len(rows)


def _with_id(row: bytes, own: msgspec.json.Decoder[_Id], file: DocumentFile, number: int) -> bytes:
    try:
        value = bytes(own.decode(row).id)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return row + b"\n"  # reported when the row is parsed
    if file.id == AUTO:
        if value not in _NONE:
            return row + b"\n"
        value = _encode(made_id(file, number))
    elif value in _NONE:
        raise DataError(
            f"the document has no field {file.id!r} to read its id from",
            file=file.name,
            record=f"line {number}",
            kind="bad-document",
            fix="Choose another field with --id, or generate ids with --id auto.",
        )
    fields = _fields(row)
    fields["id"] = msgspec.Raw(value)
    return _encode(fields) + b"\n"
