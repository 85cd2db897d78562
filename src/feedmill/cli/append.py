"""``feedmill append``: add samples to a prepared dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.options import DryRun, Json
from feedmill.cli.output import emit_report
from feedmill.cli.reshard import Pattern, PerShard, Prefix, Processes, Size, show


def append(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The prepared dataset to append to.")],
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Datasets of samples with parts.")],
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Split of the new samples; default: the first.")
    ] = None,
    max_shard_samples: PerShard = 10_000,
    max_shard_size: Size = None,
    pattern: Pattern = None,
    prefix: Prefix = "",
    dry_run: DryRun = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Add the samples of other datasets as new shards; existing shards do not change.

    After a kill, the same command resumes.
    """
    from feedmill.writing.append import append as append_samples

    report = append_samples(
        dataset,
        sources,
        split=split,
        max_shard_samples=max_shard_samples,
        max_shard_size=max_shard_size,
        pattern=pattern,
        prefix=prefix,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))
