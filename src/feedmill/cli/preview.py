"""``feedmill preview``: samples as text, and their images as a contact sheet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from feedmill.cli.options import DatasetConfig, DatasetPath, Json, Split, SplitConfig, Trust
from feedmill.cli.output import emit, printable
from feedmill.cli.show import as_text
from feedmill.errors import ConfigError, FeedmillError, NotFound


def preview(
    path: DatasetPath,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Samples to show.")] = 3,
    start: Annotated[int, typer.Option("--start", metavar="N", min=0, help="Number of the first one, from 0.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="FILE", help="Write the samples' images as one picture.")
    ] = None,
    split: Split = None,
    dataset_config: DatasetConfig = None,
    split_config: SplitConfig = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Show samples: key, where they lie, and each part as text."""
    from feedmill.samples.open import open as open_dataset

    dataset = open_dataset(path, split=split, dataset_config=dataset_config, split_config=split_config, trust=trust)
    indices = range(start, min(start + count, len(dataset)))
    if not indices:
        raise NotFound(
            f"there is no sample {start:,}, the dataset has {len(dataset):,}",
            file=path,
            kind="no-sample",
            fix="Samples count from 0.",
        )
    samples = dataset.read(indices)
    shown = [as_shown(dataset.locate(i), sample) for i, sample in zip(indices, samples, strict=True)]
    if sheet is not None:
        _write_sheet(samples, [sample["key"] for sample in shown], sheet)
    data = {"path": path, "samples": shown, "sheet": None if sheet is None else str(sheet)}
    emit(data, json, lambda: _print(shown, sheet))


def as_shown(source: Any, sample: Any) -> dict[str, Any]:
    """A sample as text: key, where it lies, and each part."""
    where = {"file": source.file, "offset": source.offset, "length": source.length, "index": source.index}
    return {"key": source.key, "source": where, "parts": {name: as_text(value) for name, value in _parts(sample)}}


def _parts(sample: Any) -> Iterator[tuple[str, Any]]:
    """The sample's own fields, in order; one that can't be decoded gives the reason instead of ending the preview."""
    from feedmill.samples.fields import named_fields

    fields = named_fields(sample)
    if fields is None:
        fields = {"sample": sample}
    for name in fields:
        if not name.startswith("__"):
            try:
                yield name, fields[name]
            except FeedmillError as error:
                yield name, f"(not decoded: {error})"


def _write_sheet(samples: list[Any], keys: list[str], path: Path) -> None:
    from feedmill.samples.sheet import as_image, contact_sheet

    images, captions = [], []
    for sample, key in zip(samples, keys, strict=True):
        for _, value in _parts(sample):
            for item in value if isinstance(value, list | tuple) else [value]:
                image = as_image(item)
                if image is not None:
                    images.append(image)
                    captions.append(key)
    if not images:
        raise ConfigError("none of these samples has an image", file=str(path), fix="Leave --sheet out.")
    contact_sheet(images, captions, path)


def _print(shown: list[dict[str, Any]], sheet: Path | None) -> None:
    print_shown(shown)
    if sheet is not None:
        typer.echo(f"contact sheet: {sheet}")


def print_shown(shown: list[dict[str, Any]]) -> None:
    """Print what `as_shown` gave, for people."""
    for sample in shown:
        source = sample["source"]
        where = f"{printable(source['file'])} at byte {source['offset']:,}, {source['length']:,} bytes"
        typer.secho(printable(sample["key"]), bold=True, nl=False)
        typer.echo(f"   sample {source['index']:,}   {where}")
        for name, text in sample["parts"].items():
            rows = text.splitlines() or [""]
            typer.echo(f"  {printable(name) + ':':<14} {rows[0]}")
            for row in rows[1:]:
                typer.echo(f"  {'':<14} {row}")
        typer.echo("")
