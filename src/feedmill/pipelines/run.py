"""The verb ``run``: run the steps of a pipeline whose inputs, options or outputs have changed.

Of the files at the outputs of a step, only its own may be replaced or deleted.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from feedmill._version import __version__
from feedmill.documents.file import places
from feedmill.documents.find import is_pattern
from feedmill.errors import ConfigError, DataError, NotFound, did_you_mean
from feedmill.jobs.dry_run import DryRun, JobReport
from feedmill.jobs.engine import StageUnfinished, current, is_alone, limits_given
from feedmill.jobs.events import current as events_given
from feedmill.jobs.events import of_step
from feedmill.jobs.options import verb
from feedmill.jobs.parts import LookingEngine
from feedmill.jobs.resources import needing
from feedmill.jobs.work import alone
from feedmill.pipelines.ahead import Ahead, added, as_plain, stage_name
from feedmill.pipelines.files import Files, changed, files_of, with_hashes
from feedmill.pipelines.history import History, StepRecord, manifest_of
from feedmill.pipelines.options import Run
from feedmill.pipelines.pipeline import VERBS, Pipeline, Step, read_pipeline
from feedmill.pipelines.reads import also_read
from feedmill.pipelines.submit import Left, Submission, submit
from feedmill.pipelines.submit import refuse_others as refuse_other_options
from feedmill.storage import open_store, split_url

logger = logging.getLogger("feedmill")

_SHOWN = 3
_PART = re.compile(r"\\{part[^}]*\\}")
"""The number of a planned file, in an escaped path; see `feedmill.jobs.dry_run.PlannedFile`."""


@dataclass(slots=True)
class StepReport:
    """What became of a step.

    Attributes:
        reasons: why it had to run; empty if it is up to date.
        ran: whether it ran.
        inputs, outputs: number of files.
        seconds: wall time of this run.
        report: the report of the verb, as with ``--json``; of an earlier run if the step is up to date.
    """

    name: str
    verb: str
    reasons: list[str] = field(default_factory=list)
    ran: bool = False
    inputs: int = 0
    outputs: int = 0
    seconds: float = 0.0
    report: Any = None


@dataclass(slots=True)
class RunReport(JobReport):
    """Report of a pipeline.

    Attributes:
        manifest: path or URL of the manifest.
        waiting: name of the step that the parts of a job array, or submitted jobs, must run next; None if nothing is
            left.
        submission: what ``submit`` did.
    """

    manifest: str
    steps: list[StepReport] = field(default_factory=list)
    waiting: str | None = None
    submission: Submission | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "dry_run": self.planned()}


@verb(Run)
def run(options: Run) -> RunReport:
    """A step is up to date if its options, the content of its inputs, and its outputs are those of its last run. It is
    recorded in the manifest beside the pipeline as soon as it has ended, so a killed run continues with the same
    command. In the block of an engine, the steps run on it.

    Raises:
        NotFound: there is no such pipeline, or an input has no files.
        ConfigError: the pipeline or the arguments are invalid.
        DataError: the manifest is corrupt, or a step did not write its outputs.
        FeedmillError: an error of a step.
    """
    hashed = options.hash and is_alone()
    described, chosen = _chosen(options.pipeline, options.steps)
    refuse_other_options(options)
    if options.submit is not None:
        return _submit(options, described, chosen)
    if options.dry_run:
        return _run_dry(chosen, History(described), options.overwrite, hashed)
    store, name = manifest_of(described.url)
    with alone(store, name):
        return _run_all(
            described, chosen, History(described), options.overwrite, hashed, options.progress, options.on_step
        )


def _submit(options: Run, described: Pipeline, steps: list[Step]) -> RunReport:
    if current() is not None or limits_given() or events_given() is not None:
        raise ConfigError(
            "submitted jobs choose their engine themselves, and do not get limits of units, --events or --metrics",
            kind="bad-option",
            fix="Omit the options of engines, and unset FEEDMILL_ENGINE.",
        )
    store, name = manifest_of(described.url)

    def missing(parts: int) -> Left | None:
        with LookingEngine(parts) as engine, alone(store, name):
            try:
                while _run_all(described, pending, History(described), False, False, False, None).waiting is not None:
                    pass  # a step without anything left to do has ended
            except StageUnfinished as ended:
                return Left(ended.stage, engine.missing, ended.last)
        return None

    looked = _left(steps, History(described))
    pending = [step for step, report in zip(steps, looked, strict=True) if report.reasons]
    submission = submit(options, pending, missing)
    looked = _left(steps, History(described))
    report = RunReport(store.locate(name), looked, submission=submission)
    if not options.print_scripts and not options.cancel:
        report.waiting = next((step.name for step in looked if step.reasons), None)
    return report


def _left(steps: Sequence[Step], history: History) -> list[StepReport]:
    """Return which steps must be submitted: none whose last run only skipped invalid inputs, which are as they were."""
    return [report for report, _ in _looks(steps, history, force=False, hashed=False, retry=False)]


def look(pipeline: str | os.PathLike[str], steps: Sequence[str] = ()) -> list[StepReport]:
    """Return which steps would run, and why, without trying them. Files are compared by size and time of change.

    Raises as `run`.
    """
    described, chosen = _chosen(pipeline, steps)
    return [report for report, _ in _looks(chosen, History(described), force=False, hashed=False)]


def _chosen(pipeline: str | os.PathLike[str], steps: Sequence[str]) -> tuple[Pipeline, list[Step]]:
    described = read_pipeline(pipeline)
    unknown = [name for name in steps if name not in {step.name for step in described.steps}]
    if unknown:
        hint = did_you_mean(unknown[0], [step.name for step in described.steps])
        raise ConfigError(f"the pipeline has no step {unknown[0]!r}{hint}", file=described.url, kind="bad-option")
    return described, [step for step in described.steps if not steps or step.name in steps]


def _run_all(
    pipeline: Pipeline,
    steps: Sequence[Step],
    history: History,
    force: bool,
    hashed: bool,  # not by parts, each of which would read all files
    progress: bool | None,
    on_step: Callable[[StepReport], None] | None,
) -> RunReport:
    report = RunReport(history.url)
    engine = current()
    of_parts = engine is not None and engine.name == "part"
    if engine is None or of_parts:
        for step in steps:
            for what in step.resources.of_ray():
                if what != "gpus" or not of_parts:  # the scheduler of parts was asked for GPUs
                    logger.warning("%s: the step %r needs %s, which only Ray considers", step.at, step.name, what)
    with Ahead(pipeline, steps, history) as ahead:
        for step in steps:
            counted = ahead.settle(step)
            looked, inputs = _look(step, history, force, hashed, ())
            report.steps.append(looked)
            if not looked.reasons:
                if counted:
                    history.drop(step)
                continue
            # A run of `--finish` leaves the next step to the parts.
            if of_parts and any(other.ran for other in report.steps):
                report.waiting = report.steps.pop().name
                break
            if on_step is not None:
                on_step(looked)
            ahead.start(step, _overlap, _hold)
            _run(step, looked, inputs, history, hashed, progress, ahead, counted)
    return report


def _looks(
    steps: Sequence[Step], history: History, *, force: bool, hashed: bool, retry: bool = True
) -> Iterator[tuple[StepReport, str | None]]:
    """Yield why each step must run, and the name of the earlier step that it waits for, if any."""
    planned: list[Step] = []
    for step in steps:
        read = [*step.inputs, *also_read(step)] if planned else []
        waits = [other.name for other in planned if _overlap(other.outputs, read)]
        report, _ = _look(step, history, force, hashed, waits, retry=retry)
        planned += [step] if report.reasons else []
        yield report, waits[0] if waits else None


def _run_dry(steps: Sequence[Step], history: History, force: bool, hashed: bool) -> RunReport:
    """Run the steps dry that must run and whose inputs are there."""
    dry = DryRun()
    report = RunReport(history.url, dry_run=dry)
    waiting: list[str] = []
    for step, (looked, waits) in zip(steps, _looks(steps, history, force=force, hashed=hashed), strict=True):
        report.steps.append(looked)
        if waits is not None:
            waiting.append(step.name)
        if waits is not None or not looked.reasons:
            continue
        arguments, others = arguments_of(step, history)
        done = step.function(**arguments, dry_run=True)
        refuse_planned(step, history, done.dry_run, others)
        looked.report = as_plain(done)
        dry.merge(done.dry_run, step.name)
        for path in stale(step, history, done):
            dry.deletes_all(open_store(split_url(path)[0]), [split_url(path)[1]])
    if any(step.reasons for step in report.steps):
        dry.writes(open_store(split_url(history.url)[0]), split_url(history.url)[1])
    if waiting:
        dry.warnings.append(f"not tried, as earlier steps write what they read: {', '.join(waiting)}")
    return report


def _look(
    step: Step, history: History, force: bool, hashed: bool, waits: Sequence[str], *, retry: bool = True
) -> tuple[StepReport, Files]:
    """Return why a step must run, and its inputs; with `retry`, also because of files that it skipped."""
    report = StepReport(step.name, step.verb)
    record = history.records.get(step.name)
    if waits:
        report.reasons = [f"it reads what the step {waits[0]!r} writes"]
        return report, {}
    inputs = _inputs(step)
    report.inputs = len(inputs)
    inputs = {**also_read(step), **inputs}
    inputs = with_hashes(inputs, *_known(history)) if hashed else inputs
    if record is None:
        report.reasons = ["it has not run yet"]
        return report, inputs
    options = _plain(step.options)
    if record.verb != step.verb:
        report.reasons.append(f"the verb was {record.verb}")
    same = {name for name, value in options.items() if name in record.options and record.options[name] == value}
    names = sorted({*options, *record.options} - same)
    report.reasons += [f"the option {name!r} has changed" for name in names]
    report.reasons += _shown("input", changed(record.inputs, inputs))
    outputs = files_of(step.outputs)
    # Those of other steps, which may write to the same folder, and new ones of others are no reason.
    before = {path: record.outputs[path] for path in record.outputs.keys() - history.of_steps(step)}
    foreign = {*history.others(step, outputs)} - {*before}
    outputs = {path: facts for path, facts in outputs.items() if path not in foreign}
    outputs = with_hashes(outputs, *_known(history)) if hashed else outputs
    report.reasons += _shown("output", changed(before, outputs))
    failed = record.report.get("failed") if isinstance(record.report, dict) else None
    if failed and retry:
        report.reasons.append(f"{len(failed)} of its files failed in its last run")
    if force and not report.reasons:
        report.reasons = ["all steps were requested"]
    report.outputs, report.report = len(outputs), record.report
    return report, inputs


def _inputs(step: Step) -> Files:
    versions: Files = {}
    for place in step.inputs:
        files = files_of([place])
        if not files:
            raise NotFound(
                f"the step {step.name!r} reads {place!r}, which has no files",
                file=step.at,
                kind="not-found",
                fix="Check the path, or the outputs of the steps before it.",
            )
        versions.update(files)
    return versions


def _known(history: History) -> list[Mapping[str, Any]]:
    return [files for record in history.records.values() for files in (record.outputs, record.inputs)]


def _shown(what: str, changes: Sequence[str]) -> list[str]:
    more = len(changes) - _SHOWN
    shown = [f"the {what} {change}" for change in changes[:_SHOWN]]
    return [*shown, f"{more} more {what}s differ"] if more > 0 else shown


def _run(
    step: Step,
    done: StepReport,
    inputs: Files,
    history: History,
    hashed: bool,
    progress: bool | None,
    ahead: Ahead,
    counted: dict[str, Any],
) -> None:
    arguments, others = arguments_of(step, history)
    refuse_others(step, history, arguments, others)
    if "progress" in inspect.signature(step.function).parameters:
        arguments["progress"] = progress
    began = time.perf_counter()
    with (
        history.beginning(step, others),
        needing(step.resources),
        of_step(stage_name(step)),
    ):
        report = step.function(**arguments)
    done.seconds, done.ran, done.report = round(time.perf_counter() - began, 3), True, as_plain(report)
    done.report = added(done.report, counted) if counted else done.report
    for path in stale(step, history, report):
        folder, name = split_url(path)
        open_store(folder).delete(name)
        logger.warning("%s: deleted, an output of the last run of the step %r", path, step.name)
    # Attributes that presets needed were computed by the step itself.
    also = {path: facts for path, facts in also_read(step).items() if path not in inputs}
    inputs = {**inputs, **(with_hashes(also, *_known(history)) if hashed else also)}
    outputs = ahead.without_theirs(files_of(step.outputs))
    if not outputs:
        raise DataError(
            f"the step {step.name!r} has ended, but there are no files at {', '.join(step.outputs)}",
            file=step.at,
            kind="empty-result",
            fix="Correct 'outputs': paths, folders, patterns, or beginnings of the names of its files.",
        )
    outside = others_of(outputs, others, report)
    for path in history.writers(step).keys() & {*outside}:
        del outputs[path]  # of other steps
    outputs = with_hashes(outputs, *_known(history)) if hashed else outputs
    done.outputs = len(outputs)
    facts = StepRecord(
        name=step.name,
        verb=step.verb,
        options=_plain(step.options),
        feedmill=__version__,
        inputs=inputs,
        outputs=outputs,
        seconds=done.seconds,
        report=done.report,
        others=[path for path in outside if path in outputs],
    )
    history.record(step, facts)


def _overlap(written: Sequence[str], read: Sequence[str]) -> bool:
    """Return whether places may have files in common."""
    return any(_within(a, b) or _within(b, a) for a in map(_base, written) for b in map(_base, read))


def _hold(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether one of some places may have files at one of others."""
    return any(_within(a, b) for a in map(_base, others) for b in map(_base, some))


def _base(place: str) -> str:
    """Return a place up to its first wildcard."""
    while is_pattern(place):
        place = place.rpartition("/")[0]
    return place.rstrip("/")


def _within(a: str, b: str) -> bool:
    return a == b or a.startswith((f"{b}/", f"{b}.")) or not b


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(orjson.dumps(dict(options), option=orjson.OPT_NON_STR_KEYS, default=str))
    return plain


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
