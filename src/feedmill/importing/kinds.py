"""Kinds of files by their names: media by modality, documents by format."""

from __future__ import annotations

from typing import NamedTuple

from feedmill.formats.energon.media import AMBIGUOUS_EXTENSIONS, AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, VIDEO_EXTENSIONS
from feedmill.formats.jsonl import PACKED_ENDS
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.unread_files import data_kind

IMAGE, AUDIO, VIDEO = "image", "audio", "video"
MODALITIES = (IMAGE, AUDIO, VIDEO)
TEXT, HTML, CSV, LINES, JSON, COLUMNS = "text", "html", "csv", "lines", "json", "columns"
DOCUMENTS = (TEXT, HTML, CSV, LINES, JSON, COLUMNS)
TABLES = (CSV, LINES, COLUMNS)
_SUFFIXES = {
    **dict.fromkeys((*IMAGE_EXTENSIONS, "avif"), IMAGE),
    **dict.fromkeys(AUDIO_EXTENSIONS, AUDIO),
    **dict.fromkeys(VIDEO_EXTENSIONS - AMBIGUOUS_EXTENSIONS, VIDEO),  # names alone decide here
    **dict.fromkeys(("txt", "text", "md", "markdown", "rst", "caption"), TEXT),
    **dict.fromkeys(("html", "htm", "xhtml"), HTML),
    **dict.fromkeys(("csv", "tsv"), CSV),
    **dict.fromkeys(("jsonl", "ndjson"), LINES),
    "json": JSON,
    **dict.fromkeys(("parquet", *(end[1:] for end in ARROW_SUFFIXES)), COLUMNS),
}
_KNOWN = {suffix: (suffix, kind) for suffix, kind in _SUFFIXES.items()}
NAMES = {TEXT: "text", HTML: "HTML", CSV: "CSV or TSV", LINES: "JSON lines", JSON: "JSON", COLUMNS: "Parquet or Arrow"}


class Name(NamedTuple):
    """A path, divided.

    Attributes:
        stem: path without the suffix.
        suffix: last suffix, in lower case and without the dot.
        kind: one of the kinds above; empty if it is unknown.
    """

    stem: str
    suffix: str
    kind: str


def divide(path: str) -> Name:
    """Return stem, suffix and kind of a path. A compressed document has the kind of its content.

    >>> divide("a/b.JPG"), divide("web.csv.gz").kind, divide("notes").kind
    (Name(stem='a/b', suffix='jpg', kind='image'), 'csv', '')
    """
    slash, dot = path.rfind("/"), path.rfind(".")
    if dot <= slash + 1:
        return Name(path, "", "")
    stem, suffix = path[:dot], path[dot + 1 :]
    known = _KNOWN.get(suffix)
    if known is not None:  # nearly all; the text of the suffix is one object, which is sent to workers once
        return Name(stem, *known)
    suffix = suffix.lower()
    kind = _SUFFIXES.get(suffix, "")
    if not kind and f".{suffix}" in PACKED_ENDS:
        inner = _SUFFIXES.get(stem[stem.rfind(".") + 1 :].lower(), "")
        kind = inner if inner in DOCUMENTS and inner != COLUMNS else ""
    return Name(stem, suffix, kind)


def is_plain(path: str) -> bool:
    """Return whether the last suffix of a path is that of a kind, so that the file is not compressed."""
    return path[path.rfind(".") + 1 :] in _KNOWN


def unsupported(path: str) -> str:
    """Return the reason why a file of unknown kind is left out."""
    if data_kind(path) in ("tars", "tokens", "MDS"):
        return "a dataset already (use feedmill prepare, convert or tokenize)"
    suffix = divide(path).suffix
    return f"unsupported kind of file (.{suffix})" if suffix else "unsupported kind of file (no suffix)"
