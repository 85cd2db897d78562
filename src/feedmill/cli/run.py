"""``feedmill run``: run the steps of a pipeline that are not up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.engines import on_engine
from feedmill.cli.options import Json
from feedmill.cli.output import counted, emit

if TYPE_CHECKING:
    from feedmill.pipelines.run import RunReport, StepReport

PipelinePath = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="A pipeline (docs/pipelines.md), in YAML or JSON; a path or a URL.")
]
Plan = Annotated[bool, typer.Option("--plan", help="Run nothing; show which steps would run, and why.")]
Steps = Annotated[
    list[str] | None, typer.Option("--steps", "-s", metavar="NAME", help="Run only this step; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", help="Also run the steps that are up to date.")]
Hash = Annotated[
    bool, typer.Option("--hash/--no-hash", help="Compare files by their content, or by size and time of change.")
]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show progress bars on a terminal.")]


@on_engine
def run(
    pipeline: PipelinePath,
    plan: Plan = False,
    steps: Steps = None,
    force: Force = False,
    hash: Hash = True,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Run several verbs as the steps of a pipeline. Steps whose inputs, options and outputs are unchanged are skipped.

    Each step is recorded in a manifest beside the pipeline, with the hashes of all files that it read and wrote. After
    a kill, the same command resumes.
    """
    from feedmill.pipelines.run import run as run_pipeline

    report = run_pipeline(
        pipeline,
        plan=plan,
        steps=steps or [],
        force=force,
        hash=hash,
        progress=progress and not json,
        on_step=_announce if progress and not json and sys.stderr.isatty() else None,
    )
    emit(report.as_dict(), json, lambda: show(report, plan))


def _announce(step: StepReport) -> None:
    typer.echo(f"{step.name}: {step.reasons[0]}", err=True)


def show(report: RunReport, plan: bool) -> None:
    """Print what became of each step."""
    width = max(len(step.name) for step in report.steps)
    for step in report.steps:
        if step.ran:
            what = f"ran in {step.seconds:.1f} s: {counted(step.inputs, 'file')} to {counted(step.outputs, 'file')}"
        elif step.reasons:
            what = f"{'would run' if plan else 'must run'}: {'; '.join(step.reasons)}"
        else:
            what = "up to date"
        typer.echo(f"{step.name:<{width}}  {what}")
    if report.waiting is not None:
        typer.echo(f"next: all parts of the step {report.waiting!r}")
    if not plan:
        typer.echo(f"manifest: {report.manifest}")
