"""``feedmill tokens``: the verbs on token files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.engines import SKIPPED
from feedmill.cli.output import counted, emit, emit_report, facts, printable, show_written
from feedmill.jobs.options import call
from feedmill.tokens.options import Decode, Index, Lengths, Merge, Numbers, Shuffle, Split

if TYPE_CHECKING:
    from feedmill.tokens.verbs.decode import Decoded
    from feedmill.tokens.verbs.index import IndexReport
    from feedmill.tokens.verbs.lengths import LengthsReport


@command(Merge, engines=True)
def merge(options: Merge, json: bool) -> None:
    from feedmill.tokens.verbs.merge import merge as run

    report = call(run, options)
    emit_report(report, json, lambda: show_written(report))


@command(Shuffle, engines=True)
def shuffle(options: Shuffle, json: bool) -> None:
    from feedmill.tokens.verbs.shuffle import shuffle as run

    report = call(run, options)
    emit_report(report, json, lambda: show_written(report))


@command(Split, engines=True)
def split(options: Split, json: bool) -> None:
    from feedmill.tokens.verbs.split import split as run

    report = call(run, options)
    emit_report(report, json, lambda: show_written(report))


@command(Index, engines=True)
def index(options: Index, json: bool) -> None:
    """Exit status 4 if lines were skipped."""
    from feedmill.tokens.verbs.index import index as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_index(report))
    if report.dropped:
        raise typer.Exit(SKIPPED)


def _show_index(report: IndexReport) -> None:
    """Print what was indexed, and which lines were skipped."""
    what = counted(report.entries, "line" if report.kind == "raw" else "document")
    typer.echo(f"{report.index}: {what}")
    for line in report.bad:
        typer.echo(f"skipped: line {line['line']} at byte {line['offset']}: {line['reason']}")
    if report.dropped > len(report.bad):
        typer.echo(f"skipped: {report.dropped - len(report.bad)} more lines")


@command(Decode)
def decode(options: Decode, json: bool) -> None:
    from feedmill.tokens.verbs.decode import decode as run

    found = call(run, options)
    emit([one.as_dict() for one in found], json, lambda: _show_decoded(found))


def _show_decoded(documents: list[Decoded]) -> None:
    """Print documents for display."""
    for one in documents:
        cut = ", the beginning" if one.cut else ""
        typer.echo(typer.style(f"document {one.document} ({one.tokens:,} tokens{cut})", bold=True))
        if one.ids is not None:
            typer.echo(" ".join(map(str, one.ids)))
        typer.echo(printable(one.text))


_SHOWN = 20


@command(Lengths, engines=True)
def lengths(options: Lengths, json: bool) -> None:
    """Exit status 1 if a predicted length differs from that of the processor itself."""
    from feedmill.tokens.verbs.lengths import lengths as run

    report = call(run, options)
    emit(report.as_dict(), json, lambda: _show_lengths(report))
    if report.misses:
        raise typer.Exit(1)


def _show_lengths(report: LengthsReport) -> None:
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


@command(Numbers)
def numbers(options: Numbers, json: bool) -> None:
    from feedmill.tokens.verbs.numbers import numbers as run

    found = call(run, options).as_dict()
    emit(found, json, lambda: facts((name.replace("_", " "), value) for name, value in found.items()))
