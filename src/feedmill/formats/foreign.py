"""Recognize files that are not JSON lines: name their format, and suggest what to do."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import orjson

from feedmill.errors import DataError

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
TEXT = f"Write each text as a JSON object with 'id' and 'text' on a line of its own, or {_LEAVE_OUT}"
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
    return next((what for end, what in _BY_NAME.items() if plain.endswith(end)), "plain text"), TEXT


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
