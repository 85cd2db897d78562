"""``feedmill tokens shuffle``: shuffle documents, lines or chunks of tokens."""

from __future__ import annotations

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, show_written
from feedmill.jobs.options import call
from feedmill.tokens.options import Shuffle


@command(Shuffle, engines=True)
def shuffle(options: Shuffle, json: bool) -> None:
    from feedmill.tokens.verbs.shuffle import shuffle as run

    report = call(run, options)
    emit_report(report, json, lambda: show_written(report))
