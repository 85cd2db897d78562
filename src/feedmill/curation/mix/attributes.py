"""Read the rows of an attribute file in step with its documents, parsed only as far as a stream needs them.

Find the attributes that a stream reads. If it discards attributes, the others need not be parsed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypedDict

import msgspec
import orjson

from feedmill.curation.mix.config import JQ, Stream
from feedmill.curation.mix.limits import Limit
from feedmill.documents.rows import REFUSED, bad_row, load
from feedmill.formats.documents import rows_of
from feedmill.kernels.jsonl.plainrows import plain_rows
from feedmill.kernels.jsonl.spanlists import pack
from feedmill.structs import decoder_of

Pair = tuple[Any, Any]
END = object()
"""Value for a row that does not exist."""


class Attributes:
    """Rows of one attribute file, in order.

    Args:
        path: The file, for errors.
        chunks: Its lines with line ends, block by block.
        first: Number of the first of these lines.
    """

    def __init__(self, path: str, chunks: Iterable[bytes], stream: Stream, first: int = 1) -> None:
        self.path, self._first = path, first
        needs = needed_attributes(stream)
        self._parse = _whole_rows if needs is None else _needed_rows(needs)
        self._rows = chain.from_iterable(self._blocks(chunks))

    def take(self, count: int) -> list[Any]:
        """Return (id, attributes) of the next rows, or `END` for rows that do not exist. Raises `DataError`."""
        out: list[Any] = list(islice(self._rows, count))
        return out + [END] * (count - len(out))

    def _blocks(self, chunks: Iterable[bytes]) -> Iterator[list[Pair]]:
        line = self._first
        for lines in chunks:
            yield (found := self._parse(lines, self.path, line))
            line += len(found)


def _whole_rows(lines: bytes, file: str, first: int) -> list[Pair]:
    return [_one(row, file, line, _whole) for line, row in enumerate(rows_of(lines), first)]


def _one(row: bytes, file: str, line: int, parse: Callable[[bytes], Pair]) -> Pair:
    try:
        return parse(row)
    except (orjson.JSONDecodeError, *REFUSED) as error:
        raise bad_row(row, str(error), file, line) from None


def _whole(row: bytes) -> Pair:
    value = load(row)
    return (value.get("id"), value.get("attributes")) if type(value) is dict else (None, None)


def _needed_rows(needs: Needs) -> Callable[[bytes, str, int], list[Pair]]:
    """Return a parser of rows that skips all attributes that are not needed.

    Spans to replace are packed. If a row has something other than spans there, or a negative zero, the rows of its
    block are parsed one by one as a whole.
    """
    kinds = {name: msgspec.Raw if name in needs.spans else Any for name in needs.names}
    inner: Any = TypedDict("inner", kinds, total=False)  # type: ignore[misc]
    decode = decoder_of(msgspec.defstruct("Row", [("id", Any), ("attributes", inner)])).decode_lines

    def parse(lines: bytes, file: str, first: int) -> list[Pair]:
        if (rows := plain_rows(lines)) >= 0:
            try:
                found: list[Any] = decode(lines)
                if len(found) == rows and all(_pack(found, name) for name in needs.spans):
                    return [(row.id, row.attributes) for row in found]
            except REFUSED:
                pass
        return [_one(row, file, line, some) for line, row in enumerate(rows_of(lines), first)]

    def some(row: bytes) -> Pair:
        one, attributes = _whole(row)
        if type(attributes) is dict:
            attributes = {name: value for name, value in attributes.items() if name in needs.names}
        return one, attributes

    return parse


def _pack(rows: list[Any], name: str) -> bool:
    """Pack the spans of this name in place (`feedmill.kernels.jsonl.spanlists`). Return False if that is impossible."""
    holders = [row.attributes for row in rows if name in row.attributes]
    packed = pack([holder[name] for holder in holders])
    if packed is None:
        return False
    for one, spans in zip(holders, packed, strict=True):
        one[name] = spans
    return True


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
