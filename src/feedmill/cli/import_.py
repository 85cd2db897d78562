"""``feedmill import``: make documents or a prepared dataset from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.options import DryRun, Json, Processes
from feedmill.cli.output import (
    counted,
    echo_dry_run,
    emit,
    facts,
    human_rate,
    human_size,
    printable,
    show_left_out,
    would_write,
)
from feedmill.jobs.policy import METAVAR

if TYPE_CHECKING:
    from feedmill.importing.report import ImportReport


Paths = Annotated[
    list[str], typer.Argument(metavar="SRC... OUT", help="Folders and files to import, and the folder to write.")
]
Type = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="auto, documents, captioning, classification, media (no captions or classes), episodes (of LeRobot"
        " datasets) or parts (files with the same name are one sample).",
    ),
]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="PATTERN", help="Import only these files, e.g. '*.jpg'.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Leave these files out; repeatable.")
]
Captions = Annotated[
    list[str] | None,
    typer.Option("--captions", metavar="FILE", help="Table of captions for media, wherever it is; repeatable."),
]
Text = Annotated[str | None, typer.Option("--text", metavar="COLUMN", help="Column of the text in tables and JSON.")]
Id = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="Column of the ids; default: id, or FILE:ROW.")]
Encoding = Annotated[
    str, typer.Option("--encoding", metavar="NAME", help="Encoding of texts that are not UTF-8, e.g. cp1252.")
]
Compression = Annotated[str, typer.Option("--compression", metavar="none|gz|zst", help="Compression of documents.")]
SplitRatio = Annotated[
    str | None,
    typer.Option("--split-ratio", metavar="8,1,1", help="Divide samples into train, val and test at random."),
]
MaxShardSize = Annotated[
    str, typer.Option("--max-shard-size", metavar="SIZE", help="Maximum size of a shard, such as 1GB.")
]
MaxShardSamples = Annotated[
    int, typer.Option("--max-shard-samples", metavar="N", min=1, help="Maximum samples of a shard.")
]
Decode = Annotated[bool, typer.Option("--decode", help="Decode all media in full; default: check their headers.")]
OnError = Annotated[
    str, typer.Option("--on-error", metavar=METAVAR, help="Stop at files that are not clear, or skip and list them.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier import.")]


def import_(
    paths: Paths,
    type_: Type = "auto",
    include: Include = None,
    exclude: Exclude = None,
    captions: Captions = None,
    text: Text = None,
    id_: Id = None,
    encoding: Encoding = "utf-8",
    compression: Compression = "none",
    split_ratio: SplitRatio = None,
    max_shard_size: MaxShardSize = "256MB",
    max_shard_samples: MaxShardSamples = 5_000,
    decode: Decode = False,
    on_error: OnError = "raise",
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Make documents from texts and tables, or a prepared dataset from images, audio, video and robot episodes.

    Recognizes captions beside media, metadata.jsonl and .csv, class folders, folders named train, val and test, and
    LeRobot datasets.
    What it leaves out is reported with the reason. After a kill, the same command resumes.
    """
    from feedmill.importing.import_data import import_data

    if len(paths) < 2:
        raise typer.BadParameter("name at least one source, and the output folder", param_hint="'SRC... OUT'")
    choices: dict[str, Any] = {"type": type_, "compression": compression, "on_error": on_error}  # checked there
    report = import_data(
        paths[:-1],
        paths[-1],
        include=include or (),
        exclude=exclude or (),
        captions=captions or (),
        text=text,
        id=id_,
        encoding=encoding,
        **choices,
        split_ratio=split_ratio,
        max_shard_size=max_shard_size,
        max_shard_samples=max_shard_samples,
        decode=decode,
        dry_run=dry_run,
        overwrite=overwrite,
        workers=workers,
        progress=not json,
    )
    emit(report.as_dict(), json, lambda: show(report))


def _shown(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8" else encoding


def show(report: ImportReport) -> None:
    """Print what was recognized, written and left out."""
    if report.dry_run is not None:
        echo_dry_run(report.dry_run)
    noun = "documents" if report.type == "documents" else "samples"
    reused = f" ({report.reused:,} of an interrupted run)" if report.reused else ""
    splits = ", ".join(f"{name} {count:,}" for name, count in report.splits.items())
    encodings = report.encodings.most_common()
    rate = human_rate(report.input_bytes / max(report.seconds, 1e-9), "B").replace(" B/s", "B/s")
    facts(
        [
            ("output" if report.dry_run else "wrote", report.path),
            ("type", report.type + (f" ({report.sample_type})" if report.sample_type else "")),
            *(("recognized", printable(line)) for line in report.recognized),
            (noun, report.samples),
            ("splits", splits or None),
            (
                "encodings",
                ", ".join(f"{n:,} {'file' if n == 1 else 'files'} as {_shown(name)}" for name, n in encodings) or None,
            ),
            ("read", f"{counted(report.files, 'file')}, {human_size(report.input_bytes)}"),
            ("shards", None if report.dry_run else f"{report.outputs:,}{reused}, {human_size(report.bytes)}"),
            *(would_write(report.dry_run) if report.dry_run else ()),
            ("time", None if report.dry_run else f"{report.seconds:.2f} s, {rate}"),
        ]
    )
    show_left_out(report.left_out)
    if report.left_out and not report.dry_run:
        typer.echo(f"all names are in {printable(report.path.rstrip('/'))}/.feedmill/left_out.jsonl", err=True)
