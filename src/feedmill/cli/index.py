"""``feedmill tokens index``: write index files for JSONL and token files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.engines import SKIPPED
from feedmill.cli.output import counted, emit_report
from feedmill.jobs.options import call
from feedmill.tokens.options import Index

if TYPE_CHECKING:
    from feedmill.tokens.verbs.index import IndexReport


@command(Index, engines=True)
def index(options: Index, json: bool) -> None:
    """Exit status 4 if lines were skipped."""
    from feedmill.tokens.verbs.index import index as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))
    if report.dropped:
        raise typer.Exit(SKIPPED)


def show(report: IndexReport) -> None:
    """Print what was indexed, and which lines were skipped."""
    what = counted(report.entries, "line" if report.kind == "raw" else "document")
    typer.echo(f"{report.index}: {what}")
    for line in report.bad:
        typer.echo(f"skipped: line {line['line']} at byte {line['offset']}: {line['reason']}")
    if report.dropped > len(report.bad):
        typer.echo(f"skipped: {report.dropped - len(report.bad)} more lines")
