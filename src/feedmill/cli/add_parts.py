"""``feedmill edit add-parts``: add parts to the samples of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, facts, human_size
from feedmill.jobs.options import call
from feedmill.writing.options import AddParts

if TYPE_CHECKING:
    from feedmill.writing.rewrite import RewriteReport


@command(AddParts)
def add_parts(options: AddParts, json: bool) -> None:
    from feedmill.writing.add_parts import add_parts as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))


def show(report: RewriteReport) -> None:
    """Print the report: counts, bytes written and time."""
    facts(
        [
            ("wrote", report.path),
            ("samples", report.samples),
            ("shards", report.shards),
            ("written", human_size(report.bytes)),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"note: {warning}", err=True)
