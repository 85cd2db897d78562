"""``feedmill neardedupe``: write attributes that mark near-duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from feedmill.cli.dedupe import Documents
from feedmill.cli.engines import on_engine
from feedmill.cli.options import AllowEmpty, DryRun, Ids, Json, Processes
from feedmill.cli.output import counted, emit_report

if TYPE_CHECKING:
    from feedmill.curation.near.job import NearReport
    from feedmill.curation.near.options import Keep, Removal


@on_engine
def neardedupe(
    documents: Documents,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the attribute set.")] = "dup_near",
    threshold: Annotated[
        float,
        typer.Option("--threshold", metavar="T", help="Jaccard similarity at or above which documents are duplicates."),
    ] = 0.8,
    ngram: Annotated[int, typer.Option("--ngram", metavar="N", help="Words per shingle.")] = 5,
    keep: Annotated[
        str, typer.Option("--keep", metavar="first|longest", help="Which document of a cluster to keep.")
    ] = "first",
    removal: Annotated[
        str,
        typer.Option(
            "--removal",
            metavar="covered|connected",
            help="Mark documents similar to a kept one; or all but one of those that pairs connect, similar or not.",
        ),
    ] = "covered",
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Compare case-sensitively.")] = False,
    keep_punctuation: Annotated[
        bool, typer.Option("--keep-punctuation", help="Keep punctuation: split words at white space only.")
    ] = False,
    bands: Annotated[
        int, typer.Option("--bands", metavar="B", help="Number of bands; default: chosen for the threshold.")
    ] = 0,
    rows: Annotated[int, typer.Option("--rows", metavar="R", help="Hashes per band; requires --bands.")] = 0,
    signatures: Annotated[
        str | None,
        typer.Option(
            "--signatures", metavar="DIR", help="Folder of signatures: compare with those in it, and add the new ones."
        ),
    ] = None,
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    dry_run: DryRun = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Write attributes that mark near-duplicates of documents that are kept. 'filter' then removes them."""
    from feedmill.curation.near.neardedupe import neardedupe as run

    report = run(
        documents,
        name=name,
        threshold=threshold,
        ngram=ngram,
        keep=cast("Keep", keep),  # checked there
        removal=cast("Removal", removal),
        keep_case=keep_case,
        keep_punctuation=keep_punctuation,
        bands=bands,
        rows=rows,
        signatures=signatures,
        id=id_,
        allow_empty=allow_empty,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def show(report: NearReport) -> None:
    """Print the number of near-duplicates and the largest clusters."""
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    share = f" ({100 * report.duplicates / report.documents:.3g} %)" if report.documents else ""
    typer.echo(
        f"{counted(report.duplicates, 'near-duplicate')}{share} among {counted(report.documents, 'document')}"
        f" in {counted(report.files, 'file')}, in attributes/{report.name}"
    )
    without = f", {report.empty:,} of them without words" if report.empty else ""
    typer.echo(
        f"{counted(report.added, 'new document')}{without}; {counted(report.candidates, 'pair')} compared;"
        f" {counted(report.clusters, 'cluster')}"
    )
    if report.lowest is not None:
        typer.echo(f"lowest similarity of a near-duplicate to the document that is kept: {report.lowest:.3g}")
    if report.signatures is not None:
        typer.echo(f"signatures of {counted(report.known, 'document')} in {report.signatures}")
    if report.sizes:
        groups = ", ".join(f"{int(times):,} of {int(size):,}" for size, times in _shortened(report.sizes))
        typer.echo(f"clusters by documents: {groups}")
    for one in report.largest[:3]:
        kept, others = one["kept"], ", ".join(str(name) for name in one["duplicates"])
        where = f"{kept['file']}, line {kept['line']}"
        typer.echo(f"  {one['documents']:,} documents: kept {kept['id']} ({where}); similar: {others}")
    if len(report.sources) > 1:
        typer.echo("near-duplicates by folder:")
        for one in report.sources[:10]:
            of = ", ".join(f"{count:,} of documents in {folder}" for folder, count in list(one["of"].items())[:3])
            share = 100 * one["duplicates"] / max(1, one["documents"])
            typer.echo(
                f"  {one['folder']}: {one['duplicates']:,} of {one['documents']:,} ({share:.3g} %)"
                + f"; {of}" * bool(of)
            )


def _shortened(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Return the five smallest sizes and the three largest."""
    found = list(sizes.items())
    return found if len(found) <= 8 else found[:5] + found[-3:]
