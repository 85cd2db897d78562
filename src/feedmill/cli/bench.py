"""``feedmill bench``: measure how fast a recipe loads, and suggest improvements."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any

import typer

from feedmill.cli.options import Json, RecipePath, Trust
from feedmill.cli.output import emit, table


def bench(
    recipe: RecipePath,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", "-b", metavar="N", min=1, help="Samples per batch; default: the recipe's budget, else 32."
        ),
    ] = None,
    world: Annotated[int, typer.Option("--world", metavar="N", min=1, help="Measure rank 0 of N ranks.")] = 1,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers", metavar="N,N,...", help="Numbers of workers to try; default: 0 up to the number of cores."
        ),
    ] = None,
    processes: Annotated[bool, typer.Option("--processes", help="Use worker processes instead of threads.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds to measure each number of workers.")
    ] = 3.0,
    start: Annotated[
        int, typer.Option("--start", metavar="N", min=0, help="Position of the plan at which to start.")
    ] = 0,
    output: Annotated[
        str, typer.Option("--arrays", metavar="numpy|torch", help="Array type of the batches.")
    ] = "numpy",
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Device to copy torch batches to, such as cuda.")
    ] = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Measure how fast a recipe loads on this machine, with different numbers of workers, and suggest improvements.

    The measuring loop does nothing with the batches, so a real training loop waits less.
    """
    from feedmill.loading.bench import bench as measure

    if not isfinite(seconds):
        raise typer.BadParameter(f"must be a finite number of seconds, not {seconds}", param_hint="--seconds")
    choice: dict[str, Any] = {"output": output}  # checked there
    report = measure(
        recipe,
        batch_size,
        world=world,
        workers=None if workers is None else _numbers(workers),
        processes=processes,
        seconds=seconds,
        start=start,
        **choice,
        device=device,
        trust=trust,
        log=lambda what: typer.echo(f"measuring: {what}", err=True),
    )
    emit(report.as_dict(), json, lambda: _print(report))


def _numbers(text: str) -> list[int]:
    found = text.replace(" ", "").split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in found):
        raise typer.BadParameter(
            f"{text!r} is not a comma-separated list of whole numbers, e.g. 0,2,4", param_hint="--workers"
        )
    return [int(word) for word in found]


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
