"""``feedmill documents extract``: make documents from web archives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, facts, human_rate, human_size, printable, show_left_out
from feedmill.curation.options import Extract
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.curation.extract.extract import ExtractReport


@command(Extract, engines=True)
def extract(options: Extract, json: bool) -> None:
    from feedmill.curation.extract.extract import extract as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))


def show(report: ExtractReport) -> None:
    """Print what was written and left out."""
    reused = f" ({report.reused:,} up to date)" if report.reused else ""
    skipped = ", ".join(f"{count:,} {kind}" for kind, count in report.skipped.items())
    rate = human_rate(report.documents / max(report.seconds, 1e-9), "documents")
    facts(
        [
            ("wrote", report.output),
            ("archives", f"{report.archives:,}{reused}, {human_size(report.input_bytes)}"),
            ("documents", f"{report.documents:,}, {human_size(report.bytes)}"),
            ("attributes", ", ".join(report.attributes) or None),
            ("other records", skipped or None),
            ("time", f"{report.seconds:.2f} s, {rate}"),
        ]
    )
    for pattern in report.missing:
        typer.echo(f"warning: {printable(pattern)}: no web archives match this pattern", err=True)
    show_left_out(report.left_out)
