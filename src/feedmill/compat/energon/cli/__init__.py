"""Implement ``feedmill energon ...``: the commands and options of Energon 7.4.

The files of `prepare` equal Energon's byte for byte, except for the order of database rows, which is random in
Energon. These errors of Energon are fixed: a ratio split drops shards, a truncated tar is accepted, and a failed lint
exits with 0. docs/migration/energon.md lists the differences.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feedmill._version import __version__
from feedmill.cli import prepare as prepare_cli
from feedmill.cli.app import new_app
from feedmill.cli.check import show as show_findings
from feedmill.cli.info import show as show_info
from feedmill.cli.options import DatasetConfig, DatasetPath, SplitConfig, Trust
from feedmill.cli.output import counted, printable
from feedmill.cli.prepare import (
    ByExtension,
    ByGlob,
    ByHeader,
    DatasetArgument,
    Exclude,
    FieldMapText,
    Media,
    SampleType,
    ShuffleTars,
    SkipYaml,
    SplitParts,
    SplitRatio,
    TarIndexOnly,
    YamlName,
)
from feedmill.cli.prepare_media import MediaTarget
from feedmill.cli.prepare_media import show as show_media
from feedmill.compat.energon.checkpoint import app as checkpoint_app

ENERGON = "7.4"
"""The release whose commands these are."""
NumWorkers = Annotated[
    int | None, typer.Option("--num-workers", "--workers", metavar="N", min=1, help="Threads; default: by cores.")
]
Overwrite = Annotated[bool, typer.Option("--force-overwrite", help="Prepare again without asking.")]
TmpPath = Annotated[
    str | None,
    typer.Option(
        "--tmp-path", metavar="DIR", help="Accepted without effect: TMPDIR sets the folder of temporary files."
    ),
]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show a progress bar on a terminal.")]

_TYPES = (
    "CaptioningSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "Sample",
    "SimilarityInterleavedSample",
    "TextSample",
    "VQASample",
    "VidQASample",
    "CrudeWebdataset",
    "VQAOCRSample",
)
"""The sample types by the numbers that Energon's dialogue has, and the one that it lacks. `Sample` has no fields."""

app = new_app(no_args_is_help=True)
app.add_typer(checkpoint_app, name="checkpoint")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"feedmill {__version__}, with the commands of Energon {ENERGON}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Energon's command line: the same options and output files."""


@app.command("info", short_help="Describe a dataset.")
def info_(
    path: DatasetPath,
    dataset_config: DatasetConfig = None,
    split_config: SplitConfig = None,
    trust: Trust = False,
) -> None:
    """Describe a dataset: samples, shards, bytes, splits, sample type and the parts of a sample."""
    from feedmill.converting.info import info as describe

    facts = describe(path, dataset_config=dataset_config, split_config=split_config, trust=trust).facts
    typer.echo(f"{path}: {_counts(facts)}\n")
    show_info(facts)


def _counts(facts: dict[str, Any]) -> str:
    numbers = [counted(facts[f"{noun}s"], noun) for noun in ("sample", "shard") if facts.get(f"{noun}s") is not None]
    return " in ".join(numbers)


