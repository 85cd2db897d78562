"""Patterns as Dolma takes them: one without files is worth a warning, all without files are an error."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from feedmill.errors import NotFound


def with_files(patterns: Sequence[str]) -> list[str]:
    """The patterns that have files; the others are warned of. Raises `NotFound` where none has."""
    from feedmill.curation.inputs import find_inputs

    found = []
    for pattern in patterns:
        try:
            find_inputs([pattern])
            found.append(pattern)
        except NotFound:
            typer.echo(f"warning: no files match {pattern}", err=True)
    if not found:
        raise NotFound("no files match any pattern", file=", ".join(patterns), fix="Check the paths.")
    return found
