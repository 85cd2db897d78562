"""The view of a pipeline: its steps, whether they are up to date, what each read and wrote, and how long it took."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from feedmill.errors import FeedmillError
from feedmill.pipelines.files import FileFacts
from feedmill.pipelines.history import StepRecord
from feedmill.pipelines.run import StepReport, look
from feedmill.web.library import OpenItem, Run, read_run
from feedmill.web.parts import next_step, tree
from feedmill.web.state import State

MOST_FILES, MOST_STEPS = 50, 500


def pipeline(thing: OpenItem, state: State) -> dict[str, Any]:  # noqa: ARG001
    """Return the steps of a pipeline as plain data. Files are compared by size and time of change.

    Raises:
        ConfigError: the pipeline has become invalid.
        DataError: the manifest is corrupt.
    """
    run = read_run(thing.path)
    records = {} if run.manifest is None else {record.name: record for record in run.manifest.steps}
    steps = _steps(thing, run, records)
    total = sum(step["seconds"] or 0.0 for step in steps) or 1.0
    for step in steps:
        step["share"] = round(100 * (step["seconds"] or 0.0) / total, 2)
    stale = not (run.pipeline is None or all(step["state"] == "up to date" for step in steps))
    return {
        "next": _next(thing, stale),
        "name": thing.name,
        "path": thing.path,
        "manifest": run.manifest_url,
        "alone": run.pipeline is None,
        "ran": run.manifest is not None,
        "steps": steps[:MOST_STEPS],
        "more": max(0, len(steps) - MOST_STEPS),
        "current": sum(step["state"] == "up to date" for step in steps),
        "seconds": sum(step["seconds"] or 0.0 for step in steps),
        "bytes": sum(step["outputs"]["bytes"] for step in steps),
        "versions": sorted({record.feedmill for record in records.values()}),
        "command": f"feedmill run {thing.path}",
    }


def _next(thing: OpenItem, stale: bool) -> dict[str, Any]:
    if stale:
        return next_step("Some steps are not up to date. Run them:", code=f"feedmill run {thing.path}")
    return next_step("Keep this run for a ticket:", code=f"feedmill serve {thing.path} --export run.html")


def _steps(thing: OpenItem, found: Run, records: Mapping[str, StepRecord]) -> list[dict[str, Any]]:
    """Return the steps in order: those of the pipeline, or those that a manifest alone has."""
    written = {path: (name, facts) for name, record in records.items() for path, facts in record.outputs.items()}
    if found.pipeline is None:
        return [
            _step(thing, number, record.name, record.verb, record, written, state="recorded")
            for number, record in enumerate(records.values(), 1)
        ]
    began = {} if found.manifest is None else found.manifest.began
    states = _states(thing.path, [step.name for step in found.pipeline.steps])
    steps = []
    for number, step in enumerate(found.pipeline.steps, 1):
        record, looked = records.get(step.name), states[step.name]
        reasons = [looked] if isinstance(looked, str) else looked.reasons
        state = (
            "interrupted"
            if step.name in began
            else "not run"
            if record is None
            else "must run"
            if reasons
            else "up to date"
        )
        one = _step(thing, number, step.name, step.verb, record, written, state)
        one |= {"reads": list(step.inputs), "writes": list(step.outputs), "reasons": reasons}
        if record is None:
            one["options"] = tree(dict(step.options))
        steps.append(one)
    return steps


def _states(path: str, names: Iterable[str]) -> dict[str, StepReport | str]:
    """Return the report of each step as `run` would plan it, or why it cannot be planned."""
    try:
        return {step.name: step for step in look(path)}
    except FeedmillError:  # one step's inputs are missing: the others have a state all the same
        states: dict[str, StepReport | str] = {}
        for name in names:
            try:
                states[name] = look(path, [name])[0]
            except FeedmillError as error:
                states[name] = error.what
        return states


def _step(
    thing: OpenItem,
    number: int,
    name: str,
    verb: str,
    record: StepRecord | None,
    written: Mapping[str, tuple[str, FileFacts]],
    state: str,
) -> dict[str, Any]:
    return {
        "number": number,
        "name": name,
        "verb": verb,
        "state": state,
        "reasons": [],
        "seconds": None if record is None else record.seconds,
        "feedmill": None if record is None else record.feedmill,
        "options": None if record is None else tree(record.options),
        "report": None if record is None or record.report is None else tree(record.report),
        "reads": [],
        "writes": [],
        "inputs": _files({} if record is None else record.inputs, written),
        "outputs": _files({} if record is None else record.outputs, {}),
        "open": [] if record is None else _open(thing, record.outputs),
    }


def _files(files: Mapping[str, FileFacts], written: Mapping[str, tuple[str, FileFacts]]) -> dict[str, Any]:
    """Return files as plain data, each with the step that wrote it; ``differs`` if it wrote other bytes."""
    rows = []
    for path, facts in list(files.items())[:MOST_FILES]:
        step, before = written.get(path, (None, facts))
        rows.append(
            {
                "path": path,
                "bytes": facts.size,
                "hash": facts.xxh3,
                "version": facts.version,
                "step": step,
                "differs": not before.is_same(facts),
            }
        )
    size = sum(facts.size for facts in files.values())
    return {"count": len(files), "bytes": size, "files": rows, "more": max(0, len(files) - MOST_FILES)}


def _open(thing: OpenItem, files: Mapping[str, FileFacts]) -> list[dict[str, str]]:
    """Return what is open of the files of a step: the datasets that are one of them, or that hold one."""
    found = []
    for other in thing.others.values():
        base = os.path.normpath(other.path) if "://" not in other.path else other.path.rstrip("/")
        if other.kind == "dataset" and any(_norm(path) == base or _norm(path).startswith(f"{base}/") for path in files):
            found.append({"name": other.name, "view": other.front})
    return found


def _norm(path: str) -> str:
    return path if "://" in path else os.path.normpath(path)
