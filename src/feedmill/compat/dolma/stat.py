"""Implement ``feedmill compat dolma stat``: Dolma's summaries of attributes."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from feedmill.compat.dolma.config import FLAG, TEXT, TEXTS, WHOLE, Key, accepted, configured
from feedmill.compat.dolma.patterns import with_files
from feedmill.errors import ConfigError

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
