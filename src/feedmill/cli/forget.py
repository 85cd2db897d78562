"""``feedmill documents forget``: where documents are in all that was made from them, and lists that remove them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

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
        if os.path.isfile(ids) and error.kind == "no-such-sample":
            error.fix = f"{ids} is a file: pass @{ids} to search for the ids in it."
        raise
    emit(done.as_dict(), json, lambda: _show(done))


MOST_QUESTIONS, MOST_DOCUMENTS = 100, 3
"""Questions, and documents of each, that are printed."""


def _show(report: ForgetReport) -> None:
    questions = report.questions
    for question, one in list(questions.items())[:MOST_QUESTIONS]:
        documents = one["documents"]
        typer.echo(typer.style(question, bold=True) + f": in {counted(len(documents), 'document')}")
        for document in documents[:MOST_DOCUMENTS]:
            typer.echo(f"  {document}")
        if len(documents) > MOST_DOCUMENTS:
            typer.echo(f"  and {len(documents) - MOST_DOCUMENTS:,} more")
        _show_seen(one["seen"])
    if len(questions) > MOST_QUESTIONS:
        typer.echo(f"and {len(questions) - MOST_QUESTIONS:,} more questions; --json and --report have all")
    for forgotten in report.documents:
        if not forgotten.questions:
            document = forgotten.document
            typer.echo(typer.style(forgotten.asked, bold=True) + f": {document.file}:{document.row + 1}")
            for line in document.summary():
                typer.echo(f"  {line}")
            _show_seen(forgotten.seen)
    for path, count in report.unused.items():
        typer.echo(f"{path}: {counted(count, 'marked document')}, from which nothing of this was made")
    rows = sum(map(len, report.files.values()))
    typer.echo(f"{counted(rows, 'row')} of {counted(len(report.files), 'file')} hold them; nothing was changed")
    for path in report.written:
        typer.echo(f"wrote {path}")


def _show_seen(seen: dict[str, Any]) -> None:
    for recipe, one in seen.items():
        steps = ", ".join(f"{step:,}" for step in one["steps"][:10])
        more = ", ..." if len(one["steps"]) > 10 else ""
        typer.echo(f"  {recipe}: seen {counted(one['times'], 'time')}{f', in steps {steps}{more}' if steps else ''}")
