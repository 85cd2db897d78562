"""``feedmill mixture``: cells of documents, proposed and fitted mixtures, their comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit, emit_report, facts, printable, table
from feedmill.jobs.options import call
from feedmill.mixture.options import Cells, Compare, Fit, Propose

if TYPE_CHECKING:
    from feedmill.mixture.verbs.cells import CellsReport, ColumnReport, SidecarReport
    from feedmill.mixture.verbs.compare import CompareReport
    from feedmill.mixture.verbs.fit import FitReport
    from feedmill.mixture.verbs.propose import ProposeReport


_SHOWN = 50


@command(Cells, engines=True)
def cells(options: Cells, json: bool) -> str | None:
    from feedmill.mixture.verbs.cells import cells as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_cells(report))
    if not options.by and options.where is None:
        return None
    if options.by and options.where is None and not json and not options.dry_run:
        import yaml

        blend = {"blend": {"cells": {"of": options.path, "by": [*options.by]}}}
        text = yaml.safe_dump(blend, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
        typer.echo(f"in a recipe: {printable(text.strip()[1:-1])}")
    return ""  # a plan of the dataset has no cells


def _show_cells(report: CellsReport) -> None:
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


@command(Propose)
def propose(options: Propose, json: bool) -> None:
    from feedmill.mixture.verbs.propose import propose as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_proposed(report))


def _show_proposed(report: ProposeReport) -> None:
    stages = f" of {report.stages} stages" if report.stages > 1 else ""
    size = "" if report.target is None else f", for a run of {report.target:,} {report.unit}"
    typer.echo(f"{report.path}: {counted(report.runs, 'mixture')}{stages} of {report.recipe}{size}")
    columns = ["source", report.unit, "natural", "center", "lowest", "mean", "highest"]
    columns += ["limit" if report.stages == 1 else "limit of the run", "most repeats"]
    rows = [
        [
            source["name"],
            round(source["at_hand"]),
            *(f"{source[name]:.2%}" for name in ("natural", "center", "low", "mean", "high", "most_share")),
            *([] if source["most_repeats"] is None else [f"{source['most_repeats']:.2f}"]),
        ]
        for source in report.sources
    ]
    table(columns if report.target is not None else columns[:-1], rows)
    if report.redrawn or report.clipped:
        typer.echo(
            f"{counted(report.redrawn, 'draw')} beyond a limit or there before were drawn again,"
            f" {counted(report.clipped, 'mixture')} moved to a limit"
        )


@command(Fit)
def fit(options: Fit, json: bool) -> None:
    from feedmill.mixture.verbs.fit import fit as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_fit(report))


def _show_fit(report: FitReport) -> None:
    typer.echo(f"{report.path}: the best mixture of {counted(report.runs, 'run')}, by the {report.chosen}")
    rows = [
        [
            name + (" (chosen)" if name == report.chosen else ""),
            f"{model['held_out_error']:.4g}",
            "{:.4g} to {:.4g}".format(*model["interval"]),
            f"{model['rank_correlation']:.3f}",
            f"{model['explained']:.1%}",
        ]
        for name, model in report.models.items()
        if "left_out" not in model
    ]
    table(["model", "held-out error", "95 % interval", "rank correlation", "explained"], rows)
    columns = ["source", report.unit, "natural", "proposed", "tried", "repeats", "at most"]
    shown = [
        [
            one["name"],
            round(one["at_hand"]),
            f"{one['natural']:.2%}",
            f"{one['share']:.2%}",
            f"{one['lowest']:.2%} to {one['highest']:.2%}",
            *([] if one["repeats"] is None else [f"{one['repeats']:.2f}"]),
            *([] if one["repeats"] is None else ["" if one["max_repeats"] is None else f"{one['max_repeats']:g}"]),
        ]
        for one in report.sources
    ]
    table(columns if report.target is not None else columns[:-2], shown)
    if len(report.proposal) > 1:
        stages = [[n + 1, *(f"{share:.2%}" for share in row.values())] for n, row in enumerate(report.proposal)]
        table(["stage", *report.proposal[0]], stages)
    facts(
        [
            ("predicted loss", "{:.5g}, 95 % interval {:.5g} to {:.5g}".format(report.predicted, *report.interval)),
            ("natural mixture", None if report.natural is None else f"{report.natural:.5g} predicted"),
            ("best run", f"{report.best_run['run']}, {report.best_run['loss']:.5g}"),
            ("metrics", ", ".join(f"{name} x {weight:.3g}" for name, weight in report.metrics.items())),
            ("report", report.report),
        ]
    )
    for reason, names in report.left_out.items():
        typer.echo(f"left out: {names['count']:,} x {printable(reason)} ({', '.join(names['examples'])})", err=True)
    for note in report.notes:
        typer.echo(f"note: {printable(note)}", err=True)


_ASIDE, _ROWS = 6, 40


@command(Compare)
def compare(options: Compare, json: bool) -> None:
    """Exit status 1 if a source is repeated more often than it may be."""
    from feedmill.mixture.verbs.compare import compare as run

    report = call(run, options)
    emit(report.as_dict(), json, lambda: _show_compared(report))
    if any(row["beyond"] for row in report.recipes):
        raise typer.Exit(1)


def _show_compared(report: CompareReport) -> None:
    recipes = report.recipes
    typer.echo(f"{counted(len(recipes), 'recipe')}, {counted(len(report.sources), 'source')}; shares of {report.unit}")
    if len(recipes) <= _ASIDE:
        head = ["source", *(row["name"] for row in recipes)]
        table(head, [[name, *(_cell(row, name) for row in recipes)] for name in report.sources[:_ROWS]])
        if len(report.sources) > _ROWS:
            typer.echo(f"... and {len(report.sources) - _ROWS:,} more sources (--json has all)")
        for row in recipes[1:]:
            typer.echo(f"{row['name']}: {row['distance']:.2%} of the {report.unit} differ from {recipes[0]['name']}")
    else:
        shown = report.sources[:_ASIDE]
        head = ["recipe", *shown, "differs", "most repeats"]
        rows = [
            [row["name"], *(_share(row, name) for name in shown), f"{row['distance']:.2%}", _most(row)]
            for row in recipes[:_ROWS]
        ]
        table(head, rows)
        if len(recipes) > _ROWS or len(report.sources) > _ASIDE:
            typer.echo(f"... {len(recipes):,} recipes and {len(report.sources):,} sources in all (--json has them)")
    for row in recipes:
        for name in row["beyond"]:
            typer.echo(
                f"beyond the limit: {row['name']} repeats {name} {row['repeats'][name]:.2f} times, at most"
                f" {row['at_most'][name]:g} are allowed",
                err=True,
            )


def _share(row: dict[str, dict[str, float | None]], name: str) -> str:
    share = row["shares"][name]
    return "" if share is None else f"{share:.2%}"


def _cell(row: dict[str, dict[str, float | None]], name: str) -> str:
    repeats = row["repeats"][name]
    return "" if repeats is None else f"{_share(row, name)}, {repeats:.2f} x"


def _most(row: dict[str, dict[str, float | None]]) -> str:
    known = [value for value in row["repeats"].values() if value is not None]
    return f"{max(known):.2f}" if known else ""
