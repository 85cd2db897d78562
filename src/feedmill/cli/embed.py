"""``feedmill documents embed``: a vector of each document or image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command, filled
from feedmill.cli.output import counted, emit_report, facts, show_left_out
from feedmill.cli.tag import of_model
from feedmill.curation.options import NPY, Embed
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.curation.embed import EmbedReport


@command(Embed, engines=True)
def embed(options: Embed, json: bool) -> str | None:
    from feedmill.curation.embed import embed as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))
    if options.output is not None or options.to != NPY:
        return ""  # 'dedupe' reads what lies beside the documents
    if options.name is not None:
        return None
    from feedmill.curation.models.files import name_of, parse

    return filled(
        f"dedupe {{documents}} --near --by embeddings --embeddings {name_of(parse(options.model)[0])}", options
    )


def _of_model(counts: dict[str, int]) -> str:
    return counted(counts["images"], "image") if "images" in counts else of_model(counts)


def show(report: EmbedReport) -> None:
    """Print what was done."""
    reused = f" ({report.reused} up to date)" if report.reused else ""
    facts(
        [
            ("files", f"{report.files:,}{reused}"),
            ("vectors", f"{report.rows:,} of {report.dimension:,} numbers"),
            ("model", _of_model(report.model) if report.model else None),
            ("embeddings", ", ".join(report.outputs)),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    show_left_out(report.left_out)
