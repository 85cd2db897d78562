"""What the cleaning of C4 looks for: lines without punctuation or words, words that nobody wants, code."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels import characters
from feedmill.kernels.c4 import BRACE, LOREM, NAUGHTY, SCRIPT, SCRIPT_WORD, Automaton, automaton
from feedmill.kernels.text import encode

_FLAGS = ("has_naughty_word", "has_javascript", "has_lorem_ipsum", "has_curly_brace")
_LINES = ("lines_with_no_ending_punctuation", "lines_with_too_few_words")


@cache
def naughty_words() -> Automaton:
    """The list that Dolma uses ("List of Dirty, Naughty, Obscene, and Otherwise Bad Words", CC BY 4.0)."""
    text = files("feedmill.curation").joinpath("data/naughty_words_en.txt").read_text("utf-8")
    entries = [line.strip().lower() for line in text.split("\n") if line.strip()]
    words = frozenset(entry for entry in entries if " " not in entry)
    return automaton(words, [entry for entry in entries if " " in entry])


@register("c4_v1")
def c4_v1(batch: Batch) -> Spans:
    """Lines first, then what the document has."""
    has, _ = _flags(batch)
    marked = (NAUGHTY, SCRIPT_WORD, LOREM, BRACE)
    documents = _documents(batch, dict(zip(_FLAGS, marked, strict=True)), has)
    found = _lines(batch.codes, batch.offsets)
    first, second = (_line_spans(found, i) for i in (0, 1))
    return Spans.joined([first, second, documents, _count(batch, found)])


@register("c4_v2")
def c4_v2(batch: Batch) -> Spans:
    """What the document has first; its lines are those of the text in lower case."""
    has, lowered = _flags(batch)
    marked = {"has_curly_brace": BRACE, "has_lorem_ipsum": LOREM, "has_javascript": SCRIPT, "has_naughty_word": NAUGHTY}
    documents = _documents(batch, marked, has)
    found = _lines(*lowered)
    both = _line_spans(found, None)
    return Spans.joined([documents, both, _count(batch, found)])


def _flags(batch: Batch) -> tuple[npt.NDArray[np.uint8], tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]:
    from feedmill.kernels.c4_compiled import flags

    lowered = encode([text.lower() for text in batch.texts])
    return flags(*lowered, characters.table(), *naughty_words()), lowered


def _lines(codes: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    from feedmill.kernels.c4_compiled import lines

    found: npt.NDArray[np.int64] = lines(codes, offsets, characters.table())
    return found


def _documents(batch: Batch, marked: dict[str, int], has: npt.NDArray[np.uint8]) -> Spans:
    scores = {name: np.where(has & bit, 1.0, np.nan) for name, bit in marked.items()}
    return Spans.of_documents(batch.lengths, **scores)


def _count(batch: Batch, found: npt.NDArray[np.int64]) -> Spans:
    return Spans.of_documents(batch.lengths, line_count=np.bincount(found[0], minlength=len(batch)))


def _line_spans(found: npt.NDArray[np.int64], which: int | None) -> Spans:
    """The lines with the one fault, or (None) with either, line by line."""
    faults = found[3:] if which is None else found[3 + which : 4 + which]
    kinds = _LINES if which is None else (_LINES[which],)
    line, kind = np.nonzero(faults.T)
    return Spans(kinds, found[0][line], kind.astype(np.int64), found[1][line], found[2][line], np.ones(len(line)))
