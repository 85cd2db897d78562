"""``feedmill mixture compare``: recipes side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit, table
from feedmill.jobs.options import call
from feedmill.mixture.options import Compare

if TYPE_CHECKING:
    from feedmill.mixture.verbs.compare import CompareReport

_ASIDE, _ROWS = 6, 40


@command(Compare)
def compare(options: Compare, json: bool) -> None:
    """Exit status 1 if a source is repeated more often than it may be."""
    from feedmill.mixture.verbs.compare import compare as run

    report = call(run, options)
    emit(report.as_dict(), json, lambda: _show(report))
    if any(row["beyond"] for row in report.recipes):
        raise typer.Exit(1)


def _show(report: CompareReport) -> None:
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
