"""Dry runs over documents: the attribute files that would be written, and the first documents of each file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from feedmill.curation.attribute_set import MANIFEST, manifests
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import parse_documents
from feedmill.errors import FeedmillError
from feedmill.jobs.dry_run import DryRun
from feedmill.storage import open_store

_FILES = 64
"""Maximum number of files of which the first documents are read."""


def read_first(
    dry: DryRun,
    files: Sequence[DocumentFile],
    count: Callable[[DocumentFile, bytes], int] | None = None,
    *,
    fields: Sequence[str] | None = ("id", "text"),
    packed: str | None = None,
    failed: list[FeedmillError] | None = None,
) -> int | None:
    """Read the first documents of each file for a dry run; return the number of documents if these are all.

    Args:
        files: those that the real run reads.
        count: checks a block of lines of a file, from its first one, and returns the number of its documents. By
            default, each needs an id and a text.
        fields, packed: see `read_blocks`.
        failed: receives the errors, where invalid files are skipped.

    Raises:
        FeedmillError: a file cannot be read, or one of these documents is invalid.
    """
    dry.reads(file.size for file in files)
    if any(type(file) is not DocumentFile for file in files):
        from feedmill.curation.image_files import ImageFile  # loads all that opens datasets: a tenth of a short command

        if images := [file for file in files if isinstance(file, ImageFile)]:
            dry.counts["images"] = sum(file.stop - file.start for file in images)
            return int(dry.counts["images"])
    documents, whole = 0, len(files) <= _FILES
    for file in files[:_FILES]:
        try:
            with closing(read_blocks(file, fields=fields, packed=packed)) as blocks:
                block = next(blocks, None)
                documents += (count or _count)(file, bytes(block)) if block is not None else 0
                whole = whole and (block is None or next(blocks, None) is None)
        except FeedmillError as error:
            error.file = error.file or file.name
            if failed is None:
                raise
            failed.append(error)
    if whole:
        dry.counts["documents"] = documents
    return documents if whole else None


def _count(file: DocumentFile, lines: bytes) -> int:
    return len(parse_documents(lines, file.name, 1)[0])


def plan_set(dry: DryRun, files: Sequence[DocumentFile], name: str, documents_folder: str) -> None:
    """Add the attribute files and manifests of a set to a dry run."""
    for file in files:
        dry.writes(file.store(), file.attributes(name, documents_folder))
    for folder in dict.fromkeys(file.folder for file in files):
        place = manifests(open_store(folder or "."), name).place
        dry.writes(place.store, place.path(MANIFEST))
