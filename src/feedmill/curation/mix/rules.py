"""Rules of a stream as functions: which documents to keep, and how to change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import orjson

from feedmill.curation.mix.config import JQ, Stream
from feedmill.curation.mix.limits import Limit
from feedmill.curation.mix.spans import Bulk, compile_spans, replace, replace_as_dolma
from feedmill.documents.expressions import compile_jq, compile_test
from feedmill.documents.rows import BLANKS

Rule = Callable[[Any], bool]
INCLUDE, SHORT = "include", "min_text_length"


class Rules:
    """Compiled rules of a stream.

    Args:
        exact: Replace spans that are empty, inverted or beyond the text as Dolma does.
    """

    def __init__(self, stream: Stream, *, exact: bool = False) -> None:
        self.include = [_included(text, stream.syntax) for text in stream.include]
        self.exclude = [(text, _excluded(text, stream.syntax)) for text in stream.exclude]
        self.keep = [(text, Limit.parse(text)) for text in stream.keep]
        self.short = frozenset(f"keep {text}" for text in stream.keep)
        self.bulk = Bulk.of(stream, exact=exact)
        self.spans = compile_spans(stream.replacements) if stream.replacements else None
        self.replace = replace_as_dolma if exact else replace
        self.discard = stream.discard
        self.shortest = stream.min_text_length

    def dropped(self, document: Any) -> list[str]:
        """Return the rules that drop a document; the first one is counted as what drops it. None: it is kept.

        It is ``"include"`` if no include rule is true, ``exclude`` and the text of the first that is true, or ``keep``
        and the texts of all rules that are violated.
        """
        for rule in self.include:
            if rule(document):
                break
        else:
            if self.include:
                return [INCLUDE]
        for text, rule in self.exclude:
            if rule(document):
                return [f"exclude {text}"]
        return [f"keep {text}" for text, limit in self.keep if limit.violated(document)]

    def changes(self, documents: Sequence[dict[str, Any]]) -> Iterator[tuple[str | None, int, int]]:
        """Replace spans and discard fields, in place.

        Returns:
            For each document the rule that drops it now (``min_text_length``) or None, and the numbers of spans
            replaced and skipped. An invalid document raises when the iterator reaches it.
        """
        done = self.bulk.replace(documents) if self.bulk else [None] * len(documents)
        discard = self.discard
        for document, found in zip(documents, done, strict=True):
            replaced, passed, long = found or self._one(document)
            short = not long and _shorter(_decoded(document), self.shortest)
            for field in discard:
                document.pop(field, None)
            yield (SHORT if short else None), replaced, passed

    def _one(self, document: dict[str, Any]) -> tuple[int, int, bool]:
        replaced = passed = 0
        if self.spans is not None and (taken := self.spans(document)).spans:
            document["text"], passed = self.replace(_decoded(document), taken)
            replaced = len(taken.spans) - passed
        return replaced, passed, not self.shortest


def _decoded(document: dict[str, Any]) -> str:
    """Return the text of a document, decoding it if it is still JSON."""
    text: Any = document["text"]
    return str(orjson.loads(memoryview(text)) if type(text) is msgspec.Raw else text)


def _shorter(text: str, limit: int) -> bool:
    """Return whether the text, stripped of blanks, has fewer than `limit` bytes of UTF-8."""
    stripped = text.strip(BLANKS)
    return len(stripped) < limit and len(stripped.encode()) < limit


def _included(text: str, syntax: str) -> Rule:
    if syntax == JQ:
        jq = compile_jq(text)

        def holds(document: Any) -> bool:
            outputs = jq(document)
            return bool(outputs) and all(outputs)

        return holds
    return compile_test(text)


def _excluded(text: str, syntax: str) -> Rule:
    if syntax == JQ:
        jq = compile_jq(text)
        return lambda document: any(jq(document))
    return compile_test(text)
