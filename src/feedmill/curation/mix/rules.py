"""The rules of a stream as functions: which documents stay, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.curation.jq import compile_jq
from feedmill.curation.jsonpath import compile_test
from feedmill.curation.mix.config import JQ, Stream
from feedmill.curation.mix.spans import compile_spans, replace, replace_as_dolma
from feedmill.curation.rows import BLANKS

Rule = Callable[[Any], bool]
INCLUDE, SHORT = "include", "min_text_length"


class Rules:
    """What a stream does to a document.

    Args:
        exact: replace spans as Dolma does where they are empty, inverted or beyond the text.
    """

    def __init__(self, stream: Stream, *, exact: bool = False) -> None:
        self.include = [_included(text, stream.syntax) for text in stream.include]
        self.exclude = [(text, _excluded(text, stream.syntax)) for text in stream.exclude]
        self.spans = compile_spans(stream.replacements) if stream.replacements else None
        self.replace = replace_as_dolma if exact else replace
        self.discard = stream.discard
        self.shortest = stream.min_text_length

    def dropped(self, document: Any) -> str | None:
        """The rule that drops a document: ``"include"`` where none of those is true, or the text of an exclude."""
        if self.include and not any(rule(document) for rule in self.include):
            return INCLUDE
        for text, rule in self.exclude:
            if rule(document):
                return text
        return None

    def change(self, document: dict[str, Any]) -> tuple[str | None, int, int]:
        """Replace spans and discard fields, in place.

        Returns:
            The rule that drops the document after all (its text is too short) or None, and the numbers of spans
            replaced and passed over.
        """
        replaced = passed = 0
        if self.spans is not None and (taken := self.spans(document)).spans:
            document["text"], passed = self.replace(document["text"], taken)
            replaced = len(taken.spans) - passed
        short = bool(self.shortest) and _shorter(document["text"], self.shortest)
        for field in self.discard:
            document.pop(field, None)
        return (SHORT if short else None), replaced, passed


def _shorter(text: str, limit: int) -> bool:
    """Whether the text has fewer bytes of UTF-8, without the blanks around it."""
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
