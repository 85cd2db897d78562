"""Files of documents: location and kind of a file, and the locations of its attributes.

Kinds of documents by the names of files.

lines     .jsonl, .json, .ndjson, also with .gz, .gzip, .zst, .zstd, .bz2, .xz: one document per line
text      .txt: the file is one document
parquet   .parquet: one document per row
arrow     .arrow, .feather, .arrows: one document per row; the files of Hugging Face datasets on disk

Files of Feedmill beside the documents and attributes that verbs write: records of finished outputs, their lineage.

The outputs are often the documents of the next step, and the patterns of other programs (``x/documents/*`` in Dolma's
``dedupe`` and ``mix``) match hidden names too; others list ``attributes`` for the names of the sets, and a set for its
files. So these folders contain outputs only. What Feedmill keeps about them is in ``.feedmill/mix-<folder>`` beside
the folder, or beside the folder ``documents`` or ``attributes`` that it is or is in.

If that is impossible (the root of a bucket, a mount point, a parent folder that is not writable), it is in
``.feedmill`` inside the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS, attribute_path
from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.tokens.manifest import LINEAGE
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST
from feedmill.storage import LocalStore, Store, canonical_location, join_url, open_store, split_url
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


def relative(path: str, folder: str) -> str:
    """Return a path or URL relative to a folder of the same store, so that both can be moved together."""
    same = "://" not in path and "://" not in folder and path.startswith("/") and folder.startswith("/")
    same = same or ("://" in path and path.split("/")[:3] == folder.split("/")[:3])
    return os.path.relpath(path, folder) if same else path


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


FOLDER = ".feedmill"


class RecordFolder(NamedTuple):
    """Folder for such files: its store, and its path below it. (Paths below a store are not written through links.)"""

    store: Store
    folder: str

    def path(self, output: str, suffix: str = ".json") -> str:
        """Return the path in the store of a file about an output."""
        return f"{self.folder}/{output}{suffix}"

    def lock(self, output: str, what: str, *, file: str) -> contextlib.AbstractContextManager[None]:
        """Return a block in which one process of this machine at a time writes an output, if this folder is local.

        Args:
            what: noun for the output, for the error; `file`: its path.
        """
        if not isinstance(self.store, LocalStore):
            return contextlib.nullcontext()
        path = self.path(output, ".feedmill-lock")
        return self.store.exclusive(path, what=f"another process is writing {what}", file=file)

    def outputs(self, suffix: str = ".json") -> list[str]:
        """Return the outputs that have such a file here."""
        try:
            paths = [entry.path for entry in self.store.files(self.folder)]
        except NotFound:
            return []
        return [path.removeprefix(f"{self.folder}/").removesuffix(suffix) for path in paths if path.endswith(suffix)]


def inside(folder: str) -> RecordFolder:
    """Return the place inside a folder of outputs."""
    return RecordFolder(open_store(folder), FOLDER)


def beside(folder: str) -> RecordFolder | None:
    """Return the place beside a folder of outputs, or None if there is none."""
    spelled = [part for part in folder.split("/") if part not in ("", ".")]
    special = [n for n, part in enumerate(spelled) if part in (DOCUMENTS, ATTRIBUTES)]
    depth = len(spelled) - special[-1] if special else 1
    parts = canonical_location(folder).rstrip("/").split("/")
    if len(parts) - depth < (3 if "://" in folder else 1):
        return None
    base, name = "/".join(parts[:-depth]), "/".join(parts[-depth:])
    if "://" not in folder and not _may_write("/".join(parts), base or "/"):
        return None
    return RecordFolder(open_store(base or "/"), f"{FOLDER}/mix-{name}")


def _may_write(folder: str, base: str) -> bool:
    """Return whether `base` is writable and on the same file system as `folder`, so that both are moved together."""
    while not os.path.isdir(base):  # it will be created
        base = os.path.dirname(base)
    if not os.access(base, os.W_OK):
        return os.access(f"{base}/{FOLDER}", os.W_OK)
    return not os.path.isdir(folder) or os.stat(folder).st_dev == os.stat(base).st_dev
