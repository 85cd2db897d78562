"""``feedmill mixture propose``: a swarm of mixtures as recipes in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report, table
from feedmill.jobs.options import call
from feedmill.mixture.options import Propose

if TYPE_CHECKING:
    from feedmill.mixture.verbs.propose import ProposeReport


@command(Propose)
def propose(options: Propose, json: bool) -> None:
    from feedmill.mixture.verbs.propose import propose as run

    report = call(run, options)
    emit_report(report, json, lambda: _show(report))


def _show(report: ProposeReport) -> None:
    stages = f" of {report.stages} stages" if report.stages > 1 else ""
    size = "" if report.target is None else f", for a run of {report.target:,} {report.unit}"
    typer.echo(f"{report.path}: {counted(report.runs, 'mixture')}{stages} of {report.recipe}{size}")
    columns = ["source", report.unit, "natural", "center", "lowest", "mean", "highest"]
    columns += ["limit" if report.stages == 1 else "limit of the run", "most repeats"]
    rows = [
        [
            source["name"],
            round(source["at_hand"]),
            *(f"{source[name]:.2%}" for name in ("natural", "center", "low", "mean", "high", "most_share")),
            *([] if source["most_repeats"] is None else [f"{source['most_repeats']:.2f}"]),
        ]
        for source in report.sources
    ]
    table(columns if report.target is not None else columns[:-1], rows)
    if report.redrawn or report.clipped:
        typer.echo(
            f"{counted(report.redrawn, 'draw')} beyond a limit or there before were drawn again,"
            f" {counted(report.clipped, 'mixture')} moved to a limit"
        )
