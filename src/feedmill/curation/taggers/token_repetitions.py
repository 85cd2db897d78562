"""Repetitions of tokens: units of 1 to 13 tokens, 3 or more times in a row, by any tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.curation.taggers.models import NEOX, load_tokenizer

_LONGEST, _TIMES = 13, 3
_WINDOW = 100_000  # characters per window of the second version


class Repetition(NamedTuple):
    """Run of repeated tokens: ``ids[start:end]`` is `period` tokens `times` times, and maybe a part of one more."""

    start: int
    end: int
    times: int
    period: int


def find_periods(ids: npt.NDArray[np.int64], longest: int = _LONGEST, shortest: int = 1) -> list[Repetition]:
    """Return the longest runs in which each token equals the one a unit earlier, ordered by the length of the unit.

    Args:
        longest, shortest: limits of the number of tokens of a unit.

    >>> find_periods(np.array([5, 1, 2, 1, 2, 1, 2, 1]))
    [Repetition(start=1, end=8, times=3, period=2)]
    """
    periods = []
    for unit in range(shortest, min(longest, len(ids) // _TIMES) + 1):
        same = np.concatenate(([False], ids[unit:] == ids[:-unit], [False]))
        edges = np.flatnonzero(np.diff(same)).reshape(-1, 2)
        for low, high in edges[edges[:, 1] - edges[:, 0] >= (_TIMES - 1) * unit].tolist():
            periods.append(Repetition(low, high + unit, (high - low) // unit + 1, unit))
    return periods


class _TokenRepetitions:
    metadata = False
    when_empty = True
    added = False  # each part begins with a space that is not in the document

    def __init__(self, path: str) -> None:
        self.tokenizer = load_tokenizer(path)

    def parts(self, batch: Batch) -> Iterator[tuple[int, int, str]]:
        """Yield the document, first character and text of each part to search."""
        for k, text in enumerate(batch.texts):
            yield k, 0, text

    def chosen(self, spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Return the (start, end, times) of a part to keep."""
        return spans

    def tag(self, batch: Batch) -> Spans:
        parts = list(self.parts(batch))
        by_document: list[list[tuple[int, int, int, float]]] = [[] for _ in batch.texts]
        tokens = self.tokenizer.encode_batch([text for _, _, text in parts], add_special_tokens=False)
        for (k, base, _), encoded in zip(parts, tokens, strict=True):
            for start, end, times in self.chosen(_places(encoded)):
                low = base + start + (self.added and start == 0 and not batch.exact)
                by_document[k].append((0, low, base + end, float(times)))
        for k, spans in enumerate(by_document):
            spans += self._whole(spans, len(batch.texts[k]))
        kinds = ("repetition", "doc_max_score_repetition", "doc_max_length_repetition", "doc_frac_repetition")
        return Spans.of_lists(kinds, by_document)

    def _whole(self, spans: list[tuple[int, int, int, float]], length: int) -> list[tuple[int, int, int, float]]:
        if not (spans or self.when_empty):
            return []
        sizes = [end - start for _, start, end, _ in spans]
        most = max((score for *_, score in spans), default=0.0)
        values = (most, max(sizes, default=0), sum(sizes) / length if spans else 0.0)
        return [(kind, 0, length, float(value)) for kind, value in enumerate(values, 1)]


def _places(encoded: Any) -> list[tuple[int, int, int]]:
    """Return the (start, end, times) of each repetition, in characters of the text."""
    offsets = encoded.offsets
    periods = find_periods(np.array(encoded.ids, np.int64))
    return [(offsets[one.start][0], offsets[one.end - 1][1], one.times) for one in periods]


@register("tokenizer_repetitions_v1", file=NEOX)
class TokenRepetitions(_TokenRepetitions):
    """Repetitions of tokens in the whole text."""


@register("paragraph_tokenizer_repetitions_v1", file=NEOX)
class ParagraphTokenRepetitions(_TokenRepetitions):
    """Repetitions of tokens in each paragraph.

    A space is added before each paragraph, so that its first token is the same as within a line. In Dolma, a span can
    begin at that space, one character before the paragraph; here it can with `exact` only.
    """

    added = True

    def parts(self, batch: Batch) -> Iterator[tuple[int, int, str]]:
        document, start, end, _ = batch.paragraphs
        base = batch.offsets[document]
        columns = (document.tolist(), (start - base).tolist(), (end - base).tolist())
        for k, low, high in zip(*columns, strict=True):
            yield k, low - 1, " " + batch.texts[k][low:high]


@register("tokenizer_repetitions_v2r2", file=NEOX)
class WindowedTokenRepetitions(_TokenRepetitions):
    """Repetitions of tokens in windows of 100,000 characters.

    A repetition inside the previous one is skipped, and documents without repetitions get no scores.
    """

    when_empty = False

    def parts(self, batch: Batch) -> Iterator[tuple[int, int, str]]:
        for k, text in enumerate(batch.texts):
            for low in range(0, len(text), _WINDOW):
                yield k, low, text[low : low + _WINDOW]

    def chosen(self, spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        kept: list[tuple[int, int, int]] = []
        for span in sorted(spans, key=lambda span: (span[0], -span[1], -span[2])):
            if not (kept and span[0] >= kept[-1][0] and span[1] <= kept[-1][1]):
                kept.append(span)
        return kept
