"""``feedmill convert``: convert a dataset to another format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report, facts, human_size
from feedmill.converting.options import Convert
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.converting.engine import ConvertReport
    from feedmill.converting.preview import Preview


@command(Convert, engines=True)
def convert(options: Convert, json: bool) -> None:
    from feedmill.converting.convert import convert as run

    report = call(run, options, on_preview=None if json else show_plan)
    emit_report(report, json, lambda: show(report))


def show_plan(plan: Preview) -> None:
    """Print the plan: outputs, names and losses."""
    count = "" if plan.count is None else f", {plan.count:,} {'documents' if plan.family == 'tokens' else plan.family}"
    outputs = "" if plan.outputs is None else f" in {counted(plan.outputs, 'file')}"
    typer.echo(f"{plan.source} ({plan.kind}{count}) -> {plan.destination} ({plan.to}{outputs})")
    for name, becomes in plan.names.items():
        typer.echo(f"  {name}: {becomes}")
    for loss in plan.losses:
        typer.echo(f"  lost{' (content)' if loss.content else ''}: {loss.what}")


def show(report: ConvertReport) -> None:
    """Print what was written."""
    noun = {"tokens": "documents"}.get(report.plan.family, report.plan.family)
    but = " except for the losses" if report.plan.losses else ""
    found = f"same as the source{but}, {report.digest}" if report.digest else "not verified"
    facts(
        [
            ("written", f"{report.samples:,} {noun}, {human_size(report.bytes)} in {counted(report.outputs, 'file')}"),
            ("finished earlier", f"{counted(report.resumed, 'output')}" if report.resumed else None),
            ("skipped", f"{report.skipped:,} (listed in the proof)" if report.skipped else None),
            ("proof", f"{report.proof} ({found})"),
        ]
    )
    for note in report.notes:
        typer.echo(f"note: {note}")
    for bad in report.examples[:5]:
        typer.echo(f"skipped: {bad.key}: {bad.reason}", err=True)
