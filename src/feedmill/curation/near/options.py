"""Options and report of near-duplicate detection, and the choice of bands and rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from feedmill.curation.options import Keep, Removal
from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import JobReport
from feedmill.storage.base import refuse_non_utf8

HASHES = 128
"""Maximum number of MinHash values of a document if bands and rows are not given."""
RECALL = 0.98
COVERED: Removal = "covered"
CONNECTED: Removal = "connected"
FIRST: Keep = "first"
LONGEST: Keep = "longest"


@dataclass(frozen=True, kw_only=True, slots=True)
class NearOptions:
    """Options of near-duplicate detection.

    Args:
        name: Folder of the attributes and key of the spans.
        threshold: Minimum Jaccard similarity of the shingle sets of two near-duplicates, above 0 and up to 1.
        ngram: Number of words in a shingle.
        lower: Compare letters in lower case.
        punctuation: Skip punctuation and symbols, which then separate words.
        bands, rows: Shape of the locality-sensitive hashing. 0 uses `chosen_bands`.
        keep: Document of a cluster that is not marked: the ``"first"`` in input order, or the ``"longest"`` in
            characters (the first of the longest).
        removal: What is marked: documents ``"covered"`` by a kept one that is similar to them; or all but one of those
            that are ``"connected"`` by similar pairs, also if they are not similar to the kept one.
        documents_folder: Name of the folder of documents.
    """

    name: str = "dup_near"
    threshold: float = 0.8
    ngram: int = 5
    lower: bool = True
    punctuation: bool = True
    bands: int = 0
    rows: int = 0
    keep: Keep = FIRST
    removal: Removal = COVERED
    documents_folder: str = "documents"

    def __post_init__(self) -> None:
        refuse_non_utf8(self.name)
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise _bad(f"{self.name!r} is not a valid name of an attribute set", "Use a plain name.")
        if not 0 < self.threshold <= 1:
            raise _bad(f"the threshold must be above 0 and up to 1, not {self.threshold}", "Change the threshold.")
        if not 1 <= self.ngram <= 1000:
            raise _bad(f"a shingle must have 1 to 1000 words, not {self.ngram}", "Use 1 to 1000.")
        if (self.bands == 0) != (self.rows == 0) or self.bands < 0 or self.rows < 0:
            raise _bad(f"{self.bands} bands of {self.rows} rows are invalid", "Set both or neither, each to 1 or more.")
        if self.bands * self.rows > 1 << 14:
            raise _bad(f"{self.bands} bands of {self.rows} rows are too many", "Use up to 16,384 hashes in total.")
        if self.keep not in (FIRST, LONGEST):
            raise _bad(f"unknown document to keep of a cluster: {self.keep!r}", "Use 'first' or 'longest'.")
        if self.removal not in (COVERED, CONNECTED):
            raise _bad(f"unknown rule of removal: {self.removal!r}", "Use 'covered' or 'connected'.")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of bands, and of rows in a band."""
        return (self.bands, self.rows) if self.bands else chosen_bands(self.threshold)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def signature(self) -> dict[str, Any]:
        """Return the options that signatures and decisions depend on. Runs that share a folder must agree on them."""
        bands, rows = self.shape
        names = ("threshold", "ngram", "lower", "punctuation", "keep", "removal")
        return {**{name: getattr(self, name) for name in names}, "bands": bands, "rows": rows}


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
        uncovered: Duplicates that are less similar to it than the threshold; 0 unless `NearOptions.removal` is
            ``"connected"``.
        sources: For each folder of documents: its documents and duplicates, and how many of these are duplicates of
            documents in which folder; by descending number of duplicates.
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
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"{self.duplicates:,} of {self.documents:,} documents in {self.files:,} files are near-duplicates,"
            f" in attributes/{self.name}"
        )
        return f"{head}\n{self.clusters:,} clusters among {self.added:,} new documents"


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


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-option", fix=fix)
