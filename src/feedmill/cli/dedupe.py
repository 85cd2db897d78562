"""``feedmill dedupe``: write attributes that mark duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report
from feedmill.curation.options import Dedupe
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.curation.dedupe.job import DedupeReport


@command(Dedupe, engines=True)
def dedupe(options: Dedupe, json: bool) -> None:
    from feedmill.curation.dedupe.dedupe import dedupe as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))


def show(report: DedupeReport) -> None:
    """Print the number of duplicates, and the fill of the Bloom filter."""
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    typer.echo(
        f"{counted(report.documents, 'document')} of {report.rows:,} in {counted(report.files, 'file')}"
        f" with duplicates ({counted(report.units, 'span')}), in attributes/{report.name}"
    )
    if report.hashes is not None and report.fill is not None:
        hashes = "1 hash" if report.hashes == 1 else f"{report.hashes:,} hashes"
        typer.echo(f"the filter has {hashes} and is filled to {100 * report.fill:.2g} %")
