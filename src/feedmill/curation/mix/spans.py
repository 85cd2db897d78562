"""Replacing spans of a text: which ones, and by what. Offsets are characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from feedmill.curation.jsonpath import compile_path, compile_straight
from feedmill.curation.jsonpath_steps import MISSING
from feedmill.curation.mix.config import JQ, Replacement
from feedmill.documents.jq import compile_jq
from feedmill.kernels.jsonl.spanlists import unpack


class Taken(NamedTuple):
    """Spans ``(start, end, score)`` that one text is put for; or ``(start, end, text)``, and `new` is None."""

    spans: list[Any]
    new: str | None


_NONE = float("inf")
"""No limit."""


def bounds(of: Replacement) -> tuple[float, float]:
    """Return the least score of spans that are replaced, and the least of those above that are not."""
    return -_NONE if of.low is None else of.low, _NONE if of.high is None else of.high


class SpanError(Exception):
    """What an expression found is no list of spans, or a replacement no string."""


def compile_spans(replacements: Sequence[Replacement]) -> Callable[[Any], Taken]:
    """Return a function from a document to the spans to replace, by their starts.

    It raises `SpanError`, and `feedmill.documents.jq.JqError` where an expression fails.
    """
    compiled = [_Compiled(one) for one in replacements]

    def run(document: Any) -> Taken:
        groups: list[Taken] = []
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
                groups.append(Taken(chosen, new if one.text is None else _text(one.text(document), one.of)))
        if len(groups) != 1:
            groups = [Taken([(start, end, new) for some, new in groups for start, end, _ in some], None)]
        groups[0].spans.sort(key=itemgetter(0))
        return groups[0]

    return run


class _Compiled:
    """A replacement whose expressions are functions."""

    def __init__(self, of: Replacement) -> None:
        self.of, self.new = of, of.text
        self.low, self.high = bounds(of)
        self.text = compile_jq(of.text[1:]) if of.text.startswith("$") else None
        self.find = compile_jq(of.span) if of.syntax == JQ else compile_path(of.span)
        self.straight = None if of.syntax == JQ else compile_straight(of.span)

    def spans(self, document: Any) -> list[Any]:
        """Return what the expression finds, checked."""
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
        raise SpanError(f"{one.span} gives {value!r}, which is no list of spans")
    for span in value:
        good = type(span) is list and len(span) == 3 and type(span[0]) is int and type(span[1]) is int
        if not good or span[0] < 0 or span[1] < 0 or type(span[2]) not in (int, float):
            raise SpanError(f"{one.span} gives {span!r}, which is no span [start, end, score]")
    return value


def _text(found: list[Any], one: Replacement) -> str:
    if len(found) != 1 or type(found[0]) is not str:
        raise SpanError(f"the replacement {one.text} gives {found!r}, which is no string")
    return str(found[0])


def replace(text: str, taken: Taken) -> tuple[str, int]:
    """The text with its spans replaced, left to right, and how many were passed over: those that overlap one that was
    replaced, and those that are empty, inverted or begin behind the text. An end behind the text is the text's end."""
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


def replace_as_dolma(text: str, found: Taken) -> tuple[str, int]:
    """As Dolma 1.2.1: an empty span eats the character behind it and repeats the rest of the text, and so on."""
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
