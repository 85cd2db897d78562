"""Find the files of a folder that a reader skips, and which of them are data, to report them.

A folder often has more than the one kind of files that a verb reads. Skipped files are reported, because data of
another kind (such as text files next to JSON lines) would otherwise be ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

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
