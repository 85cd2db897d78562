"""``feedmill index``: write index files for JSONL and token files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import DryRun, Json, OverwriteFiles, on_engine
from feedmill.cli.output import counted, emit_report
from feedmill.jobs.policy import METAVAR, on_error_policy

if TYPE_CHECKING:
    from feedmill.tokens.index import IndexReport


@on_engine
def index(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A .jsonl, .pbin, .bin or .npy file; a path or a URL.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Path of the index of a JSONL file.")
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar=METAVAR, help="Stop at a line that is not JSON, or skip and count it.")
    ] = "raise",
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Number of processes.")] = None,
    dry_run: DryRun = False,
    overwrite: OverwriteFiles = False,
    eos: Annotated[
        int | None, typer.Option("--eos-id", metavar="ID", min=0, help="Flat token files: id of the end-of-text token.")
    ] = None,
    token_size: Annotated[
        int | None,
        typer.Option("--token-size", metavar="1|2|4|8", help="Flat token files without a header: bytes per token."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", metavar="N", min=1, help="Flat token files: report ids that are not below N."),
    ] = None,
    json: Json = False,
) -> None:
    """Write Modalities' raw index of a JSONL file, or the document bounds of a .pbin or a flat token file.

    Exit status 1 if lines were skipped.
    """
    from feedmill.tokens.index import index as write_index

    report = write_index(
        path,
        output,
        on_error=on_error_policy(on_error),
        overwrite=overwrite,
        workers=workers,
        eos=eos,
        token_size=token_size,
        vocab_size=vocab_size,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))
    if report.dropped:
        raise typer.Exit(1)


def show(report: IndexReport) -> None:
    """Print what was indexed, and which lines were skipped."""
    what = counted(report.entries, "line" if report.kind == "raw" else "document")
    typer.echo(f"{report.index}: {what}")
    for line in report.bad:
        typer.echo(f"skipped: line {line['line']} at byte {line['offset']}: {line['reason']}")
    if report.dropped > len(report.bad):
        typer.echo(f"skipped: {report.dropped - len(report.bad)} more lines")
