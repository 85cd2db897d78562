"""What counts as a near-duplicate, and how candidates are found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from feedmill.errors import ConfigError
from feedmill.storage.base import refuse_odd_names

HASHES = 128
"""MinHash values of a document, at most, where bands and rows are not given."""
RECALL = 0.98
FIRST, LONGEST = "first", "longest"


@dataclass(frozen=True, kw_only=True, slots=True)
class NearOptions:
    """How near-duplicates are found.

    Args:
        name: the folder of the attributes and the key of the spans.
        threshold: Jaccard similarity of the shingle sets from which two documents are near-duplicates, above 0 to 1.
        ngram: words of a shingle.
        lower: whether letters are compared in lower case.
        punctuation: whether punctuation and symbols are skipped, and separate words.
        bands, rows: of the locality-sensitive hashing; 0 for what `chosen_bands` gives.
        keep: the document of a cluster that is not marked: the ``"first"`` in the order of the input, or the
            ``"longest"`` (in characters; the first of those).
        documents_folder: the name of the folder of documents.
    """

    name: str = "dup_near"
    threshold: float = 0.8
    ngram: int = 5
    lower: bool = True
    punctuation: bool = True
    bands: int = 0
    rows: int = 0
    keep: str = FIRST
    documents_folder: str = "documents"

    def __post_init__(self) -> None:
        refuse_odd_names(self.name)
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise _bad(f"{self.name!r} is not a valid name of an attribute set", "Give a plain name.")
        if not 0 < self.threshold <= 1:
            raise _bad(f"there is no Jaccard similarity of {self.threshold}", "Give a threshold above 0, up to 1.")
        if not 1 <= self.ngram <= 1000:
            raise _bad(f"shingles of {self.ngram} words cannot be made", "Use 1 to 1000.")
        if (self.bands == 0) != (self.rows == 0) or self.bands < 0 or self.rows < 0:
            raise _bad(f"{self.bands} bands of {self.rows} rows are invalid", "Give both or neither, each at least 1.")
        if self.bands * self.rows > 1 << 14:
            raise _bad(f"{self.bands} bands of {self.rows} rows are too many", "Use up to 16,384 hashes in all.")
        if self.keep not in (FIRST, LONGEST):
            raise _bad(f"the {self.keep!r} document of a cluster cannot be kept", "Use 'first' or 'longest'.")

    @property
    def shape(self) -> tuple[int, int]:
        """Bands and rows."""
        return (self.bands, self.rows) if self.bands else chosen_bands(self.threshold)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def signature(self) -> dict[str, Any]:
        """Return what signatures and decisions depend on, so that those of several runs can be kept together."""
        bands, rows = self.shape
        names = ("threshold", "ngram", "lower", "punctuation", "keep")
        return {**{name: getattr(self, name) for name in names}, "bands": bands, "rows": rows}


def found_share(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that documents of this similarity share the key of a band.

    >>> round(found_share(0.8, 18, 7), 3), round(found_share(0.5, 18, 7), 3)
    (0.986, 0.132)
    """
    return 1 - (1 - similarity**rows) ** bands


def chosen_bands(threshold: float) -> tuple[int, int]:
    """Bands and rows: as many rows as leave 98 % of the pairs that are just similar enough among the candidates.

    More rows make fewer candidates that are not similar; pairs above the threshold are found more often than those at
    it.

    >>> [chosen_bands(t) for t in (0.5, 0.7, 0.8, 0.9)]
    [(42, 3), (25, 5), (18, 7), (11, 11)]
    """
    for rows in range(HASHES, 1, -1):
        if found_share(threshold, HASHES // rows, rows) >= RECALL:
            return HASHES // rows, rows
    return HASHES, 1


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-near-options", fix=fix)
