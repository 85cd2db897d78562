"""``feedmill edit repair``: remove damaged data and index what is intact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report
from feedmill.indexing.options import Repair
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.indexing.repair import RepairReport

SHOWN = 20
"""Number of keys of lost samples that are printed for a shard."""


@command(Repair)
def repair(options: Repair, json: bool) -> None:
    """Exit status 1 if damage remains."""
    from feedmill.indexing.repair import repair as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))
    if report.remaining:
        raise typer.Exit(1)


def show(report: RepairReport) -> None:
    """Print what was removed, what damage remains, and what is indexed."""
    for item in report.dropped:
        more = f" and {len(item.keys) - SHOWN:,} more (see the report)" if len(item.keys) > SHOWN else ""
        keys = f", samples {', '.join(item.keys[:SHOWN])}{more}" if item.keys else ""
        typer.echo(
            f"removed: {item.bytes:,} bytes from byte {item.offset:,} of {item.file}{keys}; kept in {item.saved}"
        )
        typer.echo(f"  because {item.why}")
    for error in report.remaining:
        typer.echo(f"not in the index: {error}")
    if not report.dropped and not report.remaining:
        typer.echo("no problems found")
    if report.prepared is not None:
        samples, shards = counted(report.prepared.samples, "sample"), counted(report.prepared.shards, "shard")
        typer.echo(f"indexed: {samples} in {shards}")
        for warning in report.prepared.warnings:
            typer.echo(f"warning: {warning}", err=True)
