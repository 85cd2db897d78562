"""Patterns as Dolma takes them: one without files is worth a warning, all without files are an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from feedmill.errors import NotFound

if TYPE_CHECKING:
    from feedmill.documents.file import DocumentFile


def with_files(patterns: Sequence[str]) -> dict[str, list[DocumentFile]]:
    """Return the patterns that have files, with their files; the others are warned of.

    Raises:
        NotFound: none has files.
    """
    from feedmill.documents.find import find_documents

    found = {pattern: find_documents([pattern], exact=True, allow_missing=True).files for pattern in patterns}
    for pattern in patterns:
        if not found[pattern]:
            typer.echo(f"warning: no files match {pattern}", err=True)
    if not any(found.values()):
        raise NotFound("no files match any pattern", file=", ".join(patterns), fix="Check the paths.")
    return {pattern: files for pattern, files in found.items() if files}
