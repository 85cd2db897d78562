"""``feedmill serve``: look at datasets and recipes in a browser, or write them to one HTML file."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit, human_size
from feedmill.errors import ConfigError
from feedmill.jobs.options import Flag, Opt, call
from feedmill.web.options import Report, Serve

_OF_EXPORTS, _OF_SERVERS = ("compare", "check", "overwrite"), ("port", "host", "names", "token", "edit")


class ServeOrExport(Serve, kw_only=True):
    """Look at samples, steps, mixtures and findings in a browser, until Ctrl-C. Nothing is written without --edit.

    With --export, write them to one HTML file that opens offline.
    """

    export: Annotated[str | None, Opt("FILE", "Write an HTML file instead, which needs no server.")] = None
    compare: Annotated[bool, Flag("With --export: also compare the two paths, datasets, recipes, or runs.")] = False
    check: Annotated[bool, Flag("With --export: check the datasets, which reads all of their bytes.")] = True
    overwrite: Annotated[bool, Flag("With --export: replace an existing file.")] = False


@command(ServeOrExport)
def serve(options: ServeOrExport, json: bool) -> None:
    named = _OF_SERVERS if options.export is not None else _OF_EXPORTS
    given = next((name for name in named if getattr(options, name) != getattr(ServeOrExport, name)), None)
    if given is not None:
        option = {"names": "name", "check": "no-check", "token": "no-token"}.get(given, given)
        what = "cannot be combined with" if options.export is not None else "requires"
        fix = f"Remove --{option}." if options.export is not None else "Add --export FILE."
        raise ConfigError(f"--{option} {what} --export FILE", kind="bad-option", fix=fix)
    if options.export is not None:
        _export(options, options.export, json)
        return
    from feedmill.web.serve import serve as run

    def started(address: str) -> None:
        emit({"address": address}, json, lambda: typer.echo(address))
        typer.echo("press Ctrl-C to stop", err=True)

    call(run, options, on_start=started)


def _export(options: ServeOrExport, file: str, json: bool) -> None:
    from feedmill.web.report import report as run

    done = run(**{name: getattr(options, name) for name in vars(Report(())) if name != "output"}, output=file)

    def show() -> None:
        typer.echo(f"wrote {done.path}, {human_size(done.bytes)}, {done.findings:,} findings")
        for problem in done.problems:
            typer.echo(f"not shown: {problem}", err=True)

    emit(done.as_dict(), json, show)
