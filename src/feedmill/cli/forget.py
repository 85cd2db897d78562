"""``feedmill forget``: where documents are in all that was made from them, and lists that remove them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.delete import listed
from feedmill.cli.output import counted, emit
from feedmill.errors import NotFound
from feedmill.jobs.options import call
from feedmill.tracing.options import Forget

if TYPE_CHECKING:
    from feedmill.tracing.forget import ForgetReport


@command(Forget)
def forget(options: Forget, json: bool) -> None:
    from feedmill.tracing.forget import forget as run

    ids = str(options.ids)
    wanted = listed(ids[1:]) if ids.startswith("@") else [one for one in ids.split(",") if one]
    try:
        done = call(run, options, ids=wanted)
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
