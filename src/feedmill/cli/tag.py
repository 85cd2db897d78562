"""``feedmill tag``: write attributes of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import AllowEmpty, DryRun, Ids, Json, Processes, on_engine
from feedmill.cli.output import emit, emit_report, facts, human_size
from feedmill.jobs.policy import METAVAR, on_error_policy

if TYPE_CHECKING:
    from feedmill.curation.tag import TagReport

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--tagger-modules", "-m", metavar="MODULE", help="Python file or module with your own taggers; its code is run."
    ),
]

Taggers = Annotated[
    list[str] | None,
    typer.Option("--tagger", "-t", metavar="NAME", help="Tagger of the texts, or NAME=PATH; repeatable."),
]


@on_engine
def tag(
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOCUMENTS...", help="Patterns of files or folders; quote them: 'd/documents/**/*.gz'."),
    ] = None,
    taggers: Taggers = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the attribute set; default: one set per tagger."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder for each pattern; default: attributes/NAME beside documents/."
        ),
    ] = None,
    tagger_modules: Modules = None,
    workers: Processes = None,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Process up-to-date files, too.")] = False,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar=METAVAR, help="Stop at an invalid file, or finish the others first.")
    ] = "raise",
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    list_: Annotated[bool, typer.Option("--list", help="List the taggers and exit.")] = False,
    json: Json = False,
) -> None:
    """Compute attributes of documents: scored spans, in files beside the documents, row by row.

    Run it again after a kill or after adding files: results that are up to date are kept.
    """
    from feedmill.curation.tag import tag as run

    if list_:
        show_taggers(tagger_modules or (), json)
        return
    report = run(
        documents or (),
        taggers or (),
        name=name,
        output=output,
        tagger_modules=tagger_modules or (),
        workers=workers,
        overwrite=overwrite,
        on_error=on_error_policy(on_error),
        id=id_,
        allow_empty=allow_empty,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))
    if report.failed:
        raise typer.Exit(1)


def show(report: TagReport) -> None:
    """Print what was done."""
    reused = f" ({report.reused} up to date)" if report.reused else ""
    facts(
        [
            ("files", f"{report.files:,}{reused}"),
            ("documents", f"{report.rows:,}"),
            ("size", human_size(report.bytes)),
            ("attributes", ", ".join(report.outputs)),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for pattern in report.missing:
        typer.echo(f"warning: {pattern}: no files match this pattern", err=True)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for error in report.failed:
        typer.echo(f"error: {error}", err=True)


def show_taggers(modules: Sequence[str], json: bool = False) -> None:
    """Print the names of all taggers and where they come from."""
    from feedmill.curation.modules import load_modules
    from feedmill.curation.registry import known, needs_file

    load_modules(modules)
    data = [{"name": name, "needs_file": needs_file(name), "from": where} for name, where in known().items()]
    shown = [(f"{name}=PATH" if needs_file(name) else name, where) for name, where in known().items()]
    width = max(len(name) for name, _ in shown)
    emit(data, json, lambda: typer.echo("\n".join(f"{name:<{width}}  {where}" for name, where in shown)))
