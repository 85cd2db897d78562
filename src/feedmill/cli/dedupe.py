"""``feedmill dedupe``: write attributes that mark duplicates or near-duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report, warn
from feedmill.curation.options import DedupeOrNear
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.curation.dedupe.job import DedupeReport
    from feedmill.curation.near.options import NearReport


@command(DedupeOrNear, engines=True)
def dedupe(options: DedupeOrNear, json: bool) -> None:
    from feedmill.curation.dedupe.job import dedupe as run

    report: Any = call(run, options)
    emit_report(report, json, lambda: show_near(report) if options.near else show(report))


def show(report: DedupeReport) -> None:
    """Print the number of duplicates, and the fill of the Bloom filter."""
    warn(report.warnings)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    typer.echo(
        f"{counted(report.documents, 'document')} of {report.rows:,} in {counted(report.files, 'file')}"
        f" with duplicates ({counted(report.units, 'span')}), in attributes/{report.name}"
    )
    if report.hashes is not None and report.fill is not None:
        hashes = "1 hash" if report.hashes == 1 else f"{report.hashes:,} hashes"
        typer.echo(f"the filter has {hashes} and is filled to {100 * report.fill:.2g} %")


def show_near(report: NearReport) -> None:
    """Print the number of near-duplicates and the largest clusters, for each threshold."""
    warn(report.warnings)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    what = "sample" if report.skip_lists else "document"
    share = f" ({100 * report.duplicates / report.documents:.3g} %)" if report.documents else ""
    typer.echo(
        f"{counted(report.duplicates, 'near-duplicate')}{share} among {counted(report.documents, what)}"
        f" in {counted(report.files, 'file')}, in attributes/{report.name}"
    )
    for path in report.skip_lists:
        typer.echo(f"skip list: {path}")
    lack = "an image" if report.skip_lists else "words"
    without = f", {report.empty:,} of them without {lack}" if report.empty else ""
    typer.echo(
        f"{counted(report.added, f'new {what}')}{without}; {counted(report.candidates, 'pair')} compared;"
        f" {counted(report.clusters, 'cluster')}"
    )
    if report.lowest is not None:
        typer.echo(f"lowest similarity of a near-duplicate to the document that is kept: {report.lowest:.3g}")
    if report.signatures is not None:
        typer.echo(f"signatures of {counted(report.known, 'document')} in {report.signatures}")
    if report.sizes:
        groups = ", ".join(f"{int(times):,} of {int(size):,}" for size, times in _shortened(report.sizes))
        typer.echo(f"clusters by {what}s: {groups}")
    for one in report.largest[:3]:
        kept, others = one["kept"], ", ".join(str(name) for name in one["duplicates"])
        unit = "line" if "line" in kept else "sample"
        where = f"{kept['file']}, {unit} {kept[unit]}"
        typer.echo(f"  {one['documents']:,} {what}s: kept {kept['id']} ({where}); similar: {others}")
    if len(report.sources) > 1:
        typer.echo("near-duplicates by folder:")
        for one in report.sources[:10]:
            of = ", ".join(f"{count:,} of {what}s in {folder}" for folder, count in list(one["of"].items())[:3])
            share = 100 * one["duplicates"] / max(1, one["documents"])
            typer.echo(
                f"  {one['folder']}: {one['duplicates']:,} of {one['documents']:,} ({share:.3g} %)"
                + f"; {of}" * bool(of)
            )
    for other in report.others:
        show_near(other)


def _shortened(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Return the five smallest sizes and the three largest."""
    found = list(sizes.items())
    return found if len(found) <= 8 else found[:5] + found[-3:]
