"""``feedmill tokens merge``: merge token files or JSONL files into one."""

from __future__ import annotations

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, show_written
from feedmill.jobs.options import call
from feedmill.tokens.options import Merge


@command(Merge, engines=True)
def merge(options: Merge, json: bool) -> None:
    from feedmill.tokens.verbs.merge import merge as run

    report = call(run, options)
    emit_report(report, json, lambda: show_written(report))
