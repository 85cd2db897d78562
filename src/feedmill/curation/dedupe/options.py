"""What is compared with what, and how it is written down."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from feedmill.errors import ConfigError
from feedmill.storage.base import refuse_odd_names

DOCUMENTS, PARAGRAPHS = "documents", "paragraphs"
MOST = 1 << 31
"""Lengths and numbers of words are below this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupeOptions:
    """The options of a search for duplicates.

    Args:
        name: the folder of the attributes. attribute: the key of the spans in each row.
        unit: ``"documents"`` or ``"paragraphs"``.
        key: JSONPath of the text that documents are compared by; the first match counts.
        separator: what lies between paragraphs.
        ngram: words in an n-gram; 0 compares whole paragraphs.
        stride: words from one n-gram to the next.
        threshold: share of n-grams seen before from which a paragraph is written down.
        skip_short: leave paragraphs alone that have fewer than two n-grams (by default they are compared whole).
        skip_empty: leave blank texts alone. min_length: and those with fewer characters (documents: bytes of the key).
        min_words: and those with fewer words (UAX 29).
        partitions, partition: take only keys whose hash leaves this remainder, where several machines share a filter.
        dolma: count characters and n-grams as Dolma does (see `feedmill.kernels.text.paragraphs`).
        defects: do as Dolma 1.2.1 does where that is wrong: with `min_words` nothing is ever looked up.
        documents_folder: the name of the folder of documents.
    """

    name: str
    attribute: str
    unit: str = PARAGRAPHS
    key: str = "$.text"
    separator: str = "\n"
    ngram: int = 0
    stride: int = 0
    threshold: float = 1.0
    skip_short: bool = False
    skip_empty: bool = False
    min_length: int = 0
    min_words: int = 0
    partitions: int = 1
    partition: int = 0
    dolma: bool = False
    defects: bool = False
    documents_folder: str = "documents"

    def __post_init__(self) -> None:
        refuse_odd_names(self.name, self.attribute)
        if self.unit not in (DOCUMENTS, PARAGRAPHS):
            raise _bad(f"duplicates of {self.unit!r} cannot be found", "Use 'documents' or 'paragraphs'.")
        if not self.separator:
            raise _bad("the paragraph separator is empty", "Leave it out for newlines.")
        for text in (self.key, self.separator):
            if not _is_text(text):
                raise _bad(f"{text!r} is no text", "Give keys and separators in UTF-8.")
        if not self.name or not self.attribute or "/" in self.name or self.name.startswith("."):
            raise _bad(f"{self.name!r} is not a valid name of an attribute set", "Give a plain name.")
        if min(self.ngram, self.stride, self.min_length, self.min_words) < 0:
            raise _bad("lengths and numbers of words cannot be negative", "Use 0 or more.")
        if isnan(self.threshold):
            raise _bad("a threshold of nan is not a number", "Give a share from 0 to 1.")
        if (most := max(self.ngram, self.stride, self.min_length, self.min_words)) >= MOST:
            raise _bad(f"{most} is too large for a length or a number of words", f"Use less than {MOST}.")
        if not 0 <= self.partition < self.partitions:
            raise _bad(f"there is no partition {self.partition} of {self.partitions}", "Count from 0.")

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of documents that are read; None if any field may be needed."""
        return ("id", "text") if self.key == "$.text" else None

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-dedupe-options", fix=fix)
