"""Steps that run ahead: file by file, on what earlier steps have written so far, while these still run.

A step of a verb that finds its finished files again (`Verb.by_file`) is called again and again, in a process of its
own, on the inputs that are there. When its turn comes, the run of the pipeline calls it once more, on all inputs: it
does what is left, and only then is the step recorded. So bytes, records, errors and resuming are those of steps that
run one after another, whatever became of the process that ran ahead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing import connection
from typing import Any

import msgspec

from feedmill.errors import EmptyResult, FeedmillError, NotFound
from feedmill.jobs.engine import Limits, UnitsFailed, current, limits_given
from feedmill.jobs.events import Events, of_step
from feedmill.jobs.events import current as events_given
from feedmill.jobs.resources import needing
from feedmill.pipelines.files import Files, files_of
from feedmill.pipelines.history import History
from feedmill.pipelines.pipeline import VERBS, Pipeline, Step, read_pipeline

logger = logging.getLogger("feedmill")

_PAUSE = 0.5
"""Least seconds between two looks for new inputs; a look that takes long is repeated later."""
_END = b"end\n"


class Ahead:
    """The steps of a run that are ahead.

    Args:
        pipeline: of which they are.
        steps: those of the run.
        history: notes that they began.
    """

    def __init__(self, pipeline: Pipeline, steps: Sequence[Step], history: History) -> None:
        self._pipeline, self._steps, self._history = pipeline, steps, history
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, Files] = {}
        self._mixed: set[str] = set()
        engine = current()
        self._overlaps = pipeline.overlap and len(steps) > 1
        if self._overlaps and engine is not None and engine.name == "part":
            logger.warning("overlap is ignored: the parts of a job array run step after step")
            self._overlaps = False

    def start(
        self,
        running: Step,
        reads: Callable[[Sequence[str], Sequence[str]], bool],
        holds: Callable[[Sequence[str], Sequence[str]], bool],
    ) -> None:
        """Start the later steps that work file by file on what this step, which is about to run, writes.

        Args:
            reads: whether places that are written and places that are read may have files in common.
            holds: whether one of these places has files at one of those.
        """
        if not self._overlaps:
            return
        at = self._steps.index(running)
        written = list(running.outputs)
        for number, step in enumerate(self._steps[at + 1 :], at + 1):
            if not reads(written, step.inputs):
                continue
            if VERBS[step.verb].by_file and not step.options.get("overwrite") and step.name not in self._running:
                # Their files would be taken for its own.
                mixed = next((one for one in self._steps[at:number] if holds(step.outputs, one.outputs)), None)
                if mixed is None:
                    self._begin(step)
                elif step.name not in self._mixed:
                    self._mixed.add(step.name)
                    logger.warning(
                        "the step %r does not run ahead: its outputs may hold those of the step %r",
                        step.name,
                        mixed.name,
                    )
            written += step.outputs

    def _begin(self, step: Step) -> None:
        self._before[step.name] = files_of(step.outputs)
        others = self._history.others(step, self._before[step.name])
        if others:  # that it may not replace, is refused at its turn
            return
        self._history.begin(step, others)
        engine, events = current(), events_given()
        settings = {
            "engine": None if engine is None else engine.settings(),
            "limits": asdict(limits_given()),
            "events": None if events is None else events.file,
            "stage": stage_name(step),
        }
        command = "from feedmill.pipelines.ahead import main; main()"
        self._running[step.name] = subprocess.Popen(
            [sys.executable, "-c", command, self._pipeline.url, step.name, _facts(step), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # it ends with its workers
        )

    def without_theirs(self, files: Files) -> Files:
        """Return the files without those that these steps have written, also in the folder of another step."""
        theirs = files_of(place for step in self._steps if step.name in self._running for place in step.outputs)
        return {path: facts for path, facts in files.items() if path not in theirs} if theirs else files

    def settle(self, step: Step) -> dict[str, Any]:
        """Let a step end what it has begun ahead, as its turn has come; return what it counted (`counted`)."""
        child = self._running.pop(step.name, None)
        if child is None:
            return {}
        assert child.stdout is not None
        try:
            assert child.stdout is not None
            if not connection.wait([child.stdout.fileno()], 0):  # it has not begun a pass
                self._running[step.name] = child
                self._stop(step.name)
                return {"reused": 0}
            output, _ = child.communicate(_END)
        except BaseException:
            self._running[step.name] = child
            raise
        try:
            found: dict[str, Any] = json.loads(output)
        except ValueError:
            logger.warning(
                "the step %r could not run ahead, and runs now (exit status %d)", step.name, child.returncode
            )
            return {}
        return found

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        """End the steps whose turn has not come. What they have published is theirs."""
        for name in list(self._running):
            self._stop(name)
            step = next(step for step in self._steps if step.name == name)
            self._history.abandon(step)
            before = self._before[name]
            new = [
                path
                for path, facts in files_of(step.outputs).items()
                if path not in before or not facts.is_same(before[path])
            ]
            if new:
                logger.warning(
                    "the step %r ran ahead: %s files at %s are complete each, and kept, but the step is not finished",
                    name,
                    f"{len(new):,}",
                    ", ".join(step.outputs),
                )

    def _stop(self, name: str) -> None:
        child = self._running.pop(name)
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def stage_name(step: Step) -> str:
    """Return how events name a step."""
    return step.name if step.name == step.verb else f"{step.name} ({step.verb})"


def as_plain(report: Any) -> Any:
    """Return a report as plain data."""
    if hasattr(report, "as_dict"):
        report = report.as_dict()
    return msgspec.to_builtins(report, enc_hook=str)


def counted(report: Any) -> dict[str, Any]:
    """Return what a report of a verb that works file by file counts of one run, as numbers to be added up.

    What it made is negative in ``reused``: the last run finds it again. A run that ended as one of its inputs was
    removed meanwhile, has no report, and what it made counts as reused.
    """
    made = report.get("files", report.get("archives", 0)) - len(report.get("failed") or ())
    return {"reused": report["reused"] - made} | {name: report[name] for name in ("models", "model") if name in report}


def added(a: Any, b: Any) -> Any:
    """Return the sum of numbers, also in mappings, whose keys one of both may lack."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a | {name: added(a[name], value) if name in a else value for name, value in b.items()}
    return a + b if isinstance(a, int | float) and isinstance(b, int | float) else a


