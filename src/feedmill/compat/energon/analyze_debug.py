"""``feedmill energon analyze-debug``: a picture of which samples were seen at which steps, from debug logs."""

from __future__ import annotations

import colorsys
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from feedmill.errors import ConfigError, DataError, NotFound

_YIELD, _BATCH = "SavableDataLoader.yield", "yield_batch"
_GOLDEN = 0.61803398875
"""Step between the hues of two logs, so that neighbors differ."""


class _Seen(NamedTuple):
    """A batch: number of its log, its loader, its step, and its keys."""

    log: int
    loader: Any
    step: int
    keys: list[str]


def analyze_debug(
    log_paths: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Folders of logs, or logs (.jsonl).")],
    heatmap_path: Annotated[Path, typer.Option("--heatmap-path", help="Picture to write.")] = Path("heatmap.png"),
    heatmap_steps: Annotated[int, typer.Option("--heatmap-steps", min=1, help="Largest width in pixels.")] = 1000,
    heatmap_samples: Annotated[int, typer.Option("--heatmap-samples", min=1, help="Largest height in pixels.")] = 1000,
    heatmap_gain: Annotated[float, typer.Option("--heatmap-gain", help="Factor of the brightness.")] = 10,
    force_loading_order: Annotated[
        bool, typer.Option("--force-loading-order", help="Use the logs of workers instead of the loader's.")
    ] = False,
    include_modality: Annotated[
        str, typer.Option("--include-modality", metavar="A,B", help="Of train and val, those to include.")
    ] = "train",
    skip: Annotated[int, typer.Option("--skip", min=0, help="Number of steps to skip.")] = 0,
    no_colors: Annotated[bool, typer.Option("--no-colors", help="Do not color the logs.")] = False,
) -> None:
    """Show which samples a run saw at which steps, from the debug logs of its workers."""
    files = _files(log_paths)
    typer.echo(f"Analyzing {len(files)} logs")
    modes = {mode.strip() for mode in include_modality.split(",")}
    seen = [] if force_loading_order else list(_batches(files, _YIELD, modes, skip))
    if not seen:
        if not force_loading_order:
            typer.echo("The logs have no batches of loaders: those of the workers are used.")
        seen = list(_batches(files, _BATCH, modes, skip))
    if not seen:
        raise DataError(
            f"the logs have no batches of {include_modality}",
            file=str(files[0]),
            kind="no-batches",
            fix="Set worker_log_level=1 or more, and --include-modality train,val.",
        )
    loaders = {entry.loader for entry in seen}
    if len(loaders) > 1:
        chosen = _choose(sorted(loaders, key=str))
        seen = [entry for entry in seen if entry.loader == chosen]
    numbers: dict[str, int] = {}
    for entry in sorted(seen, key=lambda entry: entry.step):
        for key in entry.keys:
            numbers.setdefault(key, len(numbers))
    steps = len({(entry.log if force_loading_order else 0, entry.step) for entry in seen})
    _write(heatmap_path, _heatmap(seen, numbers, heatmap_samples, heatmap_steps, not no_colors), heatmap_gain)
    typer.echo(f"Found {len(numbers)} unique sample keys, {steps} steps")
    typer.echo(f"Wrote {heatmap_path}: samples from top to bottom in the order of their first step, steps to the right")


def _files(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(path.glob("*.jsonl"))
        elif path.is_file():
            files.append(path)
        else:
            raise NotFound("there is no such log", file=str(path), fix="Check the path.")
    if not files:
        raise NotFound("the folder has no logs (*.jsonl)", file=str(paths[0]), fix="Check the path.")
    return files


def _batches(files: list[Path], kind: str, modes: set[str], skip: int) -> Iterator[_Seen]:
    """Yield the batches of one kind in the logs."""
    for log, path in enumerate(files):
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                entry = json.loads(line)
                if entry.get("t") != kind or entry.get("m", "train") not in modes or not entry.get("keys"):
                    continue
                step = int(entry.get("global_idx", entry["idx"]))
                if step >= skip:
                    yield _Seen(log, entry.get("id"), step, [str(key) for key in entry["keys"]])
            except (ValueError, LookupError, TypeError, AttributeError):
                raise DataError(
                    "the line is no entry of a debug log",
                    file=str(path),
                    record=f"line {number}",
                    fix="Omit this file.",
                ) from None


def _choose(loaders: list[Any]) -> Any:
    typer.echo(f"The logs have several loaders: {', '.join(map(str, loaders))}")
    while True:
        answer = typer.prompt("Number of the loader")
        for loader in loaders:
            if str(loader) == answer.strip():
                return loader


def _heatmap(
    seen: list[_Seen], numbers: dict[str, int], most_rows: int, most_columns: int, colors: bool
) -> npt.NDArray[np.float64]:
    """Return the sums of colors: float64[samples, steps, 3], scaled down to the largest size."""
    last = max(entry.step for entry in seen)
    per_row, per_column = -(-len(numbers) // most_rows), -(-(last + 1) // most_columns)
    sums = np.zeros((-(-len(numbers) // per_row), -(-(last + 1) // per_column), 3))
    for entry in seen:
        color = colorsys.hsv_to_rgb(entry.log * _GOLDEN % 1, 0.7, 1) if colors else (1, 1, 1)
        rows = [numbers[key] // per_row for key in entry.keys]
        np.add.at(sums, (rows, entry.step // per_column), color)
    return sums


def _write(path: Path, sums: npt.NDArray[np.float64], gain: float) -> None:
    from feedmill.samples.sheet import need_pillow

    need_pillow()
    from PIL import Image

    bright = np.clip(sums * gain / max(sums.max(), 1e-9) * 255, 0, 255).astype(np.uint8)
    try:
        Image.fromarray(bright).save(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the picture cannot be written ({error})", file=str(path), fix="Use NAME.png.") from None
