"""``feedmill bench``: measure how fast a recipe loads, and suggest improvements."""

from __future__ import annotations

from math import isfinite

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit, table
from feedmill.jobs.options import call
from feedmill.loading.options import Bench


@command(Bench)
def bench(options: Bench, json: bool) -> None:
    from feedmill.loading.bench import bench as run

    if not isfinite(options.seconds):
        what = f"must be a finite number of seconds, not {options.seconds}"
        raise typer.BadParameter(what, param_hint="--seconds")
    report = call(run, options, log=lambda what: typer.echo(f"measuring: {what}", err=True))
    emit(report.as_dict(), json, lambda: _print(report))


def _print(report: object) -> None:
    from feedmill.loading.bench import BenchReport, named

    assert isinstance(report, BenchReport)
    columns = [
        "workers",
        "samples/s",
        "first batch s",
        "fetch ms",
        "read ms",
        "transform ms",
        "collate ms",
        "transfer ms",
    ]
    rows = [
        [
            named(rate.workers, processes=rate.processes) if rate.workers else "none",
            round(rate.samples_per_second),
            round(rate.first_batch_seconds, 3),
            round(rate.fetch, 3),
            round(rate.read, 3),
            round(rate.transform, 3),
            round(rate.collate, 3),
            round(rate.transfer, 3),
        ]
        for rate in report.rates
    ]
    mean = report.best.samples
    size = f"{report.batch_size} samples" if report.batch_size else f"{mean:,.1f} samples by budget"
    ranks = "" if report.world_size == 1 else f" for the first of {report.world_size:,} ranks"
    table(columns, rows, title=f"batches of {size}{ranks}, {report.cores} cores; milliseconds of work per batch")
    if report.best.cost_spread and report.world_size > 1:
        typer.echo(f"the costliest rank has {report.best.cost_spread:.3f} times the mean cost of the ranks, per step")
    typer.echo(
        f"as bytes, in one thread: {report.undecoded_samples_per_second:,.0f} samples/s in the plan's order,"
        f" {report.stored_samples_per_second:,.0f} in stored order\n"
    )
    for line in report.advice:
        typer.echo(f"- {line}")
