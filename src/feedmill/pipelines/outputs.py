"""Which files at the outputs of a step are its own: only these may it replace or delete."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from feedmill.documents.file import places
from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import DryRun
from feedmill.pipelines.files import Files, files_of
from feedmill.pipelines.history import History
from feedmill.pipelines.pipeline import VERBS, Step

_PART = re.compile(r"\\{part[^}]*\\}")
"""The number of a planned file, in an escaped path; see `feedmill.jobs.dry_run.PlannedFile`."""


def arguments_of(step: Step, history: History) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a step's function, and the files at its outputs that the step has not written."""
    arguments = step.arguments()
    there = files_of(step.outputs)
    others = history.others(step, there)
    verb = VERBS[step.verb]
    if (
        (verb.takes_output or verb.in_place)
        and not verb.updates
        and "overwrite" in inspect.signature(step.function).parameters
        and "overwrite" not in step.options
        and (there or step.name in history.records)
    ):
        # Without own files, the verb itself refuses to replace any.
        arguments["overwrite"] = not others or len(others) < len(there)
    return arguments, others


def refuse_others(step: Step, history: History, arguments: dict[str, Any], others: Sequence[str]) -> None:
    """Raise `ConfigError` if a step would replace or delete a file that it has not written."""
    asked = step.options.get("overwrite")
    if not others or asked or not (VERBS[step.verb].updates or arguments.get("overwrite")):
        return
    if "progress" in inspect.signature(step.function).parameters:
        arguments = {**arguments, "progress": False}
    refuse_planned(step, history, step.function(**{**arguments, "dry_run": True}).dry_run, others)


def refuse_planned(step: Step, history: History, dry: DryRun, others: Sequence[str]) -> None:
    """Raise `ConfigError` if a dry run of a step would replace or delete one of the files of others."""
    if step.options.get("overwrite"):
        return
    place = places()
    planned = [_PART.sub(r"\\d+", re.escape(place(out.path.rstrip("/")))) for out in dry.outputs]
    folders = [re.escape(place(out.path.rstrip("/"))) + "/.*" for out in dry.outputs if out.path.endswith("/")]
    gone = [re.escape(place(path)) for path in dry.deletes]
    names = re.compile("|".join([*planned, *folders, *gone]) or "(?!)", re.DOTALL)
    path = next((path for path in others if names.fullmatch(place(path))), None)
    if path is None:
        return
    writer = history.writers(step).get(path)
    whose = "that this pipeline has not written" if writer is None else f"that the step {writer!r} has written"
    raise ConfigError(
        f"the step {step.name!r} would replace a file {whose}",
        file=path,
        kind="exists",
        fix="Move or delete the file, or choose another output for the step.",
    )


def stale(step: Step, history: History, report: Any) -> list[str]:
    """Return outputs of a step's last run that it no longer writes: the next step would read them too."""
    record, written = history.records.get(step.name), _written(report)
    if record is None or written is None:
        return []
    place, kept = places(), {*record.others, *history.writers(step)}
    return [
        path
        for path, facts in files_of(step.outputs).items()
        if path not in kept
        and path in record.outputs
        and facts.is_same(record.outputs[path])
        and place(path) not in written
    ]


def others_of(outputs: Files, others: Iterable[str], report: Any) -> list[str]:
    """Return the files at the outputs of a step that it has not written.

    Args:
        outputs: all files there after the step has run.
        others: those that were there before and were not its own.
        report: the verb's. If it names its files, these are the step's own.
    """
    written = _written(report)
    if written is None:
        before = set(others)
        return [path for path in outputs if path in before]
    place = places()
    return [path for path in outputs if place(path) not in written]


def _written(report: Any) -> set[str] | None:
    """Return the locations of the files that a report names; None if it names none."""
    files = report.written_files() if hasattr(report, "written_files") else None
    if files is None:
        return None
    place = places()
    return {place(path) for path in files}
