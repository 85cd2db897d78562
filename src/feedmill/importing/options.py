"""Options of the verb ``import``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from fractions import Fraction
from typing import Annotated, Literal

from feedmill.jobs.options import Arg, DryRunnable, Flag, Opt, Path, Processes, PythonOnly, WithProgress
from feedmill.jobs.policy import METAVAR, RAISE, OnError

Type = Literal["auto", "documents", "captioning", "classification", "detection", "media", "episodes", "parts"]
Compression = Literal["none", "gz", "zst"]


class Import(DryRunnable, Processes, WithProgress):
    """Make documents from texts and tables, or a prepared dataset from images, audio, video and robot episodes.

    Recognizes captions beside media, metadata.jsonl and .csv, class folders, annotations of COCO, YOLO and Pascal VOC,
    folders named train, val and test, and LeRobot datasets.
    What it leaves out is reported with the reason. After a kill, the same command resumes.
    """

    sources: Annotated[
        Path | Iterable[Path], Arg("SRC... OUT", "Folders and files to import, and the folder to write.")
    ]
    out: Annotated[Path, PythonOnly("The folder to write.")]
    _: KW_ONLY
    type: Annotated[
        Type,
        Opt(
            "TYPE",
            "auto, documents, captioning, classification, detection (boxes), media (no captions, classes or boxes),"
            " episodes (of LeRobot datasets) or parts (files with the same name are one sample).",
        ),
    ] = "auto"
    include: Annotated[Sequence[str] | str, Opt("PATTERN", "Import only these files, e.g. '*.jpg'.")] = ()
    exclude: Annotated[Sequence[str] | str, Opt("PATTERN", "Leave these files out; repeatable.")] = ()
    captions: Annotated[
        Sequence[Path],
        Opt(
            "FILE",
            "Table of captions for media, wherever it is; repeatable.",
            more="It has a column of files (``image``, ``path``, ...) and one of captions.",
        ),
    ] = ()
    text: Annotated[
        str | None,
        Opt(
            "COLUMN",
            "Column of the text in tables and JSON.",
            more="Default: ``text``, ``content``, ``body``, ... or the only one with text.",
        ),
    ] = None
    id: Annotated[str | None, Opt("COLUMN", "Column of the ids; default: id, or FILE:ROW.")] = None
    encoding: Annotated[
        str,
        Opt(
            "NAME",
            "Encoding of texts that are not UTF-8, e.g. cp1252.",
            more="Texts with a byte order mark tell it themselves.",
        ),
    ] = "utf-8"
    compression: Annotated[Compression, Opt("none|gz|zst", "Compression of documents.")] = "none"
    split_ratio: Annotated[
        Sequence[float | Fraction] | str | None,
        Opt(
            "8,1,1",
            "Divide samples into train, val and test at random.",
            text=str,
            more="It replaces splits that folders name.",
        ),
    ] = None
    max_shard_size: Annotated[int | str, Opt("SIZE", "Maximum size of a shard, such as 1GB.")] = "256MB"
    max_shard_samples: Annotated[int, Opt("N", "Maximum samples of a shard.", min=1)] = 5_000
    decode: Annotated[bool, Flag("Decode all media in full; default: check their headers.")] = False
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at files that are not clear, or skip and list them.")] = RAISE
    overwrite: Annotated[bool, Flag("Replace an earlier import.")] = False
