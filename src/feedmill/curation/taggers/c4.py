"""C4 cleaning rules: lines without ending punctuation, short lines, naughty words, and signs of code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.text import characters
from feedmill.kernels.text.c4 import (
    BRACE,
    DOTTED,
    LOREM,
    NAUGHTY,
    SCRIPT,
    SCRIPT_WORD,
    Automaton,
    automaton,
    flags,
    flags_of_lowered,
    lines,
)
from feedmill.kernels.text.lengths import encode

_FLAGS = ("has_naughty_word", "has_javascript", "has_lorem_ipsum", "has_curly_brace")
_LINES = ("lines_with_no_ending_punctuation", "lines_with_too_few_words")


@cache
def naughty_words() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the single words and the phrases of the list that Dolma uses.

    The list is the "List of Dirty, Naughty, Obscene, and Otherwise Bad Words" (CC BY 4.0).
    """
    text = files("feedmill.curation").joinpath("data/naughty_words_en.txt").read_text("utf-8")
    entries = [line.strip().lower() for line in text.split("\n") if line.strip()]
    words = frozenset(entry for entry in entries if " " not in entry)
    return words, tuple(entry for entry in entries if " " in entry)


@cache
def _automaton() -> Automaton:
    return automaton(*naughty_words())


@register("c4_v1")
def c4_v1(batch: Batch) -> Spans:
    """Tag lines that break a C4 rule, then the document with each unwanted feature that it contains."""
    marked = (NAUGHTY, SCRIPT_WORD, LOREM, BRACE)
    documents = _documents(batch, dict(zip(_FLAGS, marked, strict=True)), _flags(batch))
    found = _lines(batch.codes, batch.offsets)
    first, second = (_line_spans(found, i) for i in (0, 1))
    return Spans.joined([first, second, documents, _count(batch, found)])


@register("c4_v2")
def c4_v2(batch: Batch) -> Spans:
    """Tag the document with each unwanted feature, then lines that break a C4 rule.

    Dolma counts the characters of the lowercased text, where an İ is two characters; this tagger does so with `exact`
    only.
    """
    has = _flags(batch)
    marked = {"has_curly_brace": BRACE, "has_lorem_ipsum": LOREM, "has_javascript": SCRIPT, "has_naughty_word": NAUGHTY}
    documents = _documents(batch, marked, has)
    texts = batch.encoded
    if batch.exact and (has & DOTTED).any():
        texts = encode([text.lower() for text in batch.texts])
    found = _lines(*texts)
    both = _line_spans(found, None)
    return Spans.joined([documents, both, _count(batch, found)])


def _flags(batch: Batch) -> npt.NDArray[np.uint8]:
    by_document: npt.NDArray[np.uint8] = flags(batch.codes, batch.offsets, characters.table(), *_automaton())
    for k in np.flatnonzero(by_document & DOTTED).tolist():
        by_document[k] = DOTTED | flags_of_lowered(batch.texts[k].lower(), *naughty_words())
    return by_document


def _lines(codes: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = lines(codes, offsets, characters.table())
    return found


def _documents(batch: Batch, marked: dict[str, int], has: npt.NDArray[np.uint8]) -> Spans:
    scores = {name: np.where(has & bit, 1.0, np.nan) for name, bit in marked.items()}
    return Spans.of_documents(batch.lengths, **scores)


def _count(batch: Batch, found: npt.NDArray[np.int64]) -> Spans:
    return Spans.of_documents(batch.lengths, line_count=np.bincount(found[0], minlength=len(batch)))


def _line_spans(found: npt.NDArray[np.int64], which: int | None) -> Spans:
    """Return spans for the lines with fault number `which`, or with either fault if it is None, in line order."""
    faults = found[3:] if which is None else found[3 + which : 4 + which]
    kinds = _LINES if which is None else (_LINES[which],)
    line, kind = np.nonzero(faults.T)
    return Spans(kinds, found[0][line], kind.astype(np.int64), found[1][line], found[2][line], np.ones(len(line)))
