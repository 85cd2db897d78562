"""Questions of an interactive ``prepare``: split ratio, sample type, field map."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.output import counted
from feedmill.jobs.progress import in_cell

if TYPE_CHECKING:
    from feedmill.indexing.report import PrepareReport

MAX_PARTS_FOR_A_MAP = 10
"""Maximum number of distinct parts for which a field map is offered; more need a ``sample_loader.py``."""


def can_answer() -> bool:
    """Return whether somebody can answer a question. A cell of a notebook has a terminal and would wait for ever."""
    return sys.stdin.isatty() and not in_cell()


def confirm(what: str, yes: bool) -> None:
    """Ask before something is lost, unless `yes`. Without a terminal that can answer, it is wrong usage."""
    if yes:
        return
    if not can_answer():
        raise typer.BadParameter(f"this needs a confirmation: {what}", param_hint="--yes")
    typer.confirm(what, abort=True)


def confirm_overwrite(url: str, overwrite: bool) -> None:
    """Ask for confirmation if the dataset is already prepared."""
    from feedmill.formats.energon.prepared import INFO, INFO_YAML
    from feedmill.storage import open_store

    store = open_store(url)
    if overwrite or not (store.exists(INFO) or store.exists(INFO_YAML)):
        return
    typer.confirm(
        "This dataset is prepared already. Prepare it again (unchanged shards are not read again)?", abort=True
    )


def splits_known(url: str) -> bool:
    """Show the splits that the names of shards tell; return whether they do."""
    from feedmill.indexing.prepare_tars import find_shards
    from feedmill.indexing.splitting import by_names
    from feedmill.storage import open_store

    store = open_store(url)
    named = by_names(store, [entry.path for entry in find_shards(store)])
    if named:
        typer.echo(f"Splits by names: {', '.join(f'{name} {len(shards):,}' for name, shards in named.items())}.")
    return bool(named)


def ask_ratio(url: str) -> str:
    """Show the shards and ask for the split ratio."""
    from feedmill.errors import ConfigError
    from feedmill.indexing.prepare_tars import find_shards
    from feedmill.indexing.splitting import parse_ratio
    from feedmill.storage import open_store

    shards = [entry.path for entry in find_shards(open_store(url))]
    typer.echo(f"Found {counted(len(shards), 'shard')}, from {shards[0]} to {shards[-1]}.")
    while True:
        answer: str = typer.prompt('Ratio of train, val and test, like "8,1,1" or "0.5, 0.2, 0.3"')
        try:
            parse_ratio(answer)
        except ConfigError as error:
            typer.echo(str(error))
            continue
        return answer


def describe(url: str, report: PrepareReport, name: str, types: Sequence[str] | None = None) -> None:
    """Show the first samples, ask for sample type and fields, and write ``dataset.yaml``.

    Args:
        url: the dataset.
        report: how it was prepared.
        name: file name of the description.
        types: names of the sample types in the order of their numbers; by default `type_names`.
    """
    from feedmill.indexing.prepare_tars import write_description
    from feedmill.samples.description import CRUDE, describe_type, type_names
    from feedmill.storage import open_store

    _show_first(url)
    typer.echo(f"Parts of the samples: {', '.join(report.parts)}")
    if not typer.confirm("Write a description of the samples (dataset.yaml)?", default=True):
        typer.echo("No dataset.yaml was written: samples are mappings of parts.")
        return
    names = list(types or type_names())
    typer.echo("The sample types:")
    for number, type_name in enumerate(names):
        typer.echo(f"  {number}. {type_name}{' (parts as they are)' if type_name in CRUDE else ''}")
    chosen = _ask_type(names)
    field_map = None
    if chosen not in CRUDE:
        few = len(report.parts) <= MAX_PARTS_FOR_A_MAP
        if few and typer.confirm("Map each field to a part (or else write a sample_loader.py)?", default=True):
            field_map = _ask_fields(chosen, report.parts)
    description = describe_type(chosen, field_map)
    write_description(open_store(url), description, name, report.parts)
    if "sample_loader" in description:
        typer.echo(f"Edit {url}/.nv-meta/sample_loader.py so that it returns the fields of {chosen}.")


def _ask_type(names: list[str]) -> str:
    """Ask for a sample type by its number or name; return its name."""
    from feedmill.errors import ConfigError
    from feedmill.samples.description import CRUDE
    from feedmill.samples.types import sample_type

    while True:
        answer = str(typer.prompt("Number or name of the sample type")).strip()
        if answer.isdecimal() and int(answer) >= len(names):
            typer.echo(f"Enter a number from 0 to {len(names) - 1}.")
            continue
        chosen = names[int(answer)] if answer.isdecimal() else answer
        if chosen in CRUDE:
            return chosen
        try:
            return sample_type(chosen).__name__
        except ConfigError as error:
            typer.echo(str(error))


def _ask_fields(type_name: str, parts: list[str]) -> dict[str, str]:
    from feedmill.errors import ConfigError
    from feedmill.samples.description import check_parts
    from feedmill.samples.types import fields_of, sample_type

    typer.echo("Name the part of each field. json[a][0] selects a value in a part, jpg,png the first existing part.")
    typer.echo("Leave an optional field empty to skip it.")
    obligatory, optional = fields_of(sample_type(type_name))
    out: dict[str, str] = {}
    for name in [*obligatory, *optional]:
        while True:
            note = "" if name in obligatory else " (optional)"
            answer = str(typer.prompt(f"{name}{note}", default="", show_default=False)).strip()
            if not answer and name in optional:
                break
            try:
                check_parts({name: answer}, parts)
            except ConfigError as error:
                typer.echo(str(error))
                continue
            out[name] = answer
            break
    return out


def _show_first(url: str) -> None:
    from feedmill.samples.open import open as open_dataset

    dataset: Any = open_dataset(url, raw=True)
    for sample in dataset.read_raw(range(min(2, len(dataset)))):
        typer.echo(f"Sample {sample.key!r}: {', '.join(f'{part} ({len(sample.raw(part)):,} B)' for part in sample)}")
        if "json" in sample:
            typer.echo(json.dumps(_shortened(sample["json"]), indent=2, ensure_ascii=False))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value[:3]] + (["..."] if len(value) > 3 else [])
    if isinstance(value, str) and len(value) > 200:
        return value[:200] + "..."
    return value
