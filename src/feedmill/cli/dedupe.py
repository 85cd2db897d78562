"""``feedmill dedupe``: mark what occurred before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import AllowEmpty, Ids, Json
from feedmill.cli.output import counted, emit

if TYPE_CHECKING:
    from feedmill.curation.dedupe.job import DedupeReport

Documents = Annotated[
    list[str], typer.Argument(metavar="DOCUMENTS...", help="Files, folders or patterns, each with a folder documents/.")
]
Processes = Annotated[int | None, typer.Option("--processes", "-p", metavar="N", min=1, help="Default: one per core.")]


def dedupe(
    documents: Documents,
    by: Annotated[str, typer.Option("--by", metavar="UNIT", help="documents, paragraphs or ngrams.")] = "documents",
    name: Annotated[
        str | None, typer.Option("--name", "-n", metavar="NAME", help="Name of the attribute set; default: dup_UNIT.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="PATH", help="JSONPath of what documents are compared by; default: $.text."),
    ] = None,
    separator: Annotated[
        str | None, typer.Option("--separator", metavar="TEXT", help="Between paragraphs; default: \\n.")
    ] = None,
    ngram: Annotated[
        int | None, typer.Option("--ngram", metavar="N", min=1, help="Words of an n-gram; default: 13.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", metavar="N", min=1, help="Words from one n-gram to the next; default: 1.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", metavar="T", min=0, max=1, help="Share of n-grams seen before from which to mark; 0.5."
        ),
    ] = None,
    min_length: Annotated[int, typer.Option("--min-length", metavar="N", min=0, help="Leave shorter texts alone.")] = 0,
    min_words: Annotated[
        int, typer.Option("--min-words", metavar="N", min=0, help="Leave texts of fewer words alone.")
    ] = 0,
    keep_empty: Annotated[bool, typer.Option("--keep-empty", help="Compare blank texts too.")] = False,
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="DOCUMENTS", help="Mark only what occurs in these (decontamination)."),
    ] = None,
    bloom: Annotated[
        str | None, typer.Option("--bloom", metavar="FILE", help="Use a Bloom filter in Dolma's format.")
    ] = None,
    items: Annotated[int, typer.Option("--items", metavar="N", min=0, help="Keys that a new filter is to hold.")] = 0,
    false_positives: Annotated[
        float | None, typer.Option("--false-positives", metavar="SHARE", help="Errors of a new filter; default: 1e-06.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Do not add to the filter.")] = False,
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    processes: Processes = None,
    json: Json = False,
) -> None:
    """Write attributes that mark duplicates: all but the first in the order of input. 'filter' then removes them."""
    from feedmill.curation.dedupe.job import BloomOptions
    from feedmill.curation.dedupe.job import dedupe as run
    from feedmill.curation.dedupe.options import DOCUMENTS, PARAGRAPHS, DedupeOptions
    from feedmill.errors import ConfigError

    if by not in ("documents", "paragraphs", "ngrams"):
        raise ConfigError(f"there is no --by {by}", fix="Use documents, paragraphs or ngrams.")
    if bloom is None and (items or read_only or false_positives is not None):
        raise ConfigError(
            "--items, --false-positives and --read-only are for a Bloom filter", fix="Name its file with --bloom."
        )
    for option, value, units in (
        ("--key", key, ("documents",)),
        ("--separator", separator, ("paragraphs", "ngrams")),
        ("--ngram", ngram, ("ngrams",)),
        ("--stride", stride, ("ngrams",)),
        ("--threshold", threshold, ("ngrams",)),
    ):
        if value is not None and by not in units:  # it would do nothing
            raise ConfigError(f"{option} goes with --by {' or '.join(units)}", fix="Leave it out, or add that.")
    if items and read_only:
        raise ConfigError(
            "--items is for a new filter, and --read-only takes one that is there", fix="Give one of them."
        )
    options = DedupeOptions(
        name=name or f"dup_{by}",
        attribute=name or f"dup_{by}",
        unit=DOCUMENTS if by == "documents" else PARAGRAPHS,
        key="$.text" if key is None else key,
        separator="\n" if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t"),  # from a shell
        ngram=(ngram or 13) if by == "ngrams" else 0,
        stride=stride or 1,
        threshold=0.5 if threshold is None else threshold,
        skip_empty=not keep_empty,
        min_length=min_length,
        min_words=min_words,
    )
    errors = 1e-6 if false_positives is None else false_positives
    filters = BloomOptions(file=bloom, read_only=read_only, items=items, false_positives=errors) if bloom else None
    report = run(
        documents,
        options,
        bloom=filters,
        against=against or (),
        processes=processes,
        id=id_,
        allow_empty=allow_empty,
        progress=not json,
    )
    emit(report.as_dict(), json, lambda: show(report))


def show(report: DedupeReport) -> None:
    """Print what was found."""
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
