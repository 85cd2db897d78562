"""``feedmill documents decontaminate``: write attributes that mark questions of benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report
from feedmill.curation.options import Decontaminate
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.curation.decontaminate.job import DecontaminateReport


@command(Decontaminate, engines=True)
def decontaminate(options: Decontaminate, json: bool) -> None:
    from feedmill.curation.decontaminate.job import decontaminate as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))


def show(report: DecontaminateReport) -> None:
    """Print the leaked questions by benchmark, and an example of each."""
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    typer.echo(
        f"{counted(report.flagged, 'document')} of {report.documents:,} in {counted(report.files, 'file')} have"
        f" questions of benchmarks, in attributes/{report.name}"
    )
    for one in report.benchmarks:
        lost = [f"{one[kind]:,} {words}" for kind, words in _HIDDEN.items() if one[kind]]
        typer.echo(
            f"  {one['benchmark']}: {one['leaked']:,} of {counted(one['questions'], 'question')} in"
            f" {counted(one['documents'], 'document')}, {one['with_answer']:,} with an answer"
            + (f"; cannot be found: {', '.join(lost)}" if lost else "")
        )
        for example in one["unmarked_examples"][:1]:
            typer.echo(
                f"    not marked: {example['id']}, in {counted(example['documents'], 'document')}:"
                f" {_one_line(example['question'])}"
            )
        for example in one["examples"][:1]:
            typer.echo(f"    {example['id']}: {_one_line(example['question'])}")
            where = f"{example['file']}, line {example['line']}"
            typer.echo(f"    {where}: {_one_line(example['text'])} ({example['share']:.0%})")


_HIDDEN = {"empty": "without text", "short": "too short", "common": "made of common phrases"}


def _one_line(text: str, most: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
