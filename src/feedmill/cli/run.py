"""``feedmill run``: run the steps of a pipeline that are not up to date.

The lines that are shown of a step: warnings of its verb's report, and what the verb left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.command import command
from feedmill.cli.engines import SKIPPED, UNFINISHED
from feedmill.cli.output import counted, emit, printable, show_dry_run
from feedmill.errors import FeedmillError
from feedmill.jobs.options import call
from feedmill.pipelines.options import Run

if TYPE_CHECKING:
    from feedmill.pipelines.run import RunReport, StepReport


@command(Run, engines=True)
def run(options: Run, json: bool) -> None:
    """Exit status 3 if steps are left for parts or submitted jobs, 4 if steps skipped invalid files or lines."""
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


_SHOWN = 5


def failures(report: Any) -> list[str]:
    """Return lines about what failed: a verb with such a report has exit status 4.

    Args:
        report: plain data, as with ``--json``.
    """
    found = _mapping(report)
    errors = [f"error: {_error(item)}" for item in found.get("failed") or ()]
    return [*errors, *_skipped(found.get("dropped"), "line", found.get("bad") or ())]


def remarks(report: Any) -> list[str]:
    """Return lines about other inputs that were skipped or left out, and the warnings and notes."""
    found = _mapping(report)
    lines = [f"warning: {text}" for text in found.get("warnings") or ()]
    lines += [f"warning: no files match {pattern}" for pattern in found.get("missing") or ()]
    lines += [f"note: {text}" for text in found.get("notes") or ()]
    lines += _left_out(found.get("left_out"))
    lines += [f"broken: {_error(item)}" for item in found.get("broken") or ()]
    noun = "sample" if "examples" in found else "document"
    lines += _skipped(found.get("skipped"), noun, found.get("skipped_examples") or found.get("examples") or ())
    if files := found.get("skipped_files"):
        lines += _skipped(files, "file", [{"reason": name} for name in found.get("skipped_files_examples") or ()])
    return lines


def _mapping(report: Any) -> Mapping[str, Any]:
    return report if isinstance(report, Mapping) else {}


def _error(item: Any) -> str:
    """Return the message of an error that is given as plain data."""
    if not isinstance(item, Mapping) or "what" not in item:
        return str(item)
    fields = {name: item[name] for name in ("file", "offset", "record", "fix") if name in item}
    return str(FeedmillError(str(item["what"]), **fields))


def _left_out(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for reason, count in value.items():
            names = count.get("examples") if isinstance(count, Mapping) else ()
            number = count["count"] if isinstance(count, Mapping) else count
            if number:
                yield f"left out: {number:,} x {reason}" + (f" ({', '.join(map(str, names))})" if names else "")
    elif isinstance(value, Sequence):
        yield from (f"left out: {_error(item)}" for item in value)
    elif value:
        yield f"left out: {value:,} pairs that were not compared"


def _skipped(number: Any, noun: str, examples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about a number of skipped inputs. Of verbs whose `skipped` has another meaning it is no number."""
    if not isinstance(number, int) or isinstance(number, bool) or not number:
        return
    yield f"skipped: {number:,} {noun}{'' if number == 1 else 's'}"
    for item in examples[:_SHOWN]:
        where = " ".join([*map(str, filter(None, [item.get("file"), item.get("key")])), *_at(item)])
        yield f"skipped: {where}{': ' if where else ''}{item.get('reason')}"
    if number > _SHOWN:
        yield f"skipped: and {number - min(_SHOWN, len(examples)):,} more"


def _at(item: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} {item[name]}" for name in ("line", "index") if item.get(name) is not None)
