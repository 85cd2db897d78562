"""``feedmill edit append``: add samples to a prepared dataset."""

from __future__ import annotations

from feedmill.cli.command import command
from feedmill.cli.output import emit_report
from feedmill.cli.reshard import show
from feedmill.jobs.options import call
from feedmill.writing.options import Append


@command(Append)
def append(options: Append, json: bool) -> None:
    from feedmill.writing.append import append as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))
