"""``feedmill reshard``: rewrite the samples of a dataset into new shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import DryRun, Json, on_engine
from feedmill.cli.output import emit_report, facts, human_size

if TYPE_CHECKING:
    from feedmill.writing.write import WriteReport

Processes = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Processes; default: one per core."),
]
PerShard = Annotated[int | None, typer.Option("--max-shard-samples", metavar="N", min=1, help="Samples per shard.")]
Size = Annotated[
    str | None, typer.Option("--max-shard-size", metavar="SIZE", help="Maximum bytes per shard, such as 500MB or 1G.")
]
Pattern = Annotated[
    str | None, typer.Option("--pattern", metavar="PATH", help="Pattern of shard names, such as 'shards/%06d.tar'.")
]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Prefix for every key.")]


@on_engine
def reshard(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A dataset of samples with parts.")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Folder of the new dataset.")],
    max_shard_samples: PerShard = None,
    max_shard_size: Size = None,
    shuffle: Annotated[
        int | None, typer.Option("--shuffle", metavar="SEED", help="Shuffle the samples of each split.")
    ] = None,
    pattern: Pattern = None,
    prefix: Prefix = "",
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")] = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Write the samples of a dataset to shards of another size or order; splits are kept.

    Samples that a split file excludes are dropped. After a kill, the same command resumes.
    """
    from feedmill.writing.reshard import reshard as reshard_dataset

    report = reshard_dataset(
        source,
        destination,
        max_shard_samples=max_shard_samples,
        max_shard_size=max_shard_size,
        shuffle=shuffle,
        pattern=pattern,
        prefix=prefix,
        overwrite=overwrite,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def show(report: WriteReport) -> None:
    """Print what was written."""
    reused = f" ({report.reused} of an interrupted run)" if report.reused else ""
    facts(
        [
            ("wrote", report.path),
            ("samples", report.samples),
            ("shards", f"{report.shards:,}{reused}"),
            ("size", human_size(report.bytes)),
            ("time", f"{report.seconds:.2f} s, {report.samples / max(report.seconds, 1e-9):,.0f} samples/s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
