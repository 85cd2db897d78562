"""``feedmill run``: run the steps of a pipeline that are not up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.engines import UNFINISHED
from feedmill.cli.options import DryRun, Json, on_engine
from feedmill.cli.output import counted, emit, printable, show_dry_run

if TYPE_CHECKING:
    from feedmill.pipelines.run import RunReport, StepReport

PipelinePath = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="A pipeline (docs/pipelines.md), in YAML or JSON; a path or a URL.")
]
Steps = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Run only this step; repeatable.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Also run the steps that are up to date.")]
Hash = Annotated[
    bool, typer.Option("--hash/--no-hash", help="Compare files by their content, or by size and time of change.")
]


@on_engine
def run(
    pipeline: PipelinePath,
    dry_run: DryRun = False,
    steps: Steps = None,
    overwrite: Overwrite = False,
    hash: Hash = True,
    json: Json = False,
) -> None:
    """Run several verbs as the steps of a pipeline. Steps whose inputs, options and outputs are unchanged are skipped.

    Each step is recorded in a manifest beside the pipeline, with the hashes of all files that it read and wrote. After
    a kill, the same command resumes. Exit status 1 if a step skipped files or lines that failed, 3 if steps are left
    for the parts of a job array.
    """
    from feedmill.pipelines.remarks import failures
    from feedmill.pipelines.run import run as run_pipeline

    report = run_pipeline(
        pipeline,
        dry_run=dry_run,
        steps=steps or [],
        overwrite=overwrite,
        hash=hash,
        progress=not json,
        on_step=_announce if not json and sys.stderr.isatty() else None,
    )
    emit(report.as_dict(), json, lambda: show(report))
    if any(failures(step.report) for step in report.steps):
        raise typer.Exit(1)
    if report.waiting is not None:
        raise typer.Exit(UNFINISHED)


def _announce(step: StepReport) -> None:
    typer.echo(f"{step.name}: {step.reasons[0]}", err=True)


def show(report: RunReport) -> None:
    """Print what became of each step, and what it left out or warns of."""
    from feedmill.pipelines.remarks import failures, remarks

    dry = report.dry_run
    width = max(len(step.name) for step in report.steps)
    for step in report.steps:
        if step.ran:
            what = f"ran in {step.seconds:.1f} s: {counted(step.inputs, 'file')} to {counted(step.outputs, 'file')}"
        elif step.reasons:
            what = f"{'must run' if dry is None else 'would run'}: {'; '.join(step.reasons)}"
        else:
            what = "up to date"
        typer.echo(f"{step.name:<{width}}  {what}")
        for line in [*failures(step.report), *(remarks(step.report) if step.ran else ())]:
            typer.echo(f"{step.name}: {printable(line)}", err=True)
    if report.waiting is not None:
        typer.echo(f"next: all parts of the step {report.waiting!r}, then --finish again")
    if dry is not None:
        show_dry_run(dry)
    else:
        typer.echo(f"manifest: {report.manifest}")
