"""``feedmill edit mount``: mount a dataset as a file system."""

from __future__ import annotations

import typer

from feedmill.cli.command import command
from feedmill.jobs.options import call
from feedmill.mounting.options import Mount


@command(Mount, json=False)
def mount(options: Mount) -> None:
    from feedmill.mounting.mount import mount as run

    def ready() -> None:
        if not options.detach:
            typer.echo(f"{options.url} is mounted at {options.mountpoint}; press Ctrl-C to unmount", err=True)

    call(run, options, ready=ready)
