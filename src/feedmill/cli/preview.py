"""``feedmill preview``: show samples as text, and their images as a contact sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.options import DatasetConfig, DatasetPath, Json, Split, SplitConfig, Trust
from feedmill.cli.output import emit, printable

if TYPE_CHECKING:
    from feedmill.samples.preview import PreviewReport


def preview(
    path: DatasetPath,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of samples to show.")] = 3,
    start: Annotated[int, typer.Option("--start", metavar="N", min=0, help="Index of the first sample, from 0.")] = 0,
    sheet: Annotated[
        str | None, typer.Option("--sheet", metavar="FILE", help="Write the images of the samples to one picture.")
    ] = None,
    split: Split = None,
    dataset_config: DatasetConfig = None,
    split_config: SplitConfig = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Show samples: key, source, and each part as text."""
    from feedmill.samples.preview import preview as show_samples

    report = show_samples(
        path,
        count=count,
        start=start,
        sheet=sheet,
        split=split,
        dataset_config=dataset_config,
        split_config=split_config,
        trust=trust,
    )
    emit(report.as_dict(), json, lambda: show(report))


def show(report: PreviewReport) -> None:
    """Print the samples for display."""
    print_shown(report.samples)
    if report.sheet is not None:
        typer.echo(f"contact sheet: {report.sheet}")


def print_shown(shown: list[dict[str, Any]]) -> None:
    """Print the output of `as_shown`."""
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
