"""Spans that taggers find: scored ranges of characters, stored as columns for a whole batch, and their JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.jsonl.spans import fragments

_LARGEST = 1e15  # whole numbers below this are written as integers, larger ones by the JSON encoder


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of a batch of documents, ordered by document, and within a document in the order they were found.

    Attributes:
        kinds: Names of the kinds.
        document: Index of each span's document in the batch, int64[spans].
        kind: Index of each span's kind in `kinds`, int64[spans].
        start, end: Range of characters in the document's text, `end` excluded, int64[spans].
        score: Score of each span, float64[spans].
    """

    kinds: tuple[str, ...]
    document: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]

    @classmethod
    def of_documents(cls, lengths: npt.NDArray[np.int64], **scores: npt.ArrayLike) -> Spans:
        """Return one span over the whole text per kind and document, without those whose score is NaN.

        Args:
            lengths: Number of characters of each text, int64[n].
            scores: Scores of each kind, float64[n], in the order of the spans.
        """
        n, many = len(lengths), len(scores)
        score = np.stack([np.asarray(column, np.float64) for column in scores.values()], axis=1).reshape(-1)
        document = np.repeat(np.arange(n), many)
        kind = np.tile(np.arange(many), n)
        keep = ~np.isnan(score)
        if not keep.all():
            score, document, kind = score[keep], document[keep], kind[keep]
        end = lengths[document]
        return cls(tuple(scores), document, kind, np.zeros_like(end), end, score)

    @classmethod
    def none(cls, kinds: Sequence[str]) -> Spans:
        """Return an empty batch of spans."""
        return cls.of_lists(kinds, [])

    @classmethod
    def of_lists(cls, kinds: Sequence[str], found: Sequence[Sequence[tuple[int, int, int, float]]]) -> Spans:
        """Return spans from lists of (kind, start, end, score), one list per document."""
        flat = [span for spans in found for span in spans]
        document = np.repeat(np.arange(len(found)), [len(spans) for spans in found])
        columns = list(zip(*flat, strict=True)) if flat else [(), (), (), ()]
        kind, start, end = (np.array(column, np.int64) for column in columns[:3])
        return cls(tuple(kinds), document, kind, start, end, np.array(columns[3], np.float64))

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """Concatenate spans. In each document, the spans of the first part come before those of the second."""
        names = tuple(name for part in parts for name in part.kinds)
        shifts = np.cumsum([0, *(len(part.kinds) for part in parts[:-1])])
        document = np.concatenate([part.document for part in parts])
        order = np.argsort(document, kind="stable")
        return cls(
            names,
            document[order],
            np.concatenate([part.kind + shift for part, shift in zip(parts, shifts, strict=True)])[order],
            np.concatenate([part.start for part in parts])[order],
            np.concatenate([part.end for part in parts])[order],
            np.concatenate([part.score for part in parts])[order],
        )

    def fragments(self, n: int, experiment: str, tagger: str) -> list[bytes]:
        """Return the JSON of the attributes of each of `n` documents, without the braces.

        It has the form ``"<experiment>__<tagger>__<kind>":[[start,end,score],...],...``. Scores are rounded to five
        digits.
        """
        heads = [_head(experiment, tagger, kind) for kind in self.kinds]
        first = np.searchsorted(self.document, np.arange(n + 1))
        plain = (self.score == np.floor(self.score)) & (np.abs(self.score) < _LARGEST)
        plain &= ~((self.score == 0) & np.signbit(self.score))
        which = np.full(len(plain), -1)
        texts: list[bytes] = []
        if not plain.all():
            which[~plain] = np.arange(len(plain) - plain.sum())
            texts = msgspec.json.encode([round(x, 5) for x in self.score[~plain].tolist()])[1:-1].split(b",")
        whole = np.where(plain, self.score, 0).astype(np.int64)
        out, bounds = fragments(first, self.kind, self.start, self.end, whole, *_packed(texts), which, *_packed(heads))
        data, cuts = out.tobytes(), bounds.tolist()
        return [data[low:high] for low, high in pairwise(cuts)]


def _packed(pieces: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    bounds = bounds_of([len(piece) for piece in pieces])
    return np.frombuffer(b"".join(pieces), np.uint8), bounds


@lru_cache(4096)
def _head(experiment: str, tagger: str, kind: str) -> bytes:
    return b'"' + attribute_name(experiment, tagger, kind).encode() + b'":['


@lru_cache(4096)
def attribute_name(experiment: str, tagger: str, kind: str) -> str:
    """Return the key of an attribute. Characters other than ASCII letters, digits and ``_`` become ``_``.

    >>> attribute_name("exp-1", "c4_v2", "line_count")
    'exp_1__c4_v2__line_count'

    Raises:
        ConfigError: A part begins with a digit.
    """
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in (experiment, tagger, kind) if part]
    for part in parts:
        if part[0].isdigit():
            raise ConfigError(
                f"the name {part!r} begins with a digit: a part of an attribute's name must not",
                kind="bad-option",
                fix="Choose a name that begins with a letter.",
            )
    return "__".join(parts)
