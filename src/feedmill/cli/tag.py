"""``feedmill tag``: write attributes of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.command import command
from feedmill.cli.engines import SKIPPED
from feedmill.cli.output import counted, emit, emit_report, facts, human_size, warn
from feedmill.curation.options import Tag
from feedmill.jobs.options import Flag, call

if TYPE_CHECKING:
    from feedmill.curation.tag import TagReport


class TagOrList(Tag, kw_only=True):
    __doc__ = Tag.__doc__

    list_: Annotated[bool, Flag("List the taggers and exit.", "--list")] = False


@command(TagOrList, engines=True, optional=("documents", "taggers"))
def tag(options: TagOrList, json: bool) -> str | None:
    from feedmill.curation.tag import tag as run

    if options.list_:
        show_taggers(options.tagger_modules, json)
        return ""
    report = call(run, options)
    emit_report(report, json, lambda: show(report))
    if report.failed:
        raise typer.Exit(SKIPPED)
    return None if options.output is None else ""  # 'dedupe' needs a folder 'documents'


def show(report: TagReport) -> None:
    """Print what was done."""
    reused = f" ({report.reused} up to date)" if report.reused else ""
    facts(
        [
            ("files", f"{report.files:,}{reused}"),
            ("documents", f"{report.rows:,}"),
            ("size", human_size(report.bytes)),
            ("attributes", ", ".join(report.outputs)),
            *((name, of_model(counts)) for name, counts in report.models.items()),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for pattern in report.missing:
        typer.echo(f"warning: {pattern}: no files match this pattern", err=True)
    warn(report.warnings)
    for error in report.failed:
        typer.echo(f"error: {error}", err=True)


def of_model(counts: dict[str, int]) -> str:
    """Return what a model read, as text."""
    padding = 100 * counts["padding"] / max(1, counts["padding"] + counts["tokens"])
    parts = [f"{counts['tokens']:,} tokens", f"{padding:.2g} % padding"]
    parts += [f"{counted(counts['cut'], 'document')} cut to its window"] * (counts["cut"] > 0)
    parts += [f"{counted(counts['empty'], 'document')} without tokens"] * (counts["empty"] > 0)
    parts += ["one document at a time, as results depend on those beside it"] * (counts["alone"] > 0)
    return ", ".join(parts)


def show_taggers(modules: Sequence[str], json: bool = False) -> None:
    """Print the names of all taggers and where they come from."""
    from feedmill.curation.registry import known, load_modules, needs_file

    load_modules(modules)
    data = [{"name": name, "needs_file": needs_file(name), "from": where} for name, where in known().items()]
    data.append({"name": "model", "needs_file": True, "from": "feedmill.curation.models"})
    shown = [(f"{name}=PATH" if needs_file(name) else name, where) for name, where in known().items()]
    shown.append(("[NAME=]model:PATH", "feedmill.curation.models"))
    width = max(len(name) for name, _ in shown)
    emit(data, json, lambda: typer.echo("\n".join(f"{name:<{width}}  {where}" for name, where in shown)))
