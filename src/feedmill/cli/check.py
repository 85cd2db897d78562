"""``feedmill check``: find problems of a dataset before a run reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit, human_size
from feedmill.indexing.options import Check
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.indexing.report import CheckReport


@command(Check, engines=True)
def check(options: Check, json: bool) -> None:
    """Exit status 0 if no problems were found, 1 otherwise."""
    from feedmill.indexing.check import check as run

    report = call(run, options)
    emit(report.as_dict(), json, lambda: show(report))
    if report.findings:
        raise typer.Exit(1)


def show(report: CheckReport) -> None:
    """Print the findings and notes, then the verdict on the last line."""
    for finding in report.findings:
        typer.echo(f"found: {finding}")
    for note in report.notes:
        typer.echo(f"note: {note}")
    seen = f"{counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}, {human_size(report.bytes)}"
    verdict = counted(len(report.findings), "finding") if report.findings else "no problems found"
    typer.echo(f"{report.path}: {verdict} ({seen})")
