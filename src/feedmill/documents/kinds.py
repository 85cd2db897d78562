"""Kinds of documents by the names of files.

lines     .jsonl, .json, .ndjson, also with .gz, .gzip, .zst, .zstd, .bz2, .xz: one document per line
text      .txt: the file is one document
parquet   .parquet: one document per row
arrow     .arrow, .feather, .arrows: one document per row; the files of Hugging Face datasets on disk
"""

from __future__ import annotations

from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.tokens.manifest import LINEAGE
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST

LINES, TEXT, PARQUET, ARROW = "lines", "text", "parquet", "arrow"
KINDS = (LINES, TEXT, PARQUET, ARROW)
_SUFFIXES = {
    **dict.fromkeys(LINE_SUFFIXES, LINES), ".txt": TEXT, ".parquet": PARQUET, **dict.fromkeys(ARROW_SUFFIXES, ARROW)
}  # fmt: skip
SUFFIXES = tuple(_SUFFIXES)
"""Suffixes of files of documents."""
ARCHIVES = tuple(name + end for name in (".warc", ".wet") for end in ("", ".gz", ".gzip", ".zst", ".zstd"))
"""Suffixes of web archives, of which `extract` makes documents; ``.wet`` files have the text of pages."""
AUTO = "auto"
"""Value of `id` that generates ids."""
NO_DOCUMENTS = "no-documents"
"""The kind of the error for inputs without documents."""


def kind_of(path: str) -> str | None:
    """Return the kind of a file by its name, or None."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), None)


def is_hidden(path: str) -> bool:
    """Return whether a file is hidden below its folder, or was written by Feedmill beside another one."""
    return path.endswith((MANIFEST, LINEAGE)) or path.startswith(".") or "/." in path
