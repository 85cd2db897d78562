"""Options of the verbs that run on an engine: ``--engine``, and those of a Ray cluster and of job arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.output import counted, emit
from feedmill.errors import ConfigError
from feedmill.jobs.options import Flag, Opt, Options

if TYPE_CHECKING:
    from feedmill.jobs.engine import StageUnfinished

UNFINISHED = 3
"""Exit status of a job array that must run again: it did its share, and steps or stages are left for its parts."""
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
    task_memory: Annotated[str | None, Opt("SIZE", "ray: memory that a unit needs, such as 4GiB.")] = None
    work: Annotated[str | None, Opt("DIR", "ray, part: folder or URL for work on outputs in object stores.")] = None
    part: Annotated[str | None, Opt("K/N", "part: this part of N; /N or nothing: as the job array says.")] = None
    finish: Annotated[bool, Flag("part: run what the parts left, and publish the output.")] = False
    events: Annotated[str | None, Opt("FILE", "Append what becomes of each unit to this file, as JSON lines.")] = None
    metrics: Annotated[str | None, Opt("FILE", "Keep the state of units in this file, as Prometheus reads it.")] = None


_OF = {
    "address": [RAY],
    "max_tasks": [RAY],
    "task_memory": [RAY],
    "work": [RAY, PART],
    "part": [PART],
    "finish": [PART],
}
"""Parameter -> engines that have it."""


def run_on_engine(
    verb: Callable[[], None], name: str, chosen: EngineOptions, options: dict[str, Any], *, as_json: bool
) -> None:
    """Run a verb on the engine of its command line.

    Args:
        name: of the verb.
        options: the verb's, of which ``workers`` and ``dry_run`` are read.
    """
    settings = dict(vars(chosen))
    events, metrics = settings.pop("events"), settings.pop("metrics")
    engine = chosen_engine(settings.pop("engine"), settings, workers=options.get("workers"))
    if options.get("dry_run"):  # nothing is sent to other machines
        verb()
        return
    with engine as engine, _told(events, metrics, name):
        if engine is None or engine.name != PART or engine.finish:
            verb()
            return
        from feedmill.jobs.engine import StageUnfinished

        try:
            verb()
        except StageUnfinished as ended:
            _show(ended, engine.part, as_json)
            if not ended.last:
                raise typer.Exit(UNFINISHED) from None


def _told(events: str | None, metrics: str | None, verb: str) -> AbstractContextManager[Any]:
    if events is None and metrics is None:
        return nullcontext()
    from feedmill.jobs.events import Events

    return Events(events, metrics, verb=verb)


def chosen_engine(
    engine: str | None, given: dict[str, Any], *, workers: int | None = None
) -> AbstractContextManager[Any]:
    """Return the engine for options, to be entered; it gives None for processes of this machine.

    The default is ``FEEDMILL_ENGINE``, else ``local``. Both may be a file of settings, which options override.

    Args:
        engine: the value of ``--engine``.
        given: values of the other options.
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
    chosen = {**settings, **{option: value for option, value in given.items() if value not in (None, False)}}
    for option in chosen:
        if name not in _OF[option]:
            raise ConfigError(
                f"--{option.replace('_', '-')} is an option of --engine {' and '.join(_OF[option])}, and the engine is"
                f" {name}",
                kind="bad-option",
                fix=f"Add --engine {_OF[option][0]}, or omit the option.",
            )
    if name == RAY:
        from feedmill.jobs.ray_engine import RayEngine

        if workers is not None:
            raise ConfigError(
                "--workers is the number of processes of this machine, and units run on the cluster",
                kind="bad-option",
                fix="Use --max-tasks to limit the units at a time.",
            )
        return RayEngine(memory=_bytes(chosen.pop("task_memory", None)), **chosen)
    if name == PART:
        from feedmill.jobs.parts import PartEngine

        return PartEngine.parse(chosen.pop("part", ""), **chosen)
    return nullcontext()


_KINDS = {"engine": str, "address": str, "max_tasks": int, "task_memory": str | int, "work": str, "part": str}


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


def _bytes(size: str | int | None) -> int | None:
    from feedmill.storage.limits import parse_size

    return parse_size(size, "--task-memory")


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
