"""Deduplication task of one file of documents, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.options import Dedupe
from feedmill.documents.file import DocumentFile
from feedmill.jobs.memory import FULL

_HASHES = "xxh3-arrays"
"""Hash of files and layout of the work folder. It is part of the fingerprint, so that unfinished work of versions with
others is not reused."""


@dataclass(frozen=True, slots=True)
class DedupeTask:
    """One file of documents to deduplicate.

    Args:
        number: Number of the file in the run.
        work: Path or URL of the work folder.
        input, output: Compression of the documents and of the attributes; None: By the names of the files.
        reference: Duplicates are searched in this file, but no attributes are written for it.
        spare: There are idle cores, so a thread can read ahead.
        room: Memory of a task; see `feedmill.jobs.memory`.
    """

    number: int
    file: DocumentFile
    options: Dedupe
    work: str
    input: str | None = None
    output: str | None = None
    reference: bool = False
    spare: bool = False
    room: int = FULL

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the attributes: the file, the compressions, and the options."""
        kinds = [self.input, self.output, _HASHES]
        return fingerprint(*self.file.identity, kinds, self.options.as_dict())


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a file: `size` and `xxh3` are those of the stored attributes, `read` is the hash of the documents."""

    rows: int
    ids: str
    documents: int
    units: int
    size: int
    xxh3: str
    read: str
