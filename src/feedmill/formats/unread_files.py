"""Find the files of a folder that a reader skips, and which of them are data, to report them.

A folder often has more than the one kind of files that a verb reads. Skipped files are reported, because data of
another kind (such as text files next to JSON lines) would otherwise be ignored silently.

Recognize files that are not JSON lines: name their format, and suggest what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import NamedTuple

import orjson

from feedmill.errors import DataError
from feedmill.formats.jsonl import PACKED_ENDS
from feedmill.formats.registry import formats
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.tar import COMPRESSED

DOCUMENTS = ("JSON lines", "text")
_OURS = (".feedmill.json", ".feedmill.lineage", ".feedmill.loss")
_PACKED = (*PACKED_ENDS, ".zip")
_TEXTS = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".csv", ".tsv", ".html", ".htm", ".xml", ".warc"),
    *(".pdf", ".docx", ".epub"),
)
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "JSON lines": tuple(name + packed for name in (".jsonl", ".ndjson") for packed in _PACKED)
    + tuple(f".json{packed}" for packed in _PACKED if packed),
    "text": tuple(name + packed for name in _TEXTS for packed in _PACKED),
    "Parquet": (".parquet",),
    "Arrow": ARROW_SUFFIXES,
    "tars": (".tar", *COMPRESSED),
    "tokens": (".pbin", ".ds", ".bin"),
    "MDS": (".mds", ".mds.zst", ".mds.zstd", ".mds.gz"),
    "media": (
        *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
        *(".mp4", ".mkv", ".avi", ".mov", ".webm", ".wav", ".mp3", ".flac", ".ogg"),
    ),
    "HDF5": (".h5", ".hdf5"),
    "MCAP": (".mcap",),
    "TFRecord": (".tfrecord",),
    "Lance": (".lance", ".manifest", ".txn"),
    "archives": (".zip", ".7z"),
}
_KINDS = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
_ABOUT = ("readme", "license", "licence", "copying", "notice", "changelog", "citation", "authors", "contributing")
_SHOWN = 3


class Leftovers(NamedTuple):
    """Paths of skipped files.

    Attributes:
        data: files that are data by their names: kind -> paths.
        others: all others, such as README files.
    """

    data: dict[str, list[str]]
    others: list[str]


def data_kind(path: str) -> str | None:
    """Return the kind of data of a file, by its name; None for files about the data.

    >>> data_kind("raw/a.txt.gz"), data_kind("a.tar"), data_kind("README.md"), data_kind("stats.json")
    ('text', 'tars', None, None)
    """
    if is_about(path):
        return None
    name = path.rpartition("/")[2].lower()
    ends = [name[at:] for at, letter in enumerate(name) if letter == "."]
    kinds = _all_kinds()
    return next((kinds[end] for end in ends if end in kinds), None)


@cache
def _all_kinds() -> dict[str, str]:
    """Return file name suffix -> kind: the table above and the kinds that formats declare."""
    own = {end: format.data[0] for format in formats() if format.data for end in (*format.files, *format.folders)}
    return {**{end: kind for end, kind in own.items() if kind not in _SUFFIXES}, **_KINDS}


def is_about(path: str) -> bool:
    """Return whether a file is documentation, such as a README, by the beginning of its name."""
    return path.rpartition("/")[2].lower().startswith(_ABOUT)


def leftovers(paths: Iterable[str], is_read: Callable[[str], bool]) -> Leftovers:
    """Return the skipped files of a folder. Hidden files and Feedmill's own files about data are not counted."""
    unread = Leftovers({}, [])
    for path in paths:
        hidden = path.endswith(_OURS) or any(part.startswith(".") for part in path.split("/"))
        if hidden or is_read(path):
            continue
        kind = data_kind(path)
        (unread.others if kind is None else unread.data.setdefault(kind, [])).append(path)
    return unread


def listed(paths: list[str], noun: str = "") -> str:
    """Return the number of files and the names of the first ones, as text.

    >>> listed(["a.txt", "b.txt"], "text")
    '2 files of text (a.txt, b.txt)'
    """
    shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else "")
    return f"{len(paths):,} file{'' if len(paths) == 1 else 's'}{f' of {noun}' if noun else ''} ({shown})"


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
