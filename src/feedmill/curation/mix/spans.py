"""Find the spans of a document to replace, and replace them in its text. Offsets are in characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from feedmill.curation.mix.attributes import needed_attributes, whole_attribute
from feedmill.curation.mix.config import JQ, Replacement, Stream
from feedmill.documents.expressions import MISSING, compile_jq, compile_path, compile_straight
from feedmill.documents.rows import dump
from feedmill.kernels.jsonl.rawtexts import cut
from feedmill.kernels.jsonl.spanlists import choose, unpack


class SpanEdits(NamedTuple):
    """Spans to replace: ``(start, end, score)`` with one text `new`, or ``(start, end, text)`` if `new` is None."""

    spans: list[Any]
    new: str | None


_NONE = float("inf")
"""No limit."""


def bounds(of: Replacement) -> tuple[float, float]:
    """Return the lowest score of spans that are replaced, and the score from which spans are not replaced."""
    return -_NONE if of.low is None else of.low, _NONE if of.high is None else of.high


class SpanError(Exception):
    """Raised if the result of an expression is not a list of spans, or a replacement is not a string."""


def compile_spans(replacements: Sequence[Replacement]) -> Callable[[Any], SpanEdits]:
    """Return a function from a document to the spans to replace, ordered by start.

    The function raises `SpanError`, or `feedmill.documents.expressions.JqError` if an expression fails.
    """
    compiled = [_Compiled(replacement) for replacement in replacements]

    def run(document: Any) -> SpanEdits:
        groups: list[SpanEdits] = []
        for one in compiled:
            spans = one.spans(document)
            if not spans:
                continue
            low, high, new = one.low, one.high, one.new
            if high == _NONE:
                chosen = [span for span in spans if span[2] >= low]
            else:
                chosen = [span for span in spans if low <= span[2] < high]
            if chosen:
                groups.append(SpanEdits(chosen, new if one.text is None else _text(one.text(document), one.of)))
        if len(groups) != 1:
            groups = [SpanEdits([(start, end, new) for triples, new in groups for start, end, _ in triples], None)]
        groups[0].spans.sort(key=itemgetter(0))
        return groups[0]

    return run


class _Compiled:
    """Replacement with compiled expressions."""

    def __init__(self, of: Replacement) -> None:
        self.of, self.new = of, of.text
        self.low, self.high = bounds(of)
        self.text = compile_jq(of.text[1:]) if of.text.startswith("$") else None
        self.find = compile_jq(of.span) if of.syntax == JQ else compile_path(of.span)
        self.straight = None if of.syntax == JQ else compile_straight(of.span)

    def spans(self, document: Any) -> list[Any]:
        """Return the spans that the expression finds, after checking them."""
        if self.straight is not None:
            value = self.straight(document)
            if type(value) is bytes:
                return unpack(value)
            if value is MISSING or value == []:
                return []
        return _spans(self.find(document), self.of)


def _spans(found: list[Any], one: Replacement) -> list[Any]:
    value = found[0] if len(found) == 1 else found or None
    if value is None:
        return []
    if type(value) is bytes:  # packed by `feedmill.curation.mix.attributes`
        return unpack(value)
    if type(value) is not list:
        raise SpanError(f"{one.span} gives {value!r}, which is not a list of spans")
    for span in value:
        good = type(span) is list and len(span) == 3 and type(span[0]) is int and type(span[1]) is int
        if not good or span[0] < 0 or span[1] < 0 or type(span[2]) not in (int, float):
            raise SpanError(f"{one.span} gives {span!r}, which is not a span [start, end, score]")
    return value


def _text(found: list[Any], one: Replacement) -> str:
    if len(found) != 1 or type(found[0]) is not str:
        raise SpanError(f"the replacement {one.text} gives {found!r}, which is not a string")
    return str(found[0])


def replace(text: str, taken: SpanEdits) -> tuple[str, int]:
    """Return the text with its spans replaced from left to right, and the number of skipped spans.

    A span is skipped if it overlaps a replaced one, is empty or inverted, or begins beyond the text. A span that ends
    beyond the text ends with the text.
    """
    parts, at, size, passed, same = [], 0, len(text), 0, taken.new
    for start, end, word in taken.spans:
        if start < at or end <= start or start >= size:
            passed += 1
            continue
        if start > at:
            parts.append(text[at:start])
        new = word if same is None else same
        if new:
            parts.append(new.replace("{}", text[start:end]) if "{}" in new else new)
        at = end
    parts.append(text[at:])
    return "".join(parts), passed


def replace_as_dolma(text: str, found: SpanEdits) -> tuple[str, int]:
    """Replace spans as Dolma 1.2.1 does, including its defects.

    For example, an empty span removes the character after it and repeats the rest of the text.
    """
    if all(start < end and start < len(text) for start, end, _ in found.spans):
        return replace(text, found)
    taken = [(start, end, word if found.new is None else found.new) for start, end, word in found.spans]
    parts, now, begin = [], 0, 0
    for i, character in enumerate(text):
        if now < len(taken):
            start, end, new = taken[now]
            if i == start:
                begin = i
            if i == end:
                parts.append(new.replace("{}", text[begin:i]))
                while now < len(taken) and taken[now][0] < i:
                    now += 1
                if now < len(taken):
                    start, end, _ = taken[now]
                    begin = i if start == i else begin
            if now < len(taken) and (i == start or start <= i < end):
                continue
        parts.append(character)
    if now < len(taken):
        parts.append(taken[now][2].replace("{}", text[begin:]))
    return "".join(parts), 0


Document = dict[str, Any]


Done = tuple[int, int, bool]
"""Result of a document: spans replaced, spans skipped, and whether the text is certainly long enough."""


def texts_unseen(stream: Stream) -> bool:
    """Return whether no expression of the stream reads texts."""
    return needed_attributes(stream) is not None


class Bulk:
    """Replacements of a stream, for many documents at once.

    Args:
        exact: Do not change documents with spans that Dolma treats differently.
    """

    def __init__(self, stream: Stream, names: Sequence[str], *, exact: bool) -> None:
        self._names, self._exact = names, exact
        self._bounds = [bounds(replacement) for replacement in stream.replacements]
        self._new = [dump(replacement.text)[1:-1] for replacement in stream.replacements]
        self._enough = min(stream.min_text_length, 1 << 62)  # the kernel counts in 64 bits

    @classmethod
    def of(cls, stream: Stream, *, exact: bool) -> Bulk | None:
        """Return the bulk replacements of a stream, or None if they cannot be done in bulk."""
        names = [whole_attribute(replacement.span) for replacement in stream.replacements]
        constant = all(
            "{}" not in replacement.text and not replacement.text.startswith("$") for replacement in stream.replacements
        )
        if not constant or None in names or not texts_unseen(stream):
            return None
        return cls(stream, [name for name in names if name is not None], exact=exact)

    def replace(self, documents: Sequence[Document]) -> list[Done | None]:
        """Replace the spans in place. The result is None for documents that were not changed."""
        done: list[Done | None] = [None] * len(documents)
        at = [n for n, one in enumerate(documents) if type(one["text"]) is msgspec.Raw]
        columns = [[_spans_of(documents[n], name) for n in at] for name in self._names]
        if any(set(map(type, column)) != {bytes} for column in columns):
            good = [all(type(column[i]) is bytes for column in columns) for i in range(len(at))]
            at = list(compress(at, good))
            columns = [list(compress(column, good)) for column in columns]
        if not at:
            return done
        spans = choose(columns, self._bounds, len(at))
        found = cut([documents[n]["text"] for n in at], spans, self._new, self._enough)
        counts = zip(
            np.diff(spans.first).tolist(), found.passed.tolist(), found.sound.tolist(), found.odd.tolist(), strict=True
        )
        data = found.data
        for n, (low, high), (count, passed, long, odd) in zip(at, pairwise(found.bounds), counts, strict=True):
            if not (odd and self._exact):
                documents[n]["text"] = msgspec.Raw(data[low:high])
                done[n] = count - passed, passed, long
        return done


def _spans_of(document: Document, name: str) -> Any:
    """Return the spans of this name: bytes if they are packed, empty bytes if the document has none."""
    attributes = document.get("attributes")
    return attributes.get(name, b"") if type(attributes) is dict else None
