"""One file of documents to be deduplicated, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.dedupe.options import DedupeOptions
from feedmill.documents.file import DocumentFile

_HASHES = "xxh3"
"""What files are hashed with: work that an earlier version left without hashes is of other tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """One file of documents and where its work lies. `reference`: only looked up in, not written.

    `spare`: there are cores to spare, so a thread may read ahead.
    """

    number: int
    file: DocumentFile
    options: DedupeOptions
    work: str
    input: str | None = None
    output: str | None = None
    reference: bool = False
    spare: bool = False

    @property
    def fingerprint(self) -> str:
        kinds = [self.input, self.output, _HASHES]
        return fingerprint(*self.file.identity, kinds, self.options.as_dict())


@dataclass(frozen=True, slots=True)
class Finished:
    """What was written for a file: `size` and `xxh3` are those of the attributes as stored, `read` is the hash of the
    documents that they were made of."""

    rows: int
    ids: str
    documents: int
    units: int
    size: int
    xxh3: str
    read: str
