"""``feedmill serve --export``: datasets and recipes as one HTML file."""

from __future__ import annotations

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit, human_size
from feedmill.jobs.options import call
from feedmill.web.options import Report


@command(Report)
def report(options: Report, json: bool) -> None:
    from feedmill.web.report import report as run

    done = call(run, options)

    def show() -> None:
        typer.echo(f"wrote {done.path}, {human_size(done.bytes)}, {done.findings:,} findings")
        for problem in done.problems:
            typer.echo(f"not shown: {problem}", err=True)

    emit(done.as_dict(), json, show)
