"""Personal data found by regular expressions: email addresses, phone numbers and IP addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.curation.taggers.lengths import per_word
from feedmill.errors import DataError
from feedmill.kernels.text import characters
from feedmill.kernels.text.hints import ADDRESS, EMAIL, PHONE, hints

KINDS = ("EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS")
_NUMBER = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_PHONE = re.compile(r"(?<!\s)\s+\(?\d{3}\)?[-. ]*\d{3}[-. ]?\d{4}")  # the lookbehind tries each run of spaces once
_ADDRESS = re.compile(rf"(?:{_NUMBER}\.){{3}}{_NUMBER}")
_BEHIND = re.compile(r"(@[^\s@,?!;:)(]+?)[.\s@,?!;:)(]?\s")  # an @ and the domain after it
_MARKS = re.compile(r"[.\s@,?!;:)(]*")
_STRIPPED = ".@,?!;:)(" + "".join(c for c in map(chr, range(0x3001)) if c.isspace())
_CONTEXT = 100  # a number with ISBN, DOI or # within this many characters is neither a phone number nor an IP address
_TOO_MANY_QUESTIONS = 10_000
Found = list[tuple[int, int, int, float]]
Match = tuple[int, int, int, int]
"""Start and end of a match, and start and end of the address in it."""


def _hints(batch: Batch, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[int]:
    bits: list[int] = hints(batch.codes, starts, ends, characters.table()).tolist()
    return bits


def _matches(text: str, hint: int, group: int) -> Iterator[tuple[int, int, int]]:
    """Yield the (kind, start, end) of each match of the patterns; email matches must also pass `_is_email`.

    Args:
        group: Check the whole match (0) or only the address in it (1). A match may begin with an ``@`` that is not
            part of the address.
    """
    if hint & EMAIL:
        for start, end, low, high in emails(text):
            if _is_email(text[low:high] if group else text[start:end]):
                yield 0, start, end
    for kind, (bit, pattern) in enumerate(((PHONE, _PHONE), (ADDRESS, _ADDRESS)), 1):
        if hint & bit:
            for match in pattern.finditer(text):
                yield kind, match.start(), match.end()


def emails(text: str) -> Iterator[Match]:
    """Yield the matches of ``[.\\s@,?!;:)(]*([^\\s@]+@[^\\s@,?!;:)(]+?)[.\\s@,?!;:)(]?\\s`` in order, with its group.

    A regular expression engine takes cubic time in the length of a run of dots or parentheses (9 s for 2,000 of them).
    This function visits each ``@`` once. A match begins with the punctuation and white space before the first ``@``
    that has a name and a domain. Its address is that of the last ``@`` that this leading punctuation reaches.
    """
    begin, at = 0, text.find("@")
    while at >= 0:
        behind = _behind(text, begin, at)
        if behind is None:
            at = text.find("@", at + 1)
            continue
        name = _name(text, begin, at)
        start = begin + len(text[begin:name].rstrip(_STRIPPED))
        marks = _MARKS.match(text, start).end()  # type: ignore[union-attr]
        last, further = at, text.find("@", at + 1)
        while further >= 0 and _name(text, begin, further) <= marks:
            more = _behind(text, begin, further)
            if more is not None:
                last, behind = further, more
            further = text.find("@", further + 1)
        yield start, behind.end(), min(last - 1, marks), behind.end(1)
        begin = behind.end()
        at = text.find("@", begin)


def _behind(text: str, begin: int, at: int) -> re.Match[str] | None:
    """Match an ``@`` and its domain. Return None if it has no domain or no name before it."""
    if at == begin or text[at - 1] == "@" or text[at - 1].isspace():
        return None
    return _BEHIND.match(text, at)


def _name(text: str, begin: int, at: int) -> int:
    """Return the start of the name before an ``@``. A name contains neither white space nor another ``@``."""
    low = max(begin, text.rfind("@", begin, at) + 1)
    before = text[low:at]
    return at - len(before) if not before or before[-1].isspace() else at - len(before.rsplit(None, 1)[-1])


def _is_email(mention: str) -> bool:
    name, domain = mention.split("@")[:2]
    return name.strip() != "(" and "." in domain


def _documents(batch: Batch, *, counts: bool) -> Spans:
    """Search whole documents, ignoring numbers near ISBN, DOI or ``#``."""
    found: list[Found] = []
    for text, hint in zip(batch.texts, _hints(batch, batch.offsets[:-1], batch.offsets[1:]), strict=True):
        spans: Found = []
        for kind, start, end in _matches(text, hint, 0):
            if kind:
                near = text[max(0, start - _CONTEXT) : end + _CONTEXT].lower()
                if "isbn" in near or "doi" in near or "#" in near:
                    continue
            spans.append((kind, start, end, 1.0))
        found.append(spans)
    many = np.array([len(spans) for spans in found])
    share = per_word(batch, many)
    documents = {"doc": share, "doc_count": many} if counts else {"doc": share}
    return Spans.joined([Spans.of_lists(KINDS, found), Spans.of_documents(batch.lengths, **documents)])


