"""``feedmill run``: run the steps of a pipeline that are not up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.engines import SKIPPED, UNFINISHED
from feedmill.cli.output import counted, emit, printable, show_dry_run
from feedmill.jobs.options import call
from feedmill.pipelines.options import Run

if TYPE_CHECKING:
    from feedmill.pipelines.run import RunReport, StepReport


@command(Run, engines=True)
def run(options: Run, json: bool) -> None:
    """Exit status 3 if steps are left for parts or submitted jobs, 4 if steps skipped invalid files or lines."""
    from feedmill.pipelines.remarks import failures
    from feedmill.pipelines.run import run as run_pipeline

    report = call(run_pipeline, options, on_step=_announce if not json and sys.stderr.isatty() else None)
    emit(report.as_dict(), json, lambda: show(report))
    if report.waiting is not None:
        raise typer.Exit(UNFINISHED)
    if any(failures(step.report) for step in report.steps):
        raise typer.Exit(SKIPPED)


def _announce(step: StepReport) -> None:
    typer.echo(f"{step.name}: {step.reasons[0]}", err=True)


def show(report: RunReport) -> None:
    """Print what became of each step, and what it left out or warns of."""
    from feedmill.pipelines.remarks import failures, remarks

    dry, submission = report.dry_run, report.submission
    if submission is not None and submission.scripts and not submission.notes:
        for name, text in submission.scripts.items():
            typer.echo(f"==> {name} <==\n{text}")
        return
    width = max(len(step.name) for step in report.steps)
    for step in report.steps:
        if step.ran:
            what = f"ran in {step.seconds:.1f} s: {counted(step.inputs, 'file')} to {counted(step.outputs, 'file')}"
        elif step.reasons:
            queued = {} if submission is None else submission.states.get(step.name, {})
            states = ", ".join(f"{count} {state}" for state, count in queued.items())
            what = states or f"{'must run' if dry is None else 'would run'}: {'; '.join(step.reasons)}"
        else:
            what = "up to date"
        typer.echo(f"{step.name:<{width}}  {what}")
        for line in [*failures(step.report), *(remarks(step.report) if step.ran else ())]:
            typer.echo(f"{step.name}: {printable(line)}", err=True)
    if submission is not None:
        for line in [*submission.ended, *submission.notes]:
            typer.echo(printable(line))
        if submission.jobs:
            typer.echo(f"scripts and logs: {submission.folder}")
    elif report.waiting is not None:
        typer.echo(f"next: all parts of the step {report.waiting!r}, then --finish again")
    if dry is not None:
        show_dry_run(dry)
    else:
        typer.echo(f"manifest: {report.manifest}")
