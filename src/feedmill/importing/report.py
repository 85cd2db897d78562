"""The result of an import."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from feedmill.jobs.dry_run import JobReport
from feedmill.jobs.reports import LeftOut


@dataclass(slots=True)
class ImportReport(JobReport):
    """The result of `import_data`.

    Attributes:
        path: the output.
        type: what the files were imported as: one of `feedmill.importing.recognition.TYPES`.
        recognized: what was recognized, one line each.
        samples: documents or samples written; with `dry_run`, the samples expected, or None for documents.
        files, input_bytes: files that were read, and their size.
        outputs, bytes: files written, and their size; of a dry run, 0.
        splits: split -> number of samples.
        sample_type: class of the samples; None for documents.
        encodings: encoding -> number of texts and captions read with it, if another than UTF-8 was given.
        left_out: what is not imported, with reasons.
        turned: images, and videos in MP4 or QuickTime, that state an orientation; they are stored as they are.
        reused: number of outputs that an interrupted run had finished.
        seconds: wall time.
    """

    path: str
    type: str
    recognized: list[str] = field(default_factory=list)
    samples: int | None = None
    files: int = 0
    input_bytes: int = 0
    outputs: int = 0
    bytes: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    sample_type: str | None = None
    encodings: Counter[str] = field(default_factory=Counter)
    left_out: LeftOut = field(default_factory=LeftOut)
    turned: int = 0
    reused: int = 0
    seconds: float = 0.0