def main() -> None:
    """Run a step ahead until standard input says that its turn has come. Without its reader, all ends at once."""
    url, name, facts, given = sys.argv[1:]
    settings = json.loads(given)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(ended,), daemon=True).start()
    step = next((step for step in read_pipeline(url).steps if step.name == name), None)
    if step is None or _facts(step) != facts:
        sys.exit(f"the step {name!r} of {url} was changed after the run began")
    total: dict[str, Any] = {"reused": 0}
    events = contextlib.nullcontext() if settings["events"] is None else Events(settings["events"])
    with (
        _engine(settings["engine"]),
        Limits(**settings["limits"]),
        events,
        of_step(settings["stage"]),
        needing(step.resources),
    ):
        for report in _passes(step, ended):
            total = added(total, counted(report))
    sys.stdout.write(json.dumps(total))


def _facts(step: Step) -> str:
    """Return what decides the outputs of a step, as text: its process reads the pipeline again."""
    return json.dumps([step.verb, step.inputs, step.outputs, dict(step.options), step.resources], default=str)


def _watch(ended: threading.Event) -> None:
    if os.read(0, len(_END)) != _END:
        os.killpg(0, signal.SIGKILL)
    ended.set()


def _engine(settings: dict[str, Any] | None) -> contextlib.AbstractContextManager[Any]:
    if settings is None:
        return contextlib.nullcontext()
    from feedmill.jobs.ray_engine import RayEngine

    return RayEngine(**settings)


def _passes(step: Step, ended: threading.Event) -> Iterator[Any]:
    """Yield the report of each run of a step on the inputs that are there, until its turn has come or it fails."""
    before = None
    while not ended.is_set():
        began = time.monotonic()
        with contextlib.suppress(FeedmillError):
            there = files_of(step.inputs)
            if there and there != before:
                if before is None:
                    sys.stdout.write("\n")  # a pass has begun
                    sys.stdout.flush()
                before = there
                try:
                    report = step.function(**{**step.arguments(), "progress": False})
                except (NotFound, EmptyResult):
                    continue  # nothing is there yet
                except (FeedmillError, UnitsFailed):
                    return  # raised again at its turn
                yield as_plain(report)
                continue
        ended.wait(max(_PAUSE, 5 * (time.monotonic() - began)))
