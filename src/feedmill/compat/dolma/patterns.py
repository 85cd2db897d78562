"""Expand patterns as Dolma does: a pattern without files is a warning, no files at all are an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from feedmill.errors import NotFound

if TYPE_CHECKING:
    from feedmill.documents.file import DocumentFile


def with_files(patterns: Sequence[str]) -> dict[str, list[DocumentFile]]:
    """Return pattern -> files for the patterns that match files, and warn of the others.

    Raises:
        NotFound: no files match any pattern.
    """
    from feedmill.documents.find import find_documents

    found = {pattern: find_documents([pattern], exact=True, allow_missing=True).files for pattern in patterns}
    for pattern in patterns:
        if not found[pattern]:
            typer.echo(f"warning: no files match {pattern}", err=True)
    if not any(found.values()):
        raise NotFound("no files match any pattern", file=", ".join(patterns), fix="Check the paths.")
    return {pattern: files for pattern, files in found.items() if files}
