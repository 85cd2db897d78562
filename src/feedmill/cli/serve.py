"""``feedmill serve``: look at datasets and recipes in a browser."""

from __future__ import annotations

import typer

from feedmill.cli.command import command
from feedmill.jobs.options import call
from feedmill.web.options import Serve


@command(Serve, json=False)
def serve(options: Serve) -> None:
    from feedmill.web.serve import serve as run

    def started(address: str) -> None:
        typer.echo(address)
        typer.echo("press Ctrl-C to stop", err=True)

    call(run, options, on_start=started)
