"""Implement ``feedmill compat dolma stat``: Dolma's summaries of attributes.

Patterns are expanded as Dolma does: a pattern without files is a warning, no files at all are an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from feedmill.compat.dolma.config import FLAG, TEXT, TEXTS, WHOLE, Key, accepted, configured
from feedmill.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from feedmill.documents.file import DocumentFile


SCHEMA = {
    "attributes": Key(TEXTS, [], "patterns of attribute files"),
    "report": Key(TEXT, None, "folder for summaries.jsonl.gz"),
    "bins": Key(WHOLE, 1000, "maximum number of bins of a histogram"),
    "processes": Key(WHOLE, 1, "number of processes; each reads one file at a time"),
    "seed": accepted(WHOLE, 0, "nothing is random"),
    "total": Key(FLAG, False, "show the sum and the count of all values"),
    "regex": Key(TEXT, None, "only attributes whose names match"),
    "debug": Key(FLAG, False, "use only this process"),
    "work_dir.input": accepted(TEXT, None, "unused"),
    "work_dir.output": accepted(TEXT, None, "unused"),
}


def stat(arguments: Sequence[str], file: str | None, exact: bool) -> None:
    """Write and show summaries, as Dolma does."""
    from feedmill.cli.output import table
    from feedmill.curation.dolma_stat import shown as classes
    from feedmill.curation.dolma_stat import summarize, write_summaries

    values = configured(arguments, file, SCHEMA)
    if not values["attributes"]:
        raise ConfigError("attributes is missing", kind="missing-option", fix="Add patterns with --attributes.")
    summaries = summarize(
        list(with_files(values["attributes"])),
        most=values["bins"],
        pattern=values["regex"],
        workers=1 if values["debug"] else values["processes"],
        exact=exact,
    )
    for summary in summaries:
        rows = [(value, f"{share:.4f}", f"{count:,}") for value, share, count in classes(summary)]
        if values["total"]:
            rows.append((f"{summary.sum:,.10g}", "sum, total", f"{summary.total:,}"))
        typer.echo(f"\n{typer.style(summary.name, bold=True)}")  # a title would be wrapped at the table's width
        table(("value", "dist", "count"), rows)
    if not summaries:
        typer.echo("warning: no attributes were found", err=True)
    if values["report"] is not None:
        write_summaries(values["report"], summaries)


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
