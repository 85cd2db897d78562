"""What a file is that was taken for JSON lines and is something else: its format by name, and what to do with it."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import orjson

from feedmill.errors import DataError

_COLUMNS = "Let its name end with {}."
_SUFFIX = "Let its name end with {}; if it does already, it was compressed twice."
_UNPACK = "Unpack it, and compress the JSON lines as .gz or .zst if you like."
_LEAVE_OUT = "leave the file out with a pattern such as '*.jsonl*'."
_MAGIC = (
    (b"PAR1", "Parquet", _COLUMNS.format(".parquet")),
    (b"ARROW1", "Arrow", _COLUMNS.format(".arrow")),
    (b"\xfd7zXZ\0", "compressed by xz", _SUFFIX.format(".xz")),
    (b"BZh", "compressed by bzip2", _SUFFIX.format(".bz2")),
    (b"\x04\x22\x4d\x18", "compressed by lz4", _UNPACK),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"\x1f\x8b", "compressed by gzip", _SUFFIX.format(".gz")),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", _SUFFIX.format(".zst")),
    (b"%PDF", "a PDF", f"Extract the text, or {_LEAVE_OUT}"),
)
_TEXT = f"Write each text as a JSON object with 'id' and 'text' on a line of its own, or {_LEAVE_OUT}"
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
    """Name the format of a file that does not begin as JSON lines do, and what to do; None if it does.

    Args:
        head: the first bytes, unpacked as the name says; whole lines, or the whole file.
        name: of the file.

    >>> foreign(b"PAR1...", "x.parquet")[0], foreign(b"It was a dark night", "x.txt")[0], foreign(b'{"id": "a', "x")
    ('Parquet', 'plain text', None)
    """
    for magic, what, fix in _MAGIC:
        if head.startswith(magic):
            return what, fix
    if head[257:262] == b"ustar":
        return "a tar file", "Documents are JSON lines; prepare and read datasets of tar files with the other verbs."
    line = head.lstrip(b"\xef\xbb\xbf").partition(b"\n")[0].strip()
    if not line or line.startswith((b"{", b"[")) or _is_json(line[:_LONGEST_LINE]):
        return None
    if b"\0" in head[:4096]:
        return "binary data", f"Documents are JSON lines; {_LEAVE_OUT}"
    plain = name.lower().removesuffix(".gz").removesuffix(".zst")
    return next((what for end, what in _BY_NAME.items() if plain.endswith(end)), "plain text"), _TEXT


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def json_lines(chunks: Iterable[bytes], file: str) -> Generator[bytes, None, None]:
    """Pass on the chunks of a file of JSON lines.

    Args:
        file: named in the error.

    Raises:
        DataError: of kind ``not-json-lines``, the file is something else.
    """
    first = True
    for chunk in chunks:
        if first and (found := foreign(chunk, file)) is not None:
            raise DataError(
                f"this file is {found[0]}, and JSON lines were expected", file=file, kind="not-json-lines", fix=found[1]
            )
        first = False
        yield chunk