@app.command("preview")
def preview_(
    path: DatasetPath,
    split_parts: Annotated[
        str, typer.Option("--split-parts", metavar="A,B", help="Splits to show.")
    ] = "train,val,test",
    dataset_config: DatasetConfig = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Samples per split; default: ask.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Show the first samples of each split as text. Asks after each sample whether to continue."""
    from feedmill.samples.open import open as open_dataset

    for split in _present(path, split_parts):
        if split is not None:
            typer.secho(f"split {split}", bold=True)
        dataset = open_dataset(path, split=split, dataset_config=dataset_config, trust=trust)
        for index in range(len(dataset) if count is None else min(count, len(dataset))):
            _show_sample(index, dataset.locate(index).key, dataset.read([index])[0])
            if count is None and not _continues():
                typer.echo("Exiting Preview")
                break


def _show_sample(index: int, key: str, sample: Any) -> None:
    from feedmill.errors import FeedmillError
    from feedmill.samples.text import as_text
    from feedmill.samples.types import named_fields

    typer.echo(f"Sample {index}")
    typer.echo(f" - __key__ ({str}): {key!r}")
    fields = named_fields(sample)
    fields = {"sample": sample} if fields is None else fields
    for name in fields:
        if not name.startswith("__"):
            try:
                value = fields[name]
                text = f"({type(value)}): {as_text(value)}"
            except FeedmillError as error:
                text = f"(not decoded: {error})"
            typer.echo(f" - {printable(name)} {text}")


def _continues() -> bool:
    try:
        return typer.confirm("Continue?")
    except typer.Abort:  # the input ended
        typer.echo("")
        return False


def _present(path: str, names: str) -> list[str] | list[None]:
    """Return the named splits that have samples; ``[None]`` for a dataset without splits."""
    from feedmill.errors import NotFound
    from feedmill.samples.open import open as open_dataset

    splits = open_dataset(path, raw=True).splits
    if not splits:
        return [None]
    present = [name for name in map(str.strip, names.split(",")) if splits.get(name)]
    if not present:
        fix = f"Choose from --split-parts {','.join(splits)}."
        raise NotFound(f"none of the splits {names} has samples", file=path, kind="no-such-split", fix=fix)
    return present


@app.command()
def lint(
    path: DatasetPath,
    split_parts: Annotated[  # noqa: ARG001 - all splits are checked at once
        str, typer.Option("--split-parts", metavar="A,B", help="Accepted without effect: all splits are checked.")
    ] = "train,val,test",
    dataset_config: DatasetConfig = None,
    split_config: SplitConfig = None,
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, help="Threads.")] = 1,
    trust: Trust = False,
) -> None:
    """Check the index and shards, and decode every sample. The exit status is 1 if there are problems."""
    from feedmill.indexing.check import check

    report = check(
        path,
        read_samples=True,
        dataset_config=dataset_config,
        split_config=split_config,
        trust=trust,
        workers=parallel,
    )
    show_findings(report)
    if report.findings:
        raise typer.Exit(1)


@app.command()
def prepare(
    path: DatasetArgument,
    progress: Progress = True,
    split_parts: SplitParts = None,
    exclude: Exclude = None,
    num_workers: NumWorkers = None,
    tar_index_only: TarIndexOnly = False,
    shuffle_tars: ShuffleTars = False,
    media_metadata: Media = False,
    media_metadata_by_glob: ByGlob = None,
    media_metadata_by_header: ByHeader = False,
    media_metadata_by_extension: ByExtension = False,
    fix_duplicates: Annotated[
        bool, typer.Option("--fix-duplicates", help="Rejected: it would rewrite the tars in place.")
    ] = False,
    non_interactive: Annotated[bool, typer.Option("--non-interactive", help="Do not ask.")] = False,
    split_ratio: SplitRatio = None,
    force_overwrite: Overwrite = False,
    skip_dataset_yaml: SkipYaml = False,
    dataset_yaml_name: YamlName = "dataset.yaml",
    sample_type: SampleType = None,
    field_map: FieldMapText = None,
    tmp_path: TmpPath = None,  # noqa: ARG001
) -> None:
    """Index a folder of tars or a JSONL file, as Energon does."""
    from feedmill.errors import ConfigError
    from feedmill.formats.energon.prepared import INFO, INFO_YAML
    from feedmill.formats.tar.finished import SHARDS
    from feedmill.jobs.unfinished import scratch_of
    from feedmill.jobs.units import Units
    from feedmill.jobs.work import tidy
    from feedmill.storage import open_store

    if fix_duplicates:
        raise ConfigError(
            "--fix-duplicates is unsupported: it rewrites the tars in place, and prepare does not change data",
            file=path,
            fix="Run without it. The error for a duplicate key names the key and both shards.",
        )
    is_folder = not prepare_cli.is_file(path)
    media = prepare_cli.media_filter(
        media_metadata, media_metadata_by_extension, media_metadata_by_header, media_metadata_by_glob
    )
    if tar_index_only and media is not None:
        raise ConfigError("--tar-index-only cannot be combined with media metadata", fix="Omit one of them.")
    if is_folder and non_interactive and not tar_index_only:
        if split_ratio is None and not split_parts:
            raise ConfigError(
                "--non-interactive requires --split-ratio or --split-parts", fix="Add --split-ratio 8,1,1."
            )
        store = open_store(path)
        if (
            not force_overwrite
            and (store.exists(INFO) or store.exists(INFO_YAML))
            and not Units(scratch_of(store), SHARDS).exist
        ):
            tidy(store)
            raise ConfigError(
                "the dataset is already prepared", file=path, fix="Add --force-overwrite to prepare it again."
            )
    report = prepare_cli.run(
        path,
        asking=not non_interactive and not tar_index_only,
        overwrite=force_overwrite,
        describe=not skip_dataset_yaml,
        split_ratio=split_ratio,
        split_parts=split_parts or (),
        exclude=exclude,
        shuffle_tars=shuffle_tars,
        tar_index_only=tar_index_only,
        sample_type=None if skip_dataset_yaml else sample_type,
        field_map=prepare_cli.parse_field_map(field_map),
        dataset_yaml_name=dataset_yaml_name,
        media=media,
        rescan=True,
        energon_exact=True,
        workers=num_workers,
        progress=progress,
        types=_TYPES,
    )
    prepare_cli.show(report)
    if not is_folder:
        typer.echo(f"Found {counted(report.samples, 'sample')}.")
    if is_folder and non_interactive and sample_type is None and not skip_dataset_yaml and not tar_index_only:
        typer.echo("No dataset.yaml was written (--sample-type writes one).")
    typer.echo("Done.")


@app.command("prepare-media")
def prepare_media_(
    path: MediaTarget,
    progress: Progress = True,
    num_workers: NumWorkers = None,
    media_metadata: Media = False,  # noqa: ARG001 - always on for this command
    media_metadata_by_glob: ByGlob = None,
    media_metadata_by_header: ByHeader = False,
    media_metadata_by_extension: ByExtension = False,
    tmp_path: TmpPath = None,  # noqa: ARG001
) -> None:
    """Add media metadata to a prepared dataset or a plain folder, as Energon does."""
    from feedmill.indexing.prepare_media import prepare_media

    media = prepare_cli.media_filter(
        True, media_metadata_by_extension, media_metadata_by_header, media_metadata_by_glob
    )
    show_media(prepare_media(path, media, workers=num_workers, progress=progress))
    typer.echo("Done.")


@app.command()
def mount(
    path: DatasetPath,
    mountpoint: Annotated[str, typer.Argument(metavar="MOUNTPOINT", help="An empty folder.")],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background and return at once.")] = False,
    sample_folders: Annotated[bool, typer.Option("--sample-folders", "-s", help="One folder per sample.")] = False,
    allow_slow: Annotated[  # noqa: ARG001 - tars without an index are always scanned
        bool,
        typer.Option(
            "--allow-slow", "-w", help="Accepted without effect: datasets without an index are always scanned."
        ),
    ] = False,
) -> None:
    """Show a dataset as a read-only file system."""
    from feedmill.mounting.mount import mount as mount_dataset

    mount_dataset(path, mountpoint, sample_folders=sample_folders, detach=detach)
