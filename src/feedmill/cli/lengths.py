"""``feedmill tokens lengths``: tokens of samples of text and media."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit, facts, printable
from feedmill.jobs.options import call
from feedmill.tokens.options import Lengths

if TYPE_CHECKING:
    from feedmill.tokens.verbs.lengths import LengthsReport

_SHOWN = 20


@command(Lengths, engines=True)
def lengths(options: Lengths, json: bool) -> None:
    """Exit status 1 if a predicted length differs from that of the processor itself."""
    from feedmill.tokens.verbs.lengths import lengths as run

    report = call(run, options)
    emit(report.as_dict(), json, lambda: show(report))
    if report.misses:
        raise typer.Exit(1)


def show(report: LengthsReport) -> None:
    """Print counts, what has no length, and what the processor counts otherwise."""
    refused = report.samples - report.counted
    facts(
        [
            ("lengths of", report.path),
            ("split", report.split),
            ("processor", f"{report.processor}{', which was run' if report.measured else ''}"),
            ("samples", report.samples),
            ("counted before", report.reused or None),
            ("without length", refused or None),
            ("tokens", report.tokens),
            ("shortest", report.shortest),
            ("median", report.median),
            ("longest", f"{report.longest:,} ({printable(report.longest_key)})"),
            ("kept in", report.folder),
        ]
    )
    for each in report.refused[:_SHOWN]:
        more = ", ..." if each.samples > len(each.keys) else ""
        typer.echo(
            f"without length: {counted(each.samples, 'sample')}: {printable(each.reason)}"
            f" ({printable(', '.join(each.keys))}{more})"
        )
    if len(report.refused) > _SHOWN:
        typer.echo(f"without length: {len(report.refused) - _SHOWN:,} more reasons; --json has all")
    for name, count in report.left_out.items():
        typer.echo(f"left out: {count:,} media of part {printable(name)}")
    if report.defaults:
        typer.echo(
            f"note: {counted(len(report.defaults), 'parameter')} not in the processor's files: "
            + ", ".join(f"{name}={value}" for name, value in sorted(report.defaults.items()))
        )
    if report.checked:
        typer.echo(f"compared with the processor: {counted(report.checked, 'sample')}, {len(report.misses):,} differ")
    for miss in report.misses[:_SHOWN]:
        real = f"{miss.real:,}" if miss.real is not None else f"none: {printable(miss.error)}"
        typer.echo(
            f"differs: {printable(miss.key)} (sample {miss.sample:,}): predicted {miss.predicted:,}, real {real}"
        )
    if len(report.misses) > _SHOWN:
        typer.echo(f"differs: {len(report.misses) - _SHOWN:,} more; --json has all")
