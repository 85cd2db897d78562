"""``feedmill forget``: where documents are in all that was made from them, and lists that remove them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.delete import listed
from feedmill.cli.options import GlobalBatch, Json, Samples
from feedmill.cli.output import counted, emit
from feedmill.errors import NotFound

if TYPE_CHECKING:
    from feedmill.tracing.forget import ForgetReport


def forget(
    ids: Annotated[
        str,
        typer.Argument(metavar="IDS", help="Ids or FILE:LINE with commas between, or @FILE with one a line."),
    ],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Recipes, token files, and folders of outputs.")
    ],
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FOLDER", help="Write the report, exclusions and skip lists to this folder."),
    ] = None,
    global_batch: GlobalBatch = None,
    samples: Samples = None,
    json: Json = False,
) -> None:
    """Find documents in raw files, in all that was made from them, and in the steps of recipes. Changes no data."""
    from feedmill.tracing.forget import forget as find

    wanted = listed(ids[1:]) if ids.startswith("@") else [one for one in ids.split(",") if one]
    try:
        done = find(wanted, paths, report=report, global_batch=global_batch, samples=samples)
    except NotFound as error:
        if os.path.isfile(ids):
            error.fix = f"{ids} is a file: pass @{ids} to search for the ids in it."
        raise
    emit(done.as_dict(), json, lambda: _show(done))


def _show(report: ForgetReport) -> None:
    for one in report.documents:
        document = one.document
        typer.echo(typer.style(one.asked, bold=True) + f": {document.file}:{document.row + 1}")
        for line in document.summary():
            typer.echo(f"  {line}")
        for recipe, seen in one.seen.items():
            steps = ", ".join(f"{step:,}" for step in seen["steps"][:10])
            more = ", ..." if len(seen["steps"]) > 10 else ""
            typer.echo(
                f"  {recipe}: seen {counted(seen['times'], 'time')}{f', in steps {steps}{more}' if steps else ''}"
            )
    rows = sum(map(len, report.files.values()))
    typer.echo(f"{counted(rows, 'row')} of {counted(len(report.files), 'file')} hold them; nothing was changed")
    for path in report.written:
        typer.echo(f"wrote {path}")
