"""Implement ``feedmill compat energon ...``: the commands and options of Energon 7.4.

The files of `prepare` equal Energon's byte for byte, except for the order of database rows, which is random in
Energon. These errors of Energon are fixed: a ratio split drops shards, a truncated tar is accepted, and a failed lint
exits with 0. docs/migration/energon.md lists the differences.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, fields, replace
from typing import Annotated, Any

import typer

from feedmill._version import __version__
from feedmill.cli import prepare as prepare_cli
from feedmill.cli.app import new_app
from feedmill.cli.check import show as show_findings
from feedmill.cli.command import command
from feedmill.cli.edit import show_media
from feedmill.cli.output import counted, printable
from feedmill.cli.show import show_facts as show_info
from feedmill.compat.energon.checkpoint import app as checkpoint_app
from feedmill.indexing.options import MediaChoice, MediaTarget, Prepare, SplitAndDescribe
from feedmill.jobs.options import Flag, Opt, call
from feedmill.mounting.options import Mount
from feedmill.samples.options import DatasetConfig, DatasetPath, Described, Trust

ENERGON = "7.4"
"""The release whose commands these are."""
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


class Info(Described):
    """Describe a dataset: samples, shards, bytes, splits, sample type and the parts of a sample."""

    path: DatasetPath


@app.command("info", short_help="Describe a dataset.")
@command(Info, json=False)
def info_(options: Info) -> None:
    from feedmill.converting.info import info as describe

    facts = call(describe, options).facts
    typer.echo(f"{options.path}: {_counts(facts)}\n")
    show_info(facts)


def _counts(facts: dict[str, Any]) -> str:
    numbers = [counted(facts[f"{noun}s"], noun) for noun in ("sample", "shard") if facts.get(f"{noun}s") is not None]
    return " in ".join(numbers)


class Preview(Trust):
    """Show the first samples of each split as text. Asks after each sample whether to continue."""

    path: DatasetPath
    _: KW_ONLY
    split_parts: Annotated[str, Opt("A,B", "Splits to show.")] = "train,val,test"
    dataset_config: DatasetConfig = None
    count: Annotated[int | None, Opt("N", "Samples per split; default: ask.", "-n", min=1)] = None


@app.command("preview")
@command(Preview, json=False)
def preview_(options: Preview) -> None:
    from feedmill.samples.open import open as open_dataset

    path, count = str(options.path), options.count
    for split in _present(path, options.split_parts):
        if split is not None:
            typer.secho(f"split {split}", bold=True)
        dataset = open_dataset(path, split=split, dataset_config=options.dataset_config, trust=options.trust)
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


class Lint(Described):
    """Check the index and shards, and decode every sample. The exit status is 1 if there are problems."""

    path: DatasetPath
    _: KW_ONLY
    split_parts: Annotated[str, Opt("A,B", "Accepted without effect: all splits are checked.")] = "train,val,test"
    parallel: Annotated[int, Opt("N", "Threads.", min=1)] = 1


@app.command()
@command(Lint, json=False)
def lint(options: Lint) -> None:
    from feedmill.indexing.check import check

    report = check(options.path, read_samples=True, workers=options.parallel, **options.description())
    show_findings(report)
    if report.findings:
        raise typer.Exit(1)


class EnergonOptions(MediaChoice, kw_only=True):
    """Options of both commands that prepare."""

    progress: Annotated[bool, Flag("Show a progress bar on a terminal.")] = True
    num_workers: Annotated[int | None, Opt("N", "Threads; default: by cores.", "--num-workers --workers", min=1)] = None
    tmp_path: Annotated[
        str | None, Opt("DIR", "Accepted without effect: TMPDIR sets the folder of temporary files.")
    ] = None


class EnergonPrepare(SplitAndDescribe, EnergonOptions, kw_only=True):
    """Index a folder of tars or a JSONL file, as Energon does."""

    fix_duplicates: Annotated[bool, Flag("Rejected: it would rewrite the tars in place.")] = False
    non_interactive: Annotated[bool, Flag("Do not ask.")] = False
    force_overwrite: Annotated[bool, Flag("Prepare again without asking.")] = False
    skip_dataset_yaml: Annotated[bool, Flag("Do not write a sample description.")] = False


@app.command()
@command(EnergonPrepare, json=False)
def prepare(options: EnergonPrepare) -> None:
    from feedmill.errors import ConfigError
    from feedmill.formats.energon.prepared import INFO, INFO_YAML
    from feedmill.formats.tar.finished import SHARDS
    from feedmill.jobs.journal import Units, scratch_of
    from feedmill.jobs.work import tidy
    from feedmill.storage import open_store

    path, asks, listed = str(options.url), not options.non_interactive, options.tar_index_only
    if options.fix_duplicates:
        raise ConfigError(
            "--fix-duplicates is unsupported: it rewrites the tars in place, and prepare does not change data",
            file=path,
            fix="Run without it. The error for a duplicate key names the key and both shards.",
        )
    is_folder = not prepare_cli.is_file(path)
    media = options.media_filter()
    if listed and media is not None:
        raise ConfigError("--tar-index-only cannot be combined with media metadata", fix="Omit one of them.")
    if is_folder and not asks and not listed:
        if options.split_ratio is None and not options.split_parts:
            raise ConfigError(
                "--non-interactive requires --split-ratio or --split-parts", fix="Add --split-ratio 8,1,1."
            )
        store = open_store(path)
        if (
            not options.force_overwrite
            and (store.exists(INFO) or store.exists(INFO_YAML))
            and not Units(scratch_of(store), SHARDS).exist
        ):
            tidy(store)
            raise ConfigError(
                "the dataset is already prepared", file=path, fix="Add --force-overwrite to prepare it again."
            )
    chosen = {field.name: getattr(options, field.name) for field in fields(SplitAndDescribe)}
    chosen |= {"sample_type": None} if options.skip_dataset_yaml else {}
    chosen |= {"media": media, "workers": options.num_workers, "progress": options.progress}
    report = prepare_cli.run(
        Prepare(**chosen, rescan=True, energon_exact=True),
        asking=asks and not listed,
        overwrite=options.force_overwrite,
        describe=not options.skip_dataset_yaml,
        types=_TYPES,
    )
    prepare_cli.show(report)
    if not is_folder:
        typer.echo(f"Found {counted(report.samples, 'sample')}.")
    described = options.sample_type is not None or options.skip_dataset_yaml
    if is_folder and not asks and not described and not listed:
        typer.echo("No dataset.yaml was written (--sample-type writes one).")
    typer.echo("Done.")


class EnergonPrepareMedia(EnergonOptions, kw_only=True):
    """Add media metadata to a prepared dataset or a plain folder, as Energon does."""

    url: MediaTarget


@app.command("prepare-media")
@command(EnergonPrepareMedia, json=False)
def prepare_media_(options: EnergonPrepareMedia) -> None:
    from feedmill.indexing.prepare_media import prepare_media

    media: Any = replace(options, media_metadata=True).media_filter()
    show_media(prepare_media(options.url, media, workers=options.num_workers, progress=options.progress))
    typer.echo("Done.")


class EnergonMount(Mount, kw_only=True):
    """Show a dataset as a read-only file system."""

    detach: Annotated[bool, Flag("Run in the background and return at once.", "-d")] = False
    allow_slow: Annotated[
        bool, Flag("Accepted without effect: datasets without an index are always scanned.", "-w")
    ] = False


@app.command()
@command(EnergonMount, json=False)
def mount(options: EnergonMount) -> None:
    from feedmill.mounting.mount import mount as mount_dataset

    call(mount_dataset, options)
