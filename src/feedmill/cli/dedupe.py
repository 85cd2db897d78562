"""``feedmill dedupe``: write attributes that mark duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from feedmill.cli.options import AllowEmpty, DryRun, Ids, Json, Processes, on_engine
from feedmill.cli.output import counted, emit_report

if TYPE_CHECKING:
    from feedmill.curation.dedupe.dedupe import By
    from feedmill.curation.dedupe.job import DedupeReport

Documents = Annotated[
    list[str], typer.Argument(metavar="DOCUMENTS...", help="Files, folders or patterns, each with a folder documents/.")
]


@on_engine
def dedupe(
    documents: Documents,
    by: Annotated[str, typer.Option("--by", metavar="UNIT", help="documents, paragraphs or ngrams.")] = "documents",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the attribute set; default: dup_UNIT.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="PATH", help="JSONPath of the value to compare; default: $.text."),
    ] = None,
    separator: Annotated[
        str | None, typer.Option("--separator", metavar="TEXT", help="Separator of paragraphs; default: \\n.")
    ] = None,
    ngram: Annotated[
        int | None, typer.Option("--ngram", metavar="N", min=1, help="Words per n-gram; default: 13.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option("--stride", metavar="N", min=1, help="Words between the starts of n-grams; default: 1."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="T",
            min=0,
            max=1,
            help="Share of duplicate n-grams at or above which to mark; default: 0.5.",
        ),
    ] = None,
    min_length: Annotated[int, typer.Option("--min-length", metavar="N", min=0, help="Ignore shorter texts.")] = 0,
    min_words: Annotated[
        int, typer.Option("--min-words", metavar="N", min=0, help="Ignore texts with fewer words.")
    ] = 0,
    keep_empty: Annotated[bool, typer.Option("--keep-empty", help="Also compare blank texts.")] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="DOCUMENTS", help="Mark only text that occurs in these documents (decontamination)."
        ),
    ] = None,
    bloom: Annotated[
        str | None, typer.Option("--bloom", metavar="FILE", help="Use a Bloom filter in Dolma's format.")
    ] = None,
    items: Annotated[int, typer.Option("--items", metavar="N", min=0, help="Capacity of a new filter, in keys.")] = 0,
    false_positives: Annotated[
        float | None,
        typer.Option("--false-positives", metavar="SHARE", help="False-positive rate of a new filter; default: 1e-06."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Do not add keys to the filter.")] = False,
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    dry_run: DryRun = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Write attributes that mark duplicates: all but the first in input order. 'filter' then removes them."""
    from feedmill.curation.dedupe.dedupe import dedupe as run

    report = run(
        documents,
        cast("By", by),  # checked there
        name=name,
        key=key,
        separator=None if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t"),  # from a shell
        ngram=ngram,
        stride=stride,
        threshold=threshold,
        min_length=min_length,
        min_words=min_words,
        keep_empty=keep_empty,
        against=against or (),
        bloom=bloom,
        items=items,
        false_positives=false_positives,
        read_only=read_only,
        id=id_,
        allow_empty=allow_empty,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def show(report: DedupeReport) -> None:
    """Print the number of duplicates, and the fill of the Bloom filter."""
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    typer.echo(
        f"{counted(report.documents, 'document')} of {report.rows:,} in {counted(report.files, 'file')}"
        f" with duplicates ({counted(report.units, 'span')}), in attributes/{report.name}"
    )
    if report.hashes is not None and report.fill is not None:
        hashes = "1 hash" if report.hashes == 1 else f"{report.hashes:,} hashes"
        typer.echo(f"the filter has {hashes} and is filled to {100 * report.fill:.2g} %")
