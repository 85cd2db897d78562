"""``feedmill merge``: merge token files or JSONL files into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, facts
from feedmill.jobs.options import call
from feedmill.tokens.options import Merge

if TYPE_CHECKING:
    from feedmill.tokens.rewrite import Report


@command(Merge, engines=True)
def merge(options: Merge, json: bool) -> None:
    from feedmill.tokens.merge import merge as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))


def show(report: Report) -> None:
    """Print which files a verb over token files wrote, and what it dropped."""
    lines = any(done.path.endswith(".jsonl") for done in report.outputs)
    shown = report.outputs if len(report.outputs) <= 20 else report.outputs[:20]
    for done in shown:
        documents, amount = f"{done.documents:,} documents", f"{done.tokens:,} tokens"
        if lines:
            documents, amount = f"{done.documents:,} lines", f"{done.tokens:,} bytes"
        typer.echo(f"{done.path}: {documents}, {amount}")
    if len(report.outputs) > len(shown):
        typer.echo(f"... and {len(report.outputs) - len(shown)} more files")
    facts(
        [
            ("seed", None if report.seed is None else str(report.seed)),
            ("finished earlier", f"{report.resumed} files" if report.resumed else None),
            *((f"dropped, {reason}", count) for reason, count in report.left_out.items()),
        ]
    )
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
