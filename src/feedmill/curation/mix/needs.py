"""Which attributes a stream looks at: the others need not be parsed where attributes are discarded anyway."""

from __future__ import annotations

import re

from feedmill.curation.mix.config import JQ, Stream

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


def needed_attributes(stream: Stream) -> tuple[str, ...] | None:
    """The attributes that the stream's expressions name; None where all are needed, or it is hard to say."""
    if "attributes" not in stream.discard:
        return None
    needed: set[str] = set()
    for expression, syntax in _expressions(stream):
        whole, inside = (_JQ, _IN_JQ) if syntax == JQ else (_JSONPATH, _IN_JSONPATH)
        if not whole.fullmatch(expression.strip()):
            return None
        needed.update(inside.findall(expression))
    return tuple(sorted(needed))


def _expressions(stream: Stream) -> list[tuple[str, str]]:
    found = [(text, stream.syntax) for text in (*stream.include, *stream.exclude)]
    for one in stream.replacements:
        found.append((one.span, one.syntax))
        if one.text.startswith("$"):
            found.append((one.text[1:], JQ))
    return found
