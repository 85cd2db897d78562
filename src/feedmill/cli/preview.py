"""``feedmill show``: show samples as text, and their images as a contact sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit, printable
from feedmill.jobs.options import call
from feedmill.samples.options import Preview

if TYPE_CHECKING:
    from feedmill.samples.preview import PreviewReport


@command(Preview)
def preview(options: Preview, json: bool) -> None:
    from feedmill.samples.preview import preview as run

    report = call(run, options)
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
