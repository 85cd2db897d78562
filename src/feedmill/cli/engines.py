"""Options of the verbs that run on an engine: ``--engine``, and those of a Ray cluster and of job arrays."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.output import counted, emit, printable
from feedmill.errors import ConfigError
from feedmill.jobs.options import Flag, Opt, Options

if TYPE_CHECKING:
    from feedmill.jobs.engine import Limits, StageUnfinished, UnitsFailed
    from feedmill.jobs.resources import Resources

UNFINISHED = 3
"""Exit status of what is not finished: the same command, or another of a job array, does the rest."""
SKIPPED = 4
"""Exit status of what is finished without invalid inputs, which are named."""
LOCAL, RAY, PART = ENGINES = ("local", "ray", "part")


class EngineOptions(Options, kw_only=True):
    """Where the units of a verb run."""

    engine: Annotated[
        str | None,
        Opt(
            "local|ray|part|FILE",
            "Where units run: processes of this machine, a Ray cluster, one part of a job array; or settings.",
        ),
    ] = None
    address: Annotated[str | None, Opt("HOST:PORT", "ray: the cluster; default: auto, that of this machine.")] = None
    max_tasks: Annotated[int | None, Opt("N", "ray: units at a time; default: one per core.", min=1)] = None
    task_cpus: Annotated[float | None, Opt("N", "local, ray: cores that a unit needs; default: 1.")] = None
    task_memory: Annotated[str | None, Opt("SIZE", "local, ray: memory that a unit needs, such as 4GiB.")] = None
    task_gpus: Annotated[float | None, Opt("N", "ray: GPUs that a unit needs, such as 1, or 0.5 for a half.")] = None
    task_resources: Annotated[
        list[str] | None, Opt("NAME=N", "ray: custom resource of nodes that a unit needs; repeatable.")
    ] = None
    node_labels: Annotated[
        list[str] | None, Opt("NAME=VALUE", "ray: label that a node must have to run units; repeatable.")
    ] = None
    work: Annotated[str | None, Opt("DIR", "ray, part: folder or URL for work on outputs in object stores.")] = None
    unit_timeout: Annotated[str | None, Opt("TIME", "Time that a unit may take, such as 90s, 30m or 2h.")] = None
    attempts: Annotated[int | None, Opt("N", "Times that a unit is tried that fails, or exceeds its time.", min=1)] = (
        None
    )
    max_failed_units: Annotated[
        float | None,
        Opt("N", "Do all other units if up to N fail, or this fraction; then the same command tries these again."),
    ] = None
    part: Annotated[str | None, Opt("K/N", "part: this part of N; /N or nothing: as the job array says.")] = None
    finish: Annotated[bool, Flag("part: run what the parts left, and publish the output.")] = False
    events: Annotated[str | None, Opt("FILE", "Append what becomes of each unit to this file, as JSON lines.")] = None
    metrics: Annotated[str | None, Opt("FILE", "Keep the state of units in this file, as Prometheus reads it.")] = None


_OF = {
    "address": [RAY],
    "max_tasks": [RAY],
    "task_cpus": [LOCAL, RAY],
    "task_memory": [LOCAL, RAY],
    "task_gpus": [RAY],
    "task_resources": [RAY],
    "node_labels": [RAY],
    "work": [RAY, PART],
    "part": [PART],
    "finish": [PART],
}
"""Parameter -> engines that have it."""
_LIMITS = ("unit_timeout", "attempts", "max_failed_units")
"""Parameters that all engines have."""


def run_on_engine(
    verb: Callable[[], None], name: str, chosen: EngineOptions, options: dict[str, Any], *, as_json: bool
) -> None:
    """Run a verb on the engine of its command line.

    Args:
        name: of the verb.
        options: the verb's, of which ``workers`` and ``dry_run`` are read.
    """
    settings = dict(vars(chosen))
    engine = chosen_engine(settings.pop("engine"), settings, name, workers=options.get("workers"))
    if options.get("dry_run"):  # nothing is sent to other machines
        verb()
        return
    from feedmill.jobs.engine import StageUnfinished, UnitsFailed

    with engine as engine:
        try:
            verb()
        except StageUnfinished as ended:
            _show(ended, getattr(engine, "part", 0), as_json)
            if not ended.last:
                raise typer.Exit(UNFINISHED) from None
        except UnitsFailed as failed:
            _show_failed(failed, as_json)
            raise typer.Exit(UNFINISHED) from None


def _told(events: str | None, metrics: str | None, verb: str) -> AbstractContextManager[Any]:
    if events is None and metrics is None:
        return nullcontext()
    from feedmill.jobs.events import Events

    return Events(events, metrics, verb=verb)


def chosen_engine(
    engine: str | None, given: dict[str, Any], verb: str, *, workers: int | None = None
) -> AbstractContextManager[Any]:
    """Return the engine for options, to be entered; it gives None for processes of this machine.

    The default is ``FEEDMILL_ENGINE``, else ``local``. Both may be a file of settings, which options override.

    Args:
        engine: the value of ``--engine``.
        given: values of the other options.
        verb: for events.
        workers: the value of ``--workers``.

    Raises:
        NotFound: there is no such file.
        ConfigError: an option does not fit the engine, or the file is invalid.
    """
    name, settings = engine or os.environ.get("FEEDMILL_ENGINE") or LOCAL, {}
    if name.endswith((".yaml", ".yml", ".json")):
        settings = _read(name)
        name = settings.pop("engine", LOCAL)
    if name not in ENGINES:
        raise ConfigError(
            f"unknown engine {name!r}",
            kind="bad-option",
            fix=f"Use one of {', '.join(ENGINES)}, or a file of settings (.yaml, .json).",
        )
    chosen = {**settings, **{option: value for option, value in given.items() if value not in (None, False, [])}}
    within = partial(
        _within,
        _limits({option: chosen.pop(option) for option in _LIMITS if option in chosen}),
        _told(chosen.pop("events", None), chosen.pop("metrics", None), verb),
    )
    for option in chosen:
        if name not in _OF[option]:
            raise ConfigError(
                f"--{option.replace('_', '-')} is an option of --engine {' and '.join(_OF[option])}, and the engine is"
                f" {name}",
                kind="bad-option",
                fix=f"Add --engine {_OF[option][0]}, or omit the option.",
            )
    needs = _resources(chosen)
    if name == RAY:
        from feedmill.jobs.ray_engine import RayEngine

        if workers is not None:
            raise ConfigError(
                "--workers is the number of processes of this machine, and units run on the cluster",
                kind="bad-option",
                fix="Use --max-tasks to limit the units at a time.",
            )
        return within(RayEngine(**asdict(needs), **chosen))
    if name == PART:
        from feedmill.jobs.parts import PartEngine

        return within(PartEngine.parse(chosen.pop("part", ""), **chosen))
    from feedmill.jobs.resources import needing

    return within(needing(needs))


@contextmanager
def _within(limits: Limits, told: AbstractContextManager[Any], engine: AbstractContextManager[Any]) -> Iterator[Any]:
    with limits, engine as entered, told:
        yield entered


def _limits(given: dict[str, Any]) -> Limits:
    from feedmill.jobs.amounts import parse_duration
    from feedmill.jobs.engine import Limits

    timeout = given.get("unit_timeout")
    seconds = parse_duration(str(timeout)) if timeout is not None else None
    if timeout is not None and seconds is None:
        raise ConfigError(
            f"--unit-timeout {timeout!r} is no time", kind="bad-option", fix="Use a number with s, m or h, such as 30m."
        )
    return Limits(seconds, given.get("attempts"), given.get("max_failed_units"))


_KINDS = {
    "engine": str,
    "address": str,
    "max_tasks": int,
    "task_cpus": int | float,
    "task_memory": str | int,
    "task_gpus": int | float,
    "task_resources": dict,
    "node_labels": dict,
    "work": str,
    "part": str,
    "unit_timeout": str | int | float,
    "attempts": int,
    "max_failed_units": int | float,
    "events": str,
    "metrics": str,
}


def _read(path: str) -> dict[str, Any]:
    """Return the settings in a file. Raises `NotFound`, and `ConfigError` if it is invalid."""
    from feedmill.errors import did_you_mean
    from feedmill.formats.yamls import read_config
    from feedmill.storage import open_store, split_url

    folder, file = split_url(path)
    document = read_config(open_store(folder).read(file), path)
    if not isinstance(document.value, dict):
        raise ConfigError("expected settings of an engine", file=path, fix=f"Use the keys {', '.join(_KINDS)}.")
    for key, value in document.value.items():
        if key not in _KINDS:
            hint = did_you_mean(str(key), list(_KINDS))
            fix = f"Use {', '.join(_KINDS)}."
            raise ConfigError(f"unknown setting {key!r}{hint}", file=document.at((key,)), kind="bad-option", fix=fix)
        if not isinstance(value, _KINDS[key]) or isinstance(value, bool):
            raise ConfigError(f"{key!r} is {value!r}", file=document.at((key,)), kind="bad-option", fix="Correct it.")
    return dict(document.value)


def _resources(chosen: dict[str, Any]) -> Resources:
    """Take from options, and return, what a unit needs. Raises `ConfigError` if it is invalid."""
    from feedmill.jobs.resources import Resources, amounts, pairs
    from feedmill.storage.limits import parse_size

    custom, labels = chosen.pop("task_resources", {}), chosen.pop("node_labels", {})
    return Resources(
        chosen.pop("task_cpus", None),
        parse_size(chosen.pop("task_memory", None), "--task-memory"),
        chosen.pop("task_gpus", None),
        custom if isinstance(custom, dict) else amounts(custom, "--task-resources"),
        labels if isinstance(labels, dict) else pairs(labels, "--node-labels"),
    )


def _show(ended: StageUnfinished, part: int, as_json: bool) -> None:
    rest = ended.parts - ended.finished
    are = "is" if ended.units == 1 else "are"
    left = (
        f"{rest} of {ended.parts} parts {'is' if rest == 1 else 'are'} not finished"
        if rest
        else "all parts are finished"
    )
    facts = {"stage": ended.stage, "part": part, "parts": ended.parts, "units": ended.units, "finished": ended.finished}
    facts["last"] = ended.last

    def human() -> None:
        units = counted(ended.units, "unit")
        typer.echo(f"part {part} of {ended.parts} ({ended.stage}): {units} {are} finished; {left}")
        if ended.last:
            typer.echo(f"Run the same command with --finish{' when all are' if rest else ''}.")
        else:
            typer.echo("Run all parts again for the next stage; or --finish, which does the rest on one machine.")

    emit({"part": facts}, as_json, human)


def _show_failed(ended: UnitsFailed, as_json: bool) -> None:
    command = shlex.join(["feedmill", *sys.argv[1:]])
    units = [{"unit": unit.name, "error": str(unit.error)} for unit in ended.failed]

    def human() -> None:
        typer.echo(f"not finished: {ended} ({counted(ended.finished, 'unit')} finished):")
        for unit in units:
            typer.echo(f"  {printable(unit['unit'])}: {printable(unit['error'])}")
        typer.echo(f"The output is not complete; finished work is kept. To run only these again:\n  {command}")

    facts = {"stage": ended.stage, "failed": units, "finished": ended.finished, "command": command}
    emit({"unfinished": facts}, as_json, human)