@register("pii_regex_v1")
def pii_regex_v1(batch: Batch) -> Spans:
    """Tag personal data as `pii_regex` does. Dolma fails on a document without words, and so does `exact`."""
    _stop_without_words(batch, "pii_regex_v1")
    return _documents(batch, counts=False)


@register("pii_regex_v2")
def pii_regex(batch: Batch) -> Spans:
    """Tag personal data, and score each document by spans per word, or -1 if it has no words."""
    return _documents(batch, counts=False)


@register("pii_regex_with_counts_v2")
def pii_regex_with_counts(batch: Batch) -> Spans:
    """Tag personal data as `pii_regex` does, and also write the number of spans."""
    _stop_without_words(batch, "pii_regex_with_counts_v2")
    return _documents(batch, counts=True)


def _stop_without_words(batch: Batch, name: str) -> None:
    if batch.exact:
        empty = np.flatnonzero(np.diff(batch.words[1]) == 0)
        if len(empty):
            raise DataError(
                f"{name!r} divides by the number of words, and this document has no words",
                record=batch.place(int(empty[0])),
                kind="bad-document",
                fix="Remove --exact, or use 'pii_regex_v2'.",
            )


@register("pii_regex_with_counts_fast_v2")
def pii_regex_with_counts_fast(batch: Batch) -> Spans:
    """Tag personal data in each paragraph, also in numbers near ISBN, DOI or ``#``.

    Each document is scored by its number of spans and by their share of its characters. Documents with more than 10,000
    question marks are not searched.
    """
    document, starts, ends, _ = batch.paragraphs
    bits = np.array(_hints(batch, starts, ends), np.int64)
    chosen = np.flatnonzero(bits)
    offsets = batch.offsets
    found: list[Found] = [[] for _ in batch.texts]
    asking = [text.count("?") > _TOO_MANY_QUESTIONS for text in batch.texts]
    for k, low, high, hint in zip(
        document[chosen].tolist(),
        (starts - offsets[document])[chosen].tolist(),
        (ends - offsets[document])[chosen].tolist(),
        bits[chosen].tolist(),
        strict=True,
    ):
        if asking[k]:
            continue
        text = batch.texts[k][low:high]
        found[k] += [(kind, low + start, low + end, 1.0) for kind, start, end in _matches(text, hint, 1)]
    many = np.array([len(spans) for spans in found])
    inside = np.array([sum(end - start for _, start, end, _ in spans) for spans in found])
    if batch.exact:  # Dolma also counts the characters of the span that holds the count, so its share is never below 1
        inside = inside + batch.lengths
    share = np.where(batch.lengths > 0, inside / np.maximum(batch.lengths, 1), -1.0)
    documents = Spans.of_documents(batch.lengths, doc_count=many, doc_frac=share)
    return Spans.joined([Spans.of_lists(KINDS, found), documents])
