"""Implement ``feedmill compat dolma tag`` and ``feedmill compat dolma list``."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from feedmill.compat.dolma.config import FLAG, TEXT, TEXTS, WHOLE, Key, accepted, configure, configured

SCHEMA = {
    "documents": Key(TEXTS, [], "patterns of document files"),
    "destination": Key(TEXTS, None, "folder per pattern, instead of attributes/<name>"),
    "tagger_modules": Key(TEXTS, [], "files or modules with your own taggers; their code is run"),
    "taggers": Key(TEXTS, [], "names of taggers; 'list' shows all"),
    "experiment": Key(TEXT, None, "name of the attribute set; by default one set per tagger"),
    "processes": Key(WHOLE, 1, "number of processes; each reads one file at a time"),
    "ignore_existing": Key(FLAG, False, "write attributes again even if they are up to date"),
    "debug": Key(FLAG, False, "use only this process"),
    "profile.enable": accepted(FLAG, False, "use an external profiler"),
    "profile.output": accepted(TEXT, None, "use an external profiler"),
    "profile.steps": accepted(WHOLE, None, "use an external profiler"),
    "profile.sort_key": accepted(TEXT, "tottime", "use an external profiler"),
    "profile.lines": accepted(WHOLE, 100, "use an external profiler"),
    "work_dir.input": accepted(TEXT, None, "unused"),
    "work_dir.output": accepted(TEXT, None, "the journal is beside the attributes"),
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
