"""Files of documents: location and kind of a file, and the locations of its attributes.

Kinds of documents by the names of files.

lines     .jsonl, .json, .ndjson, also with .gz, .gzip, .zst, .zstd, .bz2, .xz: one document per line
text      .txt: the file is one document
parquet   .parquet: one document per row
arrow     .arrow, .feather, .arrows: one document per row; the files of Hugging Face datasets on disk
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.documents import DOCUMENTS, attribute_path
from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.tokens.manifest import LINEAGE
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST
from feedmill.storage import Store, canonical_location, join_url, open_store, split_url
from feedmill.storage.codec import PLAIN, compression

_PACKED_LINES = ".jsonl.gz"


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """One file of documents.

    Attributes:
        folder: Path or URL of a folder as the user wrote it: the part of an input before its first wildcard, or the
            dataset's root (see `in_datasets`).
        path: Path below that folder.
        kind: One of `feedmill.documents.file.KINDS`.
        size: Size in bytes.
        version: Version of the file's content, to detect changes.
        rows: (first, step): read only every `step`-th row of a file of columns, from row `first` on.
        id: Field to read ids from. ``auto`` generates ids for documents without one; empty reads the field ``id``.
    """

    folder: str
    path: str
    kind: str
    size: int
    version: str
    rows: tuple[int, int] = (0, 1)
    id: str = ""

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The whole path as the user would write it; Dolma hashes it."""
        return f"{self.folder.rstrip('/')}/{self.path}" if self.folder not in ("", ".") else self.path

    @property
    def url(self) -> str:
        """The normalized whole path."""
        return join_url(self.folder or ".", self.path)

    @property
    def place(self) -> str:
        """The absolute path, or the URL."""
        return self.store().locate(self.path)

    @property
    def packed(self) -> bool:
        """Whether the file as a whole is compressed."""
        return compression(self.path) != PLAIN

    def store(self) -> Store:
        """Return the folder's store."""
        return open_store(self.folder or ".")

    def attributes(self, name: str, documents: str = DOCUMENTS) -> str:
        """Return the path of the file's attributes below the same folder. Raises ConfigError if it is ambiguous."""
        return attribute_path(as_lines(self.path, self.kind), name, documents)

    @property
    def below_documents(self) -> str:
        """The path below the folder ``documents``, otherwise below `folder`."""
        parts = self.name.split("/")
        if DOCUMENTS not in parts[:-1]:
            return self.path
        return "/".join(part for part in parts[parts.index(DOCUMENTS) + 1 :] if part not in ("", "."))

    @property
    def identity(self) -> list[Any]:
        """Values that identify the file's documents, for fingerprints."""
        return [self.name, self.size, self.version, *([f"id {self.id}"] if self.id else [])]


def as_lines(path: str, kind: str) -> str:
    """Return the path of the JSON lines for a file of documents: the file itself, or a file derived from it.

    >>> as_lines("web/0.jsonl.zst", "lines"), as_lines("web/0.parquet", "parquet")
    ('web/0.jsonl.zst', 'web/0.parquet.jsonl.gz')
    """
    return path if kind == LINES else path + _PACKED_LINES


def documents_of(path: str) -> str:
    """Return the path of the file of documents for which `as_lines` returns this path."""
    before = path.removesuffix(_PACKED_LINES)
    return before if kind_of(before) not in (None, LINES) else path


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work: the documents of `file` that begin in ``[begin, end)``, in bytes or in row groups."""

    file: DocumentFile
    begin: int
    end: int
    bytes: int


def once(files: Iterable[DocumentFile]) -> list[DocumentFile]:
    """Return the files without duplicates, however their folders are spelled or linked."""
    place = places()
    files_by_url: dict[str, DocumentFile] = {}
    for file in files:
        files_by_url.setdefault(place(file.name), file)
    return list(files_by_url.values())


def in_datasets(files: Iterable[DocumentFile], documents: str = DOCUMENTS) -> list[DocumentFile]:
    """Return the files relative to the roots of their datasets: the folders that contain the folders `documents`.

    Raises:
        ConfigError: A file is not below a folder `documents`.
    """
    return [_in_dataset(file, documents) for file in files]


def by_folder(files: Iterable[DocumentFile]) -> dict[str, list[DocumentFile]]:
    """Group files by folder; after `in_datasets`, by dataset."""
    files_by_folder: dict[str, list[DocumentFile]] = {}
    for file in files:
        files_by_folder.setdefault(file.folder, []).append(file)
    return files_by_folder


def places() -> Callable[[str], str]:
    """Return a function from the path or URL of a file to the unique name of its location.

    The name does not depend on how the folder is spelled or linked. A file that is itself a link has its own location.
    Each folder is resolved once.
    """
    known: dict[str, str] = {}

    def place(path: str) -> str:
        folder, name = split_url(path)
        if folder not in known:
            known[folder] = canonical_location(folder)
        return f"{known[folder].rstrip('/')}/{name}"

    return place


def attribute_root(path: str, name: str) -> tuple[str, str]:
    """Return the folder of the attributes `name` of a document file, and the path of its attributes in that folder.

    >>> attribute_root("data/documents/web/0.jsonl.gz", "lengths")
    ('data/attributes/lengths', 'web/0.jsonl.gz')

    Raises:
        ConfigError: No folder of the path is called ``documents``.
    """
    parts = attribute_path(path, name).split("/")
    at = path.split("/").index(DOCUMENTS) + 2
    return "/".join(parts[:at]), "/".join(parts[at:])


def _in_dataset(file: DocumentFile, documents: str) -> DocumentFile:
    scheme, separator, rest = file.name.partition("://")
    parts = (rest if separator else scheme).split("/")
    if documents not in parts[:-1]:
        raise ConfigError(
            f"the path {file.name!r} has no folder {documents!r}, so the location of attributes is undefined",
            kind="bad-option",
            fix=f"Keep documents in a folder {documents!r}.",
        )
    at = parts.index(documents)
    root = "/".join(parts[:at]) or ("/" if file.name.startswith("/") else "")
    path = "/".join(part for part in parts[at:] if part not in ("", "."))
    return replace(file, folder=f"{scheme}://{root}" if separator else root, path=path)


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
