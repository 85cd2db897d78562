"""``feedmill compat energon checkpoint``: describe saved states of loaders, and write them for another number of ranks.

A state of Feedmill fits any number of ranks and workers, so writing it again changes only the number of files. With
packing, groups and hooks that yield, a rank needs the states of all ranks; then each file has the list of them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from feedmill.cli.app import new_app
from feedmill.cli.output import facts
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound

app = new_app(no_args_is_help=True, help="Describe saved states of loaders, and write them for other ranks.")

_MEGATRON = "dataloader_state_dict"
"""Key under which Megatron's training loop saves a state."""
_NUMBER = re.compile(r"\d+(?!.*\d)")

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of torch.save or JSON.")]


class Checkpoint(NamedTuple):
    """States that were saved together.

    Attributes:
        states: one for each rank.
        is_global: whether one file has all of them.
        is_megatron: whether each is a value of Megatron's mapping.
    """

    states: list[Any]
    is_global: bool
    is_megatron: bool


@app.command("info")
def info(input_files: Files) -> None:
    """Describe the states of a checkpoint."""
    checkpoint = read(sort_by_rank(input_files))
    kind = "one file for all ranks" if checkpoint.is_global else "one file for each rank"
    facts([("checkpoint", kind), ("ranks", len(checkpoint.states)), ("workers", "any number")])
    for rank, state in enumerate(checkpoint.states):
        positions = ", ".join(f"{value:,}" for value in _values(state, "position"))
        given = ", ".join(f"{value:,}" for value in _values(state, "given"))
        typer.echo(f"rank {rank}: at sample {positions or 'unknown'}, batch {given or 'unknown'} of its epoch")


@app.command("redist")
def redist(
    input_files: Files,
    output_path: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write to.")],
    new_world_size: Annotated[
        int | None, typer.Option("--new-world-size", metavar="N", min=1, help="Number of ranks to write for.")
    ] = None,
) -> None:
    """Write the states of a checkpoint for another number of ranks."""
    files = sort_by_rank(input_files)
    checkpoint = read(files)
    typer.echo(f"Processing {len(files)} files of {len(checkpoint.states)} ranks")
    ranks = typer.prompt("Number of ranks to write for", type=int) if new_world_size is None else new_world_size
    if ranks < 1:
        raise ConfigError(f"the number of ranks is {ranks}: expected 1 or more", fix="Use 1 or more.")
    for_each = _for_each_rank(checkpoint.states, files)
    output_path.mkdir(parents=True, exist_ok=True)
    if checkpoint.is_global:
        given = checkpoint.states if isinstance(for_each, list) else [for_each] * ranks
        _save(given, output_path / files[0].name)
        typer.echo(f"Wrote {output_path / files[0].name}")
        return
    for rank in range(ranks):
        state = {_MEGATRON: for_each} if checkpoint.is_megatron else for_each
        _save(state, output_path / _name(files[0].name, rank, ranks))
    typer.echo(f"Wrote {ranks} files to {output_path}")


def sort_by_rank(files: list[Path]) -> list[Path]:
    """Return the files in the order of the numbers in their names."""
    return sorted(
        files, key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]
    )


def read(files: list[Path]) -> Checkpoint:
    """Return the states in the files.

    Raises:
        NotFound: a file does not exist.
        ConfigError: a file has no state of Feedmill, or several files have states of all ranks.
    """
    values = [_load(file) for file in files]
    is_megatron = isinstance(values[0], Mapping) and _MEGATRON in values[0]
    if is_megatron:
        values = [value.get(_MEGATRON) if isinstance(value, Mapping) else None for value in values]
    is_global = isinstance(values[0], list)
    if is_global and len(files) > 1:
        raise ConfigError(
            "the file has the states of all ranks: expected no others", file=str(files[0]), fix="Give it alone."
        )
    states = values[0] if is_global else values
    for state in states:
        if not isinstance(state, Mapping) or not any(str(key).startswith("feedmill_") for key in state):
            raise ConfigError(
                "this is not the state of a loader of Feedmill",
                file=str(files[0]),
                kind="bad-state",
                fix="Load the result of save_state_rank(). For states that Energon saved, use Energon.",
            )
    return Checkpoint(list(states), is_global, is_megatron)


def _for_each_rank(states: list[Any], files: list[Path]) -> Any:
    """Return the state that every rank resumes from: one, or the list of all if they differ by their windows."""
    if all(state == states[0] for state in states):
        return states[0]
    if not all(_values(state, "windows") for state in states):
        raise ConfigError(
            "the states of the ranks differ: they were saved at different steps, or in different runs",
            file=str(files[0]),
            kind="bad-state",
            fix="Give the files of all ranks of one checkpoint.",
        )
    return states


def _load(file: Path) -> Any:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise NotFound(f"the file cannot be read ({error.strerror})", file=str(file), fix="Check the path.") from None
    try:
        if file.suffix == ".json":
            return json.loads(data)
        from feedmill.formats.pth import load

        return load(data)
    except FeedmillError as error:
        if error.kind == "unsafe-pickle":
            raise ConfigError(
                "the file has objects of classes, as Energon's states do: expected plain data",
                file=str(file),
                kind="bad-state",
                fix="Use Energon for states that it saved.",
            ) from None
        error.file = error.file or str(file)
        raise
    except ValueError as error:
        raise DataError(f"the file is not JSON ({error})", file=str(file), fix="Check the file.") from None


def _save(state: Any, path: Path) -> None:
    from feedmill.storage.local import LocalStore

    if path.suffix == ".json":
        data = json.dumps(state).encode()
    else:
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
    LocalStore(path.parent).write_bytes(path.name, data)


def _name(name: str, rank: int, ranks: int) -> str:
    """Return the file name of a rank: the last number in `name` is replaced."""
    match = _NUMBER.search(name)
    if match is None:
        if ranks > 1:
            raise ConfigError(f"the name {name!r} has no number of a rank", fix="Rename the file, e.g. state_rank0.pt.")
        return name
    return f"{name[: match.start()]}{rank:0{len(match[0])}}{name[match.end() :]}"


def _values(state: Any, name: str) -> list[Any]:
    """Return the values of a name anywhere in a state."""
    if isinstance(state, Mapping):
        own = [state[name]] if name in state else []
        return own + [value for child in state.values() for value in _values(child, name)]
    return [value for child in state for value in _values(child, name)] if isinstance(state, list | tuple) else []
