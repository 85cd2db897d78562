"""``feedmill prepare``: index a dataset, split it and declare its sample type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.dialogue import can_answer
from feedmill.cli.options import DryRun, Json, Threads, on_engine
from feedmill.cli.output import emit_report, facts, human_size
from feedmill.jobs.policy import METAVAR, on_error_policy

if TYPE_CHECKING:
    from feedmill.indexing.report import PrepareReport

DatasetArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Folder of tar shards, a .jsonl file, or a metadataset; a path or URL.")
]
SplitParts = Annotated[
    list[str] | None,
    typer.Option("--split-parts", metavar="NAME:REGEX", help="Shards of one split, by path; repeatable."),
]
SplitRatio = Annotated[
    str | None,
    typer.Option(
        "--split-ratio", metavar="A,B,C", help="Ratio of shards (or lines of a .jsonl) for train, val and test."
    ),
]
Exclude = Annotated[str | None, typer.Option("--exclude", metavar="REGEX", help="Skip shards whose path matches.")]
TarIndexOnly = Annotated[bool, typer.Option("--tar-index-only", help="Index only the listed shards again.")]
ShuffleTars = Annotated[
    bool, typer.Option("--shuffle-tars", help="Shuffle the shards (or blocks of lines) before a ratio split.")
]
SampleType = Annotated[
    str | None,
    typer.Option("--sample-type", metavar="CLASS", help="Sample type, such as CaptioningSample or CrudeWebdataset."),
]
FieldMapText = Annotated[
    str | None,
    typer.Option(
        "--field-map", metavar="JSON", help='Fields from parts: \'{"image": "jpg", "caption": "json[text]"}\'.'
    ),
]
YamlName = Annotated[
    str, typer.Option("--dataset-yaml-name", metavar="FILE", help="File name of the description in .nv-meta.")
]
SkipYaml = Annotated[bool, typer.Option("--skip-dataset-yaml", help="Do not write a sample description.")]
Media = Annotated[
    bool, typer.Option("--media-metadata", help="Store sizes and durations of media; requires one of the next three.")
]
ByExtension = Annotated[
    bool,
    typer.Option(
        "--media-metadata-by-extension", "--media-by-extension", help="Choose media files by their extension."
    ),
]
ByHeader = Annotated[
    bool,
    typer.Option("--media-metadata-by-header", "--media-by-header", help="Choose media files by their first bytes."),
]
ByGlob = Annotated[
    str | None,
    typer.Option(
        "--media-metadata-by-glob",
        "--media-by-glob",
        metavar="P[,P]",
        help="Choose media files by name, e.g. '*.jpg,*.png'.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Prepare again without asking.")]


OnError = Annotated[
    str,
    typer.Option("--on-error", metavar=METAVAR, help="Stop at an invalid shard, or skip and report it."),
]
Rescan = Annotated[bool, typer.Option("--rescan", help="Also read unchanged shards.")]
Digest = Annotated[bool, typer.Option("--hash/--no-hash", help="Hash each shard, so that 'check' detects changes.")]
Interactive = Annotated[
    bool | None,
    typer.Option("--interactive/--non-interactive", help="Ask for missing options; default: only on a terminal."),
]


@on_engine
def prepare(
    path: DatasetArgument,
    split_ratio: SplitRatio = None,
    split_parts: SplitParts = None,
    exclude: Exclude = None,
    shuffle_tars: ShuffleTars = False,
    tar_index_only: TarIndexOnly = False,
    sample_type: SampleType = None,
    field_map: FieldMapText = None,
    dataset_yaml_name: YamlName = "dataset.yaml",
    skip_dataset_yaml: SkipYaml = False,
    media_metadata: Media = False,
    media_by_extension: ByExtension = False,
    media_by_header: ByHeader = False,
    media_by_glob: ByGlob = None,
    on_error: OnError = "raise",
    rescan: Rescan = False,
    digest: Digest = True,
    interactive: Interactive = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    workers: Threads = None,
    json: Json = False,
) -> None:
    """Index a dataset, divide it into splits, and set how samples are read.

    Run it again after adding shards: only new shards are read; they join the first split.
    """
    asking = not dry_run and ((can_answer() and not json) if interactive is None else interactive)
    ratio, parts, typed = split_ratio is not None, bool(split_parts), sample_type is not None
    refuse_contradictions(
        ("--split-ratio", ratio, "--split-parts", parts),
        ("--sample-type", typed, "--skip-dataset-yaml", skip_dataset_yaml),
        ("--tar-index-only", tar_index_only, "--split-ratio", ratio),
        ("--tar-index-only", tar_index_only, "--split-parts", parts),
        ("--tar-index-only", tar_index_only, "--sample-type", typed),
    )
    report = run(
        path,
        asking=asking and not tar_index_only,
        overwrite=overwrite,
        media=media_filter(media_metadata, media_by_extension, media_by_header, media_by_glob),
        field_map=parse_field_map(field_map, typed=typed),
        sample_type=None if skip_dataset_yaml else sample_type,
        describe=not skip_dataset_yaml and not tar_index_only,
        split_ratio=split_ratio,
        split_parts=split_parts or (),
        exclude=exclude,
        shuffle_tars=shuffle_tars,
        tar_index_only=tar_index_only,
        dataset_yaml_name=dataset_yaml_name,
        on_error=on_error_policy(on_error),
        rescan=rescan,
        digest=digest,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def run(
    url: str,
    *,
    asking: bool,
    overwrite: bool,
    describe: bool,
    types: Sequence[str] | None = None,
    **options: Any,
) -> PrepareReport:
    """Prepare a dataset; if `asking`, ask for options that were not given. `types` is that of `dialogue.describe`."""
    from feedmill.cli import dialogue
    from feedmill.indexing.prepare import prepare as prepare_dataset

    if not asking or is_file(url):
        return prepare_dataset(url, **options)
    dialogue.confirm_overwrite(url, overwrite)
    if options["split_ratio"] is None and not options["split_parts"]:
        options["split_ratio"] = dialogue.ask_ratio(url)
    report = prepare_dataset(url, **options)
    if describe and options["sample_type"] is None:
        dialogue.describe(url, report, options["dataset_yaml_name"], types)
    return report


def refuse_contradictions(*pairs: tuple[str, bool, str, bool]) -> None:
    """Raise `ConfigError` if both options of a pair were given. Each pair is (option, given, option, given)."""
    from feedmill.errors import ConfigError

    for one, given, other, too in pairs:
        if given and too:
            raise ConfigError(f"{one} and {other} contradict each other", fix="Remove one of them.")


def is_file(url: str) -> bool:
    """Return whether this is one file (JSONL or a metadataset), for which no questions are asked."""
    from feedmill.storage import is_local_folder

    return url.endswith((".jsonl", ".yaml", ".yml")) and not is_local_folder(url)


def media_filter(wanted: bool, extension: bool, header: bool, glob: str | None) -> Any:
    """Return the `MediaFilter` selected by the options, or None.

    Raises:
        ConfigError: the options contradict each other.
    """
    if not (wanted or extension or header or glob is not None):
        return None
    from feedmill.samples.media import MediaFilter

    return MediaFilter.parse(glob=glob, header=header, extension=extension)


def parse_field_map(text: str | None, *, typed: bool = True) -> dict[str, str] | None:
    """Parse the value of ``--field-map``.

    Args:
        typed: whether a sample type is given, which it requires.

    Raises:
        ConfigError: the text is not a JSON object of strings, or there is no sample type.
    """
    if text is None:
        return None
    import orjson

    from feedmill.errors import ConfigError

    if not typed:
        raise ConfigError("--field-map requires a sample type", fix="Add --sample-type CLASS.")

    fix = 'Write for example: --field-map \'{"image": "jpg", "caption": "txt"}\''
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--field-map is not JSON ({error})", kind="bad-field-map", fix=fix) from None
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ConfigError(
            "--field-map must be a JSON object that maps field names to strings", kind="bad-field-map", fix=fix
        )
    return value


def show(report: PrepareReport) -> None:
    """Print what was done."""
    one = is_file(report.path)
    if one and not report.path.endswith(".jsonl"):
        facts([("prepared", report.path), *(("rows", f"{rows:,} in {where}") for where, rows in report.joins.items())])
        if not report.joins:
            typer.echo("It has no joins: there is nothing to prepare.")
        for warning in report.warnings:
            typer.echo(f"warning: {warning}", err=True)
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
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for error in report.left_out:
        typer.echo(f"skipped: {error}", err=True)
