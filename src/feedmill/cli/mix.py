"""``feedmill mix``: filter and merge documents by their attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.dedupe import Processes
from feedmill.cli.options import AllowEmpty, AllowStale, Ids, Json
from feedmill.cli.output import counted, emit

if TYPE_CHECKING:
    from feedmill.curation.mix.job import MixReport


def mix(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A mix (docs/mix.md), in YAML or JSON.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing: try the rules on some documents of each stream.")
    ] = False,
    allow_stale: AllowStale = False,
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    processes: Processes = None,
    json: Json = False,
) -> None:
    """Filter documents by their attributes, replace spans, sample, and write what remains."""
    from dataclasses import replace

    from feedmill.curation.mix.config import read_config
    from feedmill.curation.mix.job import mix as run
    from feedmill.errors import ConfigError
    from feedmill.formats.yamls import read_config as read_tree
    from feedmill.storage import open_store, split_url

    folder, name = split_url(config)
    tree = read_tree(open_store(folder).read(name), config).value
    if not isinstance(tree, dict):
        raise ConfigError("a mix is a mapping with 'streams'", file=config, fix="See docs/mix.md.")
    settings = read_config(tree)
    settings = replace(
        settings,
        allow_stale=settings.allow_stale or allow_stale,
        allow_empty=settings.allow_empty or allow_empty,
        id=id_ or settings.id,
    )
    report = run(settings, processes=processes, progress=not json, dry_run=dry_run)
    emit(report.as_dict(), json, lambda: show(report))


def show(report: MixReport) -> None:
    """Print what each rule dropped."""
    for one in report.streams:
        counts = one.counts
        done = f", {one.finished_before} of them before" if one.finished_before else ""
        what = "would be kept" if report.sampled else f"kept in {counted(len(one.outputs), 'file')}{done}"
        times = "" if counts.written == counts.kept else f", written {counts.written:,} times"
        typer.echo(f"{typer.style(one.name, bold=True)}: {counts.kept:,} of {counts.read:,} documents {what}{times}")
        for rule, number in counts.dropped.most_common():
            ids = ", ".join(str(one) for one in counts.examples.get(rule, []))
            shown = f": {ids}{', ...' if number > 3 else ''}" if number else ""
            typer.echo(f"  dropped {number:,} by {rule}{shown}")
        if one.replaces:
            typer.echo(f"  replaced {counted(counts.replaced, 'span')}")
    if report.absent:
        typer.echo(f"no row has {', '.join(report.absent)}")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
