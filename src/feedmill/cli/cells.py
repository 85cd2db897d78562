"""``feedmill mixture cells``: which cell each document of a dataset is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report, facts, printable, table
from feedmill.jobs.options import call
from feedmill.mixture.options import Cells

if TYPE_CHECKING:
    from feedmill.mixture.verbs.cells import CellsReport, ColumnReport, SidecarReport

_SHOWN = 50


@command(Cells, engines=True)
def cells(options: Cells, json: bool) -> str | None:
    from feedmill.mixture.verbs.cells import cells as run

    report = call(run, options)
    emit_report(report, json, lambda: _show(report))
    if not options.by and options.where is None:
        return None
    if options.by and options.where is None and not json and not options.dry_run:
        import yaml

        blend = {"blend": {"cells": {"of": options.path, "by": [*options.by]}}}
        text = yaml.safe_dump(blend, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
        typer.echo(f"in a recipe: {printable(text.strip()[1:-1])}")
    return ""  # a plan of the dataset has no cells


def _show(report: CellsReport) -> None:
    for sidecar in report.sidecars:
        _show_one(sidecar)


def _show_one(sidecar: SidecarReport) -> None:
    split = f", split {sidecar.split}" if sidecar.split else ""
    inside = sidecar.documents - sidecar.outside
    facts(
        [
            ("dataset", f"{sidecar.dataset}{split}"),
            ("cells by", printable(sidecar.rule)),
            *((f"column {printable(column.name)}", _column(column)) for column in sidecar.columns),
            ("documents", f"{sidecar.documents:,}, {inside:,} in {counted(len(sidecar.cells), 'cell')}"),
            ("excluded by 'where'", sidecar.unmatched or None),
            ("file", f"{sidecar.file}{' (up to date)' if sidecar.up_to_date else ''}"),
        ]
    )
    tokens = any(cell.tokens is not None for cell in sidecar.cells)
    rows = [
        [
            printable(cell.name) or "(all)",
            cell.documents,
            *([cell.tokens] if tokens else []),
            f"{cell.share:.2%}",
            "few" if cell.few else "",
        ]
        for cell in sidecar.cells[:_SHOWN]
    ]
    table(["cell", "documents", *(["tokens"] if tokens else []), "share", ""], rows)
    if len(sidecar.cells) > _SHOWN:
        typer.echo(f"{len(sidecar.cells) - _SHOWN:,} more cells; --json has all")
    few = sum(cell.few for cell in sidecar.cells)
    if few:
        typer.echo(f"note: {counted(few, 'cell')} with fewer than 100 documents")
    for column in sidecar.columns:
        if column.missing:
            some = ", ".join(f"{printable(path)} ({count:,})" for path, count in list(column.missing_in.items())[:3])
            more = ", ..." if len(column.missing_in) > 3 else ""
            typer.echo(
                f"warning: {counted(column.missing, 'document')} without {printable(column.name)}: {some}{more}",
                err=True,
            )


def _column(column: ColumnReport) -> str:
    """Return where a column was read, and what is in it."""
    parts = [printable(f"{column.place}:{column.column}")]
    if column.files:
        parts.append(f"{counted(column.files, 'file')}{f' ({column.reused:,} read before)' if column.reused else ''}")
    if column.edges:
        shown = ", ".join(f"{edge:g}" for edge in column.edges[:8])
        parts.append(f"bins from {shown}{', ...' if len(column.edges) > 8 else ''}")
    elif column.values:
        parts.append(counted(column.values, "value"))
    return ", ".join(parts)
