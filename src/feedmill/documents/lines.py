"""Documents of any kind as JSON lines: what tagging, deduplication, statistics and mixing read.

Files of lines come as they are. A row of Parquet or Arrow becomes the object of its columns, without those that are
null; dates and decimals become text. A text file becomes one object with the fields ``id`` and ``text``. Where ids are
made they are ``FILE:ROW``: the file's path below the folder ``documents``, and the row's number from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from feedmill.documents.file import DocumentFile
from feedmill.documents.kinds import AUTO, LINES, TEXT
from feedmill.errors import DataError
from feedmill.formats.documents import read_lines, rows_of
from feedmill.storage.hashed import hash_file

_NONE = (b"", b"null")
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Id(msgspec.Struct, gc=False):
    id: msgspec.Raw = msgspec.Raw(b"")


def read_blocks(
    file: DocumentFile,
    *,
    fields: Sequence[str] | None = None,
    packed: str | None = None,
    advance: Callable[[int], None] | None = None,
    hashed: Callable[[str], None] | None = None,
) -> Generator[bytes, None, None]:
    """Yield the documents of a file as JSON lines with their line ends, block by block; the last may lack its end.

    Args:
        fields: those that are needed; others may be left out. None for all.
        packed: the compression of lines; by default what the name says.
        advance: called with how many stored bytes were read.
        hashed: called at the end with the 128-bit xxh3 of the stored bytes.

    Raises:
        NotFound, StorageError: the file does not exist or cannot be read.
        DataError: it is damaged, is no text, or does not begin as JSON lines do.
        ConfigError: columns cannot be read as documents.
        MissingExtra: pyarrow is needed.
    """
    if file.kind == LINES:
        lines = read_lines(file.store(), file.path, kind=packed, advance=advance, hashed=hashed, json=True)
        yield from _with_ids(lines, file) if file.id else lines
        return
    rows: Iterable[Sequence[Any]]
    if file.kind == TEXT:
        rows = [_text(file)]
    else:
        from feedmill.documents.columns import read_rows  # imports much that lines do not need

        rows = read_rows(file, _needed(file, fields))
    blocks = (b"".join([_encode(row) + b"\n" for row in some]) for some in rows)
    yield from _with_ids(blocks, file) if file.id else blocks
    if advance is not None:
        advance(file.size)
    if hashed is not None:
        with file.store().local_copy(file.path) as local:
            hashed(hash_file(str(local)))


def made_id(file: DocumentFile, row: int) -> str:
    """Return the id of a document that has none; `row` counts from 1."""
    return f"{file.below_documents}:{row}"


def _needed(file: DocumentFile, fields: Sequence[str] | None) -> Sequence[str] | None:
    return fields if fields is None or file.id in ("", AUTO) else [*fields, file.id]


def _text(file: DocumentFile) -> list[dict[str, str]]:
    data = file.store().read(file.path)
    if _is_line(data):
        raise DataError(
            "the file is named as plain text, and holds JSON lines",
            file=file.name,
            kind="lines-in-text",
            fix="Let its name end with .jsonl.",
        )
    try:
        return [{"id": made_id(file, 1), "text": data.decode("utf-8-sig")}]
    except UnicodeDecodeError as error:
        raise DataError(
            f"it is not valid UTF-8 (byte {error.start})",
            file=file.name,
            offset=error.start,
            kind="bad-document",
            fix="Encode the text as UTF-8, or leave the file out.",
        ) from None


def _is_line(data: bytes) -> bool:
    """Return whether a file begins with a document as JSON lines have them."""
    try:
        return data[:1] == b"{" and "text" in _fields(data[: data.find(b"\n") + 1 or None])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _with_ids(blocks: Iterable[bytes], file: DocumentFile) -> Iterator[bytes]:
    """The lines with the ids that `DocumentFile.id` asks for; those that no id can be read of are left as they are."""
    if file.id == AUTO:
        own = msgspec.json.Decoder(_Id)
    else:
        kind = msgspec.defstruct("_Field", [("id", msgspec.Raw, msgspec.Raw(b""))], rename={"id": file.id})
        own = msgspec.json.Decoder(kind)
    first = 1
    for block in blocks:
        rows = rows_of(block)
        yield b"".join([_with_id(row, own, file, number) for number, row in enumerate(rows, first)])
        first += len(rows)


def _with_id(row: bytes, own: msgspec.json.Decoder[_Id], file: DocumentFile, number: int) -> bytes:
    try:
        value = bytes(own.decode(row).id)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return row + b"\n"  # comes up when it is read
    if file.id == AUTO:
        if value not in _NONE:
            return row + b"\n"
        value = _encode(made_id(file, number))
    elif value in _NONE:
        raise DataError(
            f"the document has no {file.id!r}, which its id is read from",
            file=file.name,
            record=f"line {number}",
            kind="bad-document",
            fix="Name another field with --id, or have ids made with --id auto.",
        )
    fields = _fields(row)
    fields["id"] = msgspec.Raw(value)
    return _encode(fields) + b"\n"
