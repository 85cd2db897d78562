"""``feedmill tokens split``: split token files or JSONL files into several."""

from __future__ import annotations

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, show_written
from feedmill.jobs.options import call
from feedmill.tokens.options import Split


@command(Split, engines=True)
def split(options: Split, json: bool) -> None:
    from feedmill.tokens.verbs.split import split as run

    report = call(run, options)
    emit_report(report, json, lambda: show_written(report))
