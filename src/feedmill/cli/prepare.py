"""``feedmill prepare``: index a dataset, split it and declare its sample type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.command import command
from feedmill.cli.dialogue import can_answer
from feedmill.cli.output import emit_report, facts, human_size, warn
from feedmill.errors import ConfigError
from feedmill.indexing.options import MediaChoice, Prepare
from feedmill.jobs.options import Flag, call

if TYPE_CHECKING:
    from feedmill.indexing.report import PrepareReport


class PrepareAndAsk(Prepare, MediaChoice, kw_only=True):
    __doc__ = Prepare.__doc__

    skip_dataset_yaml: Annotated[bool, Flag("Do not write a sample description.")] = False
    interactive: Annotated[
        bool | None,
        Flag("Ask for missing options; default: only on a terminal.", "--interactive/--non-interactive"),
    ] = None
    overwrite: Annotated[bool, Flag("Prepare again without asking.")] = False


@command(PrepareAndAsk, engines=True)
def prepare(options: PrepareAndAsk, json: bool) -> None:
    asking = (can_answer() and not json) if options.interactive is None else options.interactive
    ratio, parts = options.split_ratio is not None, bool(options.split_parts)
    typed, listed = options.sample_type is not None, options.tar_index_only
    refuse_contradictions(
        ("--split-ratio", ratio, "--split-parts", parts),
        ("--sample-type", typed, "--skip-dataset-yaml", options.skip_dataset_yaml),
        ("--tar-index-only", listed, "--split-ratio", ratio),
        ("--tar-index-only", listed, "--split-parts", parts),
        ("--tar-index-only", listed, "--sample-type", typed),
    )
    if options.field_map is not None and not typed:
        raise ConfigError("--field-map requires a sample type", fix="Add --sample-type CLASS.")
    report = run(
        replace(options, media=options.media_filter()),
        asking=asking and not options.dry_run and not listed,
        overwrite=options.overwrite,
        describe=not options.skip_dataset_yaml and not listed,
    )
    emit_report(report, json, lambda: show(report))


def run(
    options: Prepare,
    *,
    asking: bool,
    overwrite: bool,
    describe: bool,
    types: Sequence[str] | None = None,
) -> PrepareReport:
    """Prepare a dataset; if `asking`, ask for options that were not given. `types` is that of `dialogue.describe`."""
    from feedmill.cli import dialogue
    from feedmill.indexing.prepare import prepare as prepare_dataset

    url = str(options.url)
    if not asking or is_file(url):
        return call(prepare_dataset, options)
    dialogue.confirm_overwrite(url, overwrite)
    if options.split_ratio is None and not options.split_parts and not dialogue.splits_known(url):
        options = replace(options, split_ratio=dialogue.ask_ratio(url))
    report = call(prepare_dataset, options)
    if describe and options.sample_type is None:
        dialogue.describe(url, report, options.dataset_yaml_name, types)
    return report


def refuse_contradictions(*pairs: tuple[str, bool, str, bool]) -> None:
    """Raise `ConfigError` if both options of a pair were given. Each pair is (option, given, option, given)."""
    for one, given, other, too in pairs:
        if given and too:
            raise ConfigError(f"{one} and {other} contradict each other", fix="Remove one of them.")


def is_file(url: str) -> bool:
    """Return whether this is one file (JSONL or a metadataset), for which no questions are asked."""
    from feedmill.storage import is_local_folder

    return url.endswith((".jsonl", ".yaml", ".yml")) and not is_local_folder(url)


def show(report: PrepareReport) -> None:
    """Print what was done."""
    one = is_file(report.path)
    if one and not report.path.endswith(".jsonl"):
        facts([("prepared", report.path), *(("rows", f"{rows:,} in {where}") for where, rows in report.joins.items())])
        if not report.joins:
            typer.echo("It has no joins: there is nothing to prepare.")
        warn(report.warnings)
        return
    splits = ", ".join(f"{name} {count}" for name, count in report.splits.items())
    reused = f" ({report.reused} taken from the index, {report.scanned} read)" if report.reused else ""
    facts(
        [
            ("prepared", Path(report.path).name if one else report.path),
            ("samples", report.samples),
            ("shards", f"{report.shards:,}{reused}"),
            ("size", human_size(report.bytes)),
            ("parts", ", ".join(report.parts) or None),
            ("media", report.media or None),
            ("samples per split" if one else "shards per split", splits or None),
            ("time", f"{report.seconds:.2f} s, {report.samples / max(report.seconds, 1e-9):,.0f} samples/s"),
        ]
    )
    warn(report.warnings)
    for error in report.left_out:
        typer.echo(f"skipped: {error}", err=True)
