"""The reports of `prepare` and `check`."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedmill.errors import DataError, FeedmillError
from feedmill.jobs.dry_run import JobReport
from feedmill.jobs.reports import VerbReport


@dataclass(slots=True)
class PrepareReport(JobReport):
    """The result of `prepare`.

    Attributes:
        path: the dataset.
        samples, shards, bytes: totals of the new index.
        scanned, reused: shards read now, and shards taken from the index or from an interrupted run.
        parts: distinct part names in the order met, at most 50.
        splits: split name -> number of shards (of a JSONL file: of samples).
        media: files with media metadata.
        joins: of a metadataset: split and place of each join -> rows.
        left_out: shards that could not be indexed (with ``on_error="skip"``).
        warnings: unusual but harmless data.
        seconds: wall time.
    """

    path: str
    samples: int = 0
    shards: int = 0
    bytes: int = 0
    scanned: int = 0
    reused: int = 0
    parts: list[str] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    joins: dict[str, int] = field(default_factory=dict)
    left_out: list[DataError] = field(default_factory=list)
    media: int = 0
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True)
class CheckReport(VerbReport):
    """The result of `check`.

    Attributes:
        path: URL of the dataset.
        samples, shards, bytes: totals of the checked data.
        findings: problems with the data.
        notes: unusual but valid data.
    """

    path: str
    samples: int = 0
    shards: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)
    findings: list[FeedmillError] = field(default_factory=list)
