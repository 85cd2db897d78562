"""Options of deduplication: what is compared, and how duplicates are written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isnan
from typing import Any, Literal

from feedmill.errors import ConfigError
from feedmill.storage.base import refuse_non_utf8

Unit = Literal["documents", "paragraphs", "substrings"]
DOCUMENTS: Unit = "documents"
PARAGRAPHS: Unit = "paragraphs"
SUBSTRINGS: Unit = "substrings"
MOST = 1 << 31
"""Lengths and numbers of words must be below this."""
LONGEST = 1 << 20
"""Maximum length of the substrings that are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupeOptions:
    """Options of deduplication.

    Args:
        name: Folder of the attributes.
        attribute: Key of the spans in each row.
        unit: ``"documents"``, ``"paragraphs"`` or ``"substrings"``.
        key: JSONPath of the text that documents are compared by; the first match is used.
        separator: Separator of paragraphs.
        ngram: Number of words in an n-gram; 0 compares whole paragraphs.
        stride: Number of words between the starts of n-grams.
        threshold: Share of duplicate n-grams from which a paragraph is marked.
        skip_short: Skip paragraphs with fewer than two n-grams. By default they are compared as a whole.
        skip_empty: Skip blank texts.
        min_length: Skip texts with fewer characters (documents: bytes of the key).
        min_words: Skip texts with fewer words (UAX 29).
        length: Number of bytes (UTF-8) of the shortest substring that is marked if it is repeated.
        every_copy: Mark the first occurrence of a repeated substring, too.
        partitions, partition: Look up only keys whose hash modulo `partitions` is `partition`, so that several
            machines can share the work.
        dolma: Count characters and n-grams as Dolma does (see `feedmill.kernels.text.paragraphs`).
        defects: Reproduce known defects of Dolma 1.2.1: with `min_words`, no key is looked up.
        documents_folder: Name of the folder of documents.
    """

    name: str
    attribute: str
    unit: Unit = PARAGRAPHS
    key: str = "$.text"
    separator: str = "\n"
    ngram: int = 0
    stride: int = 0
    threshold: float = 1.0
    skip_short: bool = False
    skip_empty: bool = False
    min_length: int = 0
    min_words: int = 0
    length: int = 200
    every_copy: bool = False
    partitions: int = 1
    partition: int = 0
    dolma: bool = False
    defects: bool = False
    documents_folder: str = "documents"

    def __post_init__(self) -> None:
        refuse_non_utf8(self.name, self.attribute)
        if self.unit not in (DOCUMENTS, PARAGRAPHS, SUBSTRINGS):
            raise _bad(f"unknown unit {self.unit!r}", "Use 'documents', 'paragraphs' or 'substrings'.")
        if not self.separator:
            raise _bad("the paragraph separator is empty", "Omit it to separate paragraphs by newlines.")
        for text in (self.key, self.separator):
            if not _is_text(text):
                raise _bad(f"{text!r} is not valid UTF-8", "Use keys and separators in UTF-8.")
        if not self.name or not self.attribute or "/" in self.name or self.name.startswith("."):
            raise _bad(f"{self.name!r} is not a valid name of an attribute set", "Use a plain name.")
        if min(self.ngram, self.stride, self.min_length, self.min_words) < 0:
            raise _bad("lengths and numbers of words cannot be negative", "Use 0 or more.")
        if isnan(self.threshold):
            raise _bad("a threshold of nan is not a number", "Use a share from 0 to 1.")
        if (most := max(self.ngram, self.stride, self.min_length, self.min_words)) >= MOST:
            raise _bad(f"{most} is too large for a length or a number of words", f"Use less than {MOST}.")
        if not 1 <= self.length <= LONGEST:
            raise _bad(f"a length of {self.length:,} bytes is out of range", f"Use 1 to {LONGEST:,}.")
        if not 0 <= self.partition < self.partitions:
            raise _bad(f"partition {self.partition} is out of range for {self.partitions} partitions", "Count from 0.")

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Fields of documents to read, or None for all."""
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
    return ConfigError(what, kind="bad-option", fix=fix)
