"""``feedmill mixture fit``: fit the losses of a swarm's runs, and write the best mixture found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report, facts, printable, table
from feedmill.jobs.options import call
from feedmill.mixture.options import Fit

if TYPE_CHECKING:
    from feedmill.mixture.verbs.fit import FitReport


@command(Fit)
def fit(options: Fit, json: bool) -> None:
    from feedmill.mixture.verbs.fit import fit as run

    report = call(run, options)
    emit_report(report, json, lambda: _show(report))


def _show(report: FitReport) -> None:
    typer.echo(f"{report.path}: the best mixture of {counted(report.runs, 'run')}, by the {report.chosen}")
    rows = [
        [
            name + (" (chosen)" if name == report.chosen else ""),
            f"{model['held_out_error']:.4g}",
            "{:.4g} to {:.4g}".format(*model["interval"]),
            f"{model['rank_correlation']:.3f}",
            f"{model['explained']:.1%}",
        ]
        for name, model in report.models.items()
        if "left_out" not in model
    ]
    table(["model", "held-out error", "95 % interval", "rank correlation", "explained"], rows)
    columns = ["source", report.unit, "natural", "proposed", "tried", "repeats", "at most"]
    shown = [
        [
            one["name"],
            round(one["at_hand"]),
            f"{one['natural']:.2%}",
            f"{one['share']:.2%}",
            f"{one['lowest']:.2%} to {one['highest']:.2%}",
            *([] if one["repeats"] is None else [f"{one['repeats']:.2f}"]),
            *([] if one["repeats"] is None else ["" if one["max_repeats"] is None else f"{one['max_repeats']:g}"]),
        ]
        for one in report.sources
    ]
    table(columns if report.target is not None else columns[:-2], shown)
    if len(report.proposal) > 1:
        stages = [[n + 1, *(f"{share:.2%}" for share in row.values())] for n, row in enumerate(report.proposal)]
        table(["stage", *report.proposal[0]], stages)
    facts(
        [
            ("predicted loss", "{:.5g}, 95 % interval {:.5g} to {:.5g}".format(report.predicted, *report.interval)),
            ("natural mixture", None if report.natural is None else f"{report.natural:.5g} predicted"),
            ("best run", f"{report.best_run['run']}, {report.best_run['loss']:.5g}"),
            ("metrics", ", ".join(f"{name} x {weight:.3g}" for name, weight in report.metrics.items())),
            ("report", report.report),
        ]
    )
    for reason, names in report.left_out.items():
        typer.echo(f"left out: {names['count']:,} x {printable(reason)} ({', '.join(names['examples'])})", err=True)
    for note in report.notes:
        typer.echo(f"note: {printable(note)}", err=True)
