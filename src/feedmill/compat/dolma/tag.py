"""Implement ``feedmill dolma tag`` and ``feedmill dolma list``."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from feedmill.compat.dolma.config import FLAG, TEXT, TEXTS, WHOLE, Key, configure, configured

SCHEMA = {
    "documents": Key(TEXTS, [], "patterns of document files"),
    "destination": Key(TEXTS, None, "folder per pattern, instead of attributes/<name>"),
    "tagger_modules": Key(TEXTS, [], "files or modules with your own taggers; their code is run"),
    "taggers": Key(TEXTS, [], "names of taggers; 'list' shows all"),
    "experiment": Key(TEXT, None, "name of the attribute set; by default one set per tagger"),
    "processes": Key(WHOLE, 1, "number of processes; each reads one file at a time"),
    "ignore_existing": Key(FLAG, False, "write attributes again even if they are up to date"),
    "debug": Key(FLAG, False, "use only this process"),
    "profile.enable": Key(FLAG, False, "accepted; use an external profiler"),
    "profile.output": Key(TEXT, None, "accepted"),
    "profile.steps": Key(WHOLE, None, "accepted"),
    "profile.sort_key": Key(TEXT, "tottime", "accepted"),
    "profile.lines": Key(WHOLE, 100, "accepted"),
    "work_dir.input": Key(TEXT, None, "accepted; unused"),
    "work_dir.output": Key(TEXT, None, "accepted; the journal is beside the attributes"),
    "dryrun": Key(FLAG, False, "print the configuration and stop"),
}
LIST_SCHEMA = {"tagger_modules": Key(TEXTS, [], "files or modules with your own taggers; their code is run")}


def tag(arguments: Sequence[str], file: str | None, exact: bool) -> None:
    """Write attributes, as Dolma does."""
    from feedmill.cli.tag import show
    from feedmill.curation.tag import tag as run

    values = configured(arguments, file, SCHEMA)
    if values["dryrun"]:
        return
    if values["profile.enable"]:
        typer.echo("warning: profile.* has no effect", err=True)
    report = run(
        values["documents"],
        values["taggers"],
        name=values["experiment"],
        output=values["destination"],
        tagger_modules=values["tagger_modules"],
        workers=1 if values["debug"] else values["processes"],
        overwrite=values["ignore_existing"],
        exact=exact,
        allow_empty=True,
    )
    if not report.rows:
        typer.echo("warning: there are no documents", err=True)
    show(report)


def list_(arguments: Sequence[str], file: str | None, exact: bool) -> None:  # noqa: ARG001 - common signature
    """Show the taggers."""
    from feedmill.cli.tag import show_taggers

    show_taggers(configure(arguments, file, LIST_SCHEMA)["tagger_modules"])
