"""``feedmill edit reshard``: rewrite the samples of a dataset into new shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, facts, human_size
from feedmill.jobs.options import call
from feedmill.writing.options import Reshard

if TYPE_CHECKING:
    from feedmill.writing.write import WriteReport


@command(Reshard, engines=True)
def reshard(options: Reshard, json: bool) -> None:
    from feedmill.writing.reshard import reshard as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))


def show(report: WriteReport) -> None:
    """Print what was written."""
    reused = f" ({report.reused} of an interrupted run)" if report.reused else ""
    facts(
        [
            ("wrote", report.path),
            ("samples", report.samples),
            ("shards", f"{report.shards:,}{reused}"),
            ("size", human_size(report.bytes)),
            ("time", f"{report.seconds:.2f} s, {report.samples / max(report.seconds, 1e-9):,.0f} samples/s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
