"""Report of near-duplicate detection, and the choice of bands and rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedmill.jobs.dry_run import JobReport

HASHES = 128
"""Maximum number of MinHash values of a document if bands and rows are not given."""
RECALL = 0.98


@dataclass(slots=True)
class NearReport(JobReport):
    """Report of a near-duplicate run.

    `empty` to `largest` describe the `added` documents only.

    Attributes:
        files, documents, duplicates: Numbers of the run's input.
        added: Number of documents that were compared for the first time.
        empty: Documents without words.
        candidates: Pairs that shared the key of a band and were compared.
        left_out: Pairs of very large buckets that were not compared.
        clusters: Number of clusters.
        sizes: Number of clusters of each size, by the number of documents.
        largest: The largest clusters, with example documents.
        signatures: Folder of the signatures, if they are kept.
        known: Number of documents in that folder.
        skipped: Whether an earlier run had done everything.
        lowest: Lowest similarity of a duplicate to the document that is kept; None if there are no duplicates.
        uncovered: Duplicates that are less similar to it than the threshold; 0 unless the rule of removal is
            ``"connected"``.
        sources: For each folder of documents: its documents and duplicates, and how many of these are duplicates of
            documents in which folder; by descending number of duplicates.
        skip_lists: Of datasets of images: for each, the list of the samples to remove.
        others: Reports of the second and further thresholds of the run.
    """

    name: str
    files: int = 0
    documents: int = 0
    duplicates: int = 0
    added: int = 0
    empty: int = 0
    candidates: int = 0
    left_out: int = 0
    clusters: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    largest: list[dict[str, Any]] = field(default_factory=list)
    signatures: str | None = None
    known: int = 0
    skipped: bool = False
    lowest: float | None = None
    uncovered: int = 0
    sources: list[dict[str, Any]] = field(default_factory=list)
    skip_lists: list[str] = field(default_factory=list)
    others: list[NearReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"{self.duplicates:,} of {self.documents:,} documents in {self.files:,} files are near-duplicates,"
            f" in attributes/{self.name}"
        )
        head = f"{head}\n{self.clusters:,} clusters among {self.added:,} new documents"
        return "\n".join([head, *map(str, self.others)])


def found_share(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents of this similarity share the key of a band.

    >>> round(found_share(0.8, 18, 7), 3), round(found_share(0.5, 18, 7), 3)
    (0.986, 0.132)
    """
    return 1 - (1 - similarity**rows) ** bands


def chosen_bands(threshold: float) -> tuple[int, int]:
    """Return the bands and rows with the most rows that still find 98% of the pairs exactly at the threshold.

    More rows give fewer candidates that are not similar. Pairs above the threshold are found more often than pairs at
    it.

    >>> [chosen_bands(t) for t in (0.5, 0.7, 0.8, 0.9)]
    [(42, 3), (25, 5), (18, 7), (11, 11)]
    """
    for rows in range(HASHES, 1, -1):
        if found_share(threshold, HASHES // rows, rows) >= RECALL:
            return HASHES // rows, rows
    return HASHES, 1
