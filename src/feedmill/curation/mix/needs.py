"""Find the attributes that a stream reads. If it discards attributes, the others need not be parsed."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from feedmill.curation.mix.config import JQ, Stream
from feedmill.curation.mix.limits import Limit

_KEY = r"[A-Za-z_]\w*"
_PATH = rf"@\.({_KEY})(?:\[\d+\])*"
_NUMBER = r"-?\d+(?:\.\d+)?"
_TEST = rf"!?{_PATH}\s*(?:(?:==|!=|<=|>=|<|>)\s*{_NUMBER})?"
_JSONPATH = re.compile(
    rf"\$@?\.attributes(?:\.({_KEY})(?:\[\d+\])*|\[\?\(\s*{_TEST}(?:\s*(?:&&|\|\|)\s*{_TEST})*\s*\)\])"
)
_PLAIN = rf"\.attributes\.({_KEY})(?:\[\d+\])*"
_JQ = re.compile(rf"{_PLAIN}\s*(?:(?:==|!=|<=|>=|<|>)\s*{_NUMBER})?")
_IN_JSONPATH, _IN_JQ = re.compile(rf"(?:@|\.attributes)\.({_KEY})"), re.compile(_PLAIN)
_WHOLE = re.compile(rf"\$?\.attributes\.({_KEY})")


class Needs(NamedTuple):
    """Attributes that a stream's expressions name, and those among them that are only used as spans to replace."""

    names: tuple[str, ...]
    spans: frozenset[str]


def needed_attributes(stream: Stream) -> Needs | None:
    """Return the attributes that the stream's expressions name, or None if all may be needed."""
    if "attributes" not in stream.discard:
        return None
    named: Counter[str] = Counter()
    for expression, syntax in expressions(stream):
        whole, inside = (_JQ, _IN_JQ) if syntax == JQ else (_JSONPATH, _IN_JSONPATH)
        if not whole.fullmatch(expression.strip()):
            return None
        named.update(inside.findall(expression))
    named.update(Limit.parse(text).key for text in stream.keep)
    spans = [name for replacement in stream.replacements if (name := whole_attribute(replacement.span)) is not None]
    only = frozenset(name for name in spans if named[name] == spans.count(name))
    return Needs(tuple(sorted(named)), only)


def whole_attribute(span: str) -> str | None:
    """Return the attribute's name if an expression selects exactly one attribute, else None."""
    match = _WHOLE.fullmatch(span.strip())
    return match[1] if match else None


def expressions(stream: Stream) -> list[tuple[str, str]]:
    """Return all expressions of a stream, each with its syntax."""
    found = [(text, stream.syntax) for text in (*stream.include, *stream.exclude)]
    for replacement in stream.replacements:
        found.append((replacement.span, replacement.syntax))
        if replacement.text.startswith("$"):
            found.append((replacement.text[1:], JQ))
    return found
