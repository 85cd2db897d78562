"""``feedmill check``: find problems of a dataset before a run reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.engines import on_engine
from feedmill.cli.options import DatasetConfig, DatasetPath, Json, SplitConfig, Threads, Trust
from feedmill.cli.output import counted, emit, human_size

if TYPE_CHECKING:
    from feedmill.indexing.report import CheckReport


@on_engine
def check(
    path: DatasetPath,
    read_samples: Annotated[bool, typer.Option("--read-samples", help="Also read and decode every sample.")] = False,
    dataset_config: DatasetConfig = None,
    split_config: SplitConfig = None,
    trust: Trust = False,
    workers: Threads = None,
    json: Json = False,
) -> None:
    """Compare a dataset with its index: truncated or corrupt shards, hashes, duplicate keys, wrong offsets and counts.

    Exit status 0 if no problems were found, 1 otherwise.
    """
    from feedmill.indexing.check import check as check_dataset

    report = check_dataset(
        path,
        read_samples=read_samples,
        dataset_config=dataset_config,
        split_config=split_config,
        trust=trust,
        workers=workers,
        progress=not json,
    )
    emit(report.as_dict(), json, lambda: show(report))
    if report.findings:
        raise typer.Exit(1)


def show(report: CheckReport) -> None:
    """Print the findings and notes, then the verdict on the last line."""
    for finding in report.findings:
        typer.echo(f"found: {finding}")
    for note in report.notes:
        typer.echo(f"note: {note}")
    seen = f"{counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}, {human_size(report.bytes)}"
    verdict = counted(len(report.findings), "finding") if report.findings else "no problems found"
    typer.echo(f"{report.path}: {verdict} ({seen})")
