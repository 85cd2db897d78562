"""``feedmill add-parts``: add parts to the samples of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import AllowEmpty, DryRun, Json
from feedmill.cli.output import emit_report, facts, human_size
from feedmill.cli.reshard import Processes
from feedmill.jobs.policy import METAVAR, on_error_policy

if TYPE_CHECKING:
    from feedmill.writing.rewrite import RewriteReport


def add_parts(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A prepared dataset.")],
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A dataset with the same keys, whose parts are added.")
    ],
    part_name: Annotated[
        list[str] | None, typer.Option("--part-name", metavar="NAME", help="Only this part; repeatable.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="FOLDER", help="Write the new parts to a separate dataset in this folder."),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option("--on-error", metavar=METAVAR, help="Stop if SOURCE lacks a key, or leave the sample as it is."),
    ] = "raise",
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace parts with the same name.")] = False,
    allow_empty: AllowEmpty = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Add the parts that another dataset has under the same keys.

    All shards are rewritten and published at once. After a kill, the same command resumes.
    """
    from feedmill.writing.add_parts import add_parts as add_parts_to

    report = add_parts_to(
        dataset,
        source,
        parts=part_name,
        into=into,
        on_error=on_error_policy(on_error),
        overwrite=overwrite,
        allow_empty=allow_empty,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def show(report: RewriteReport) -> None:
    """Print the report: counts, bytes written and time."""
    facts(
        [
            ("wrote", report.path),
            ("samples", report.samples),
            ("shards", report.shards),
            ("written", human_size(report.bytes)),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"note: {warning}", err=True)
