"""Read the text of a JSON document by a field, a path like ``.a.b[0]``, or a jq expression.

A kernel reads a field of plain lines (3 GB/s); a typed decoder reads a path and skips all other fields (over 1 GB/s).
Lines that they reject are parsed again with Python's parser, so everything that `json.loads` accepts is valid: NaN,
duplicate keys (the last one is used), a byte order mark, huge integers. Other fields than the text are skipped, and not
validated in lines that are not plain. If a jq expression has several results, the first is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from feedmill.documents.batch import BadDocument, Record, Records
from feedmill.formats.documents import one_a_line
from feedmill.kernels.jsonl.jsontexts import TextTaker
from feedmill.storage.reasons import instead_of_data
from feedmill.structs import decoder_of

_NAME = re.compile(r"[^\W\d][\w-]*")
_STEP = re.compile(r"""\.?(?:(?P<name>[A-Za-z_]\w*)|\[(?P<key>"(?:[^"\\]|\\.)*")\]|\[(?P<index>-?\d{1,9})\])""")

Step = str | int


def parse_path(expression: str) -> list[Step] | None:
    """Return the steps of a plain path (``text``, ``.a.b[0]``, ``.["a b"]``, ``.``); None for other expressions.

    >>> parse_path("text"), parse_path('.a["b c"][0]'), parse_path(".a | ascii")
    (['text'], ['a', 'b c', 0], None)
    """
    text = expression.strip()
    if _NAME.fullmatch(text):
        return [text]
    if text == ".":
        return []
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (match["name"] and text[at] != ".") or (at == 0 and text[0] != "."):
            return None
        steps.append(match["name"] or (json.loads(match["key"]) if match["key"] else int(match["index"])))
        at = match.end()
    return steps or None


class TextReader:
    """Reader of the texts of JSON lines.

    Args:
        expression: A field's name, a path, or a jq expression.
        fields: Top-level fields to return with the text, unchanged (None if absent).
        keep_empty: An empty text is a document too.

    Raises:
        ConfigError: The expression is invalid, or uses a feature of jq that is not supported.
    """

    def __init__(self, expression: str, fields: tuple[str, ...] = (), *, keep_empty: bool = False) -> None:
        self.expression, self.fields, self.keep_empty = expression, fields, keep_empty
        self._steps = parse_path(expression)
        self._program = None
        if self._steps is None:
            from feedmill.documents.expressions import compile_jq

            self._program = compile_jq(expression)
        self._decode: Callable[[bytes], Any] | None = None
        self._get: Callable[[Any], str] | None = None
        self._taker: TextTaker | None = None
        self._names = [f"field{i}" for i in range(len(fields))]
        if self._steps and isinstance(self._steps[0], str) and self._steps[0] not in fields:
            decoder, self._get = _typed(self._steps, fields)
            self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
            if len(self._steps) == 1 and not fields:
                self._taker = TextTaker(self._steps[0])

    def read(self, block: bytes | memoryview) -> Records | None:
        """Return the documents of whole lines at once; None if a line must be read by `record`."""
        if self._decode is None or self._get is None:
            return None
        if self._taker is not None:
            taken = self._taker.take(block)
            if taken is not None:
                return Records(taken, [])
        try:
            found = self._decode_lines(block)
            if not one_a_line(block, len(found)):
                return None
            texts = list(map(self._get, found))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError):
            return None
        return (
            Records(texts, list(map(self._others, found)) if self.fields else [])
            if self.keep_empty or all(texts)
            else None
        )

    def record(self, line: bytes) -> Record:
        """Return the document of one line, with the reason if it has no text."""
        if self._decode is not None and self._get is not None:
            try:
                found = self._decode(line)
                text = self._get(found)
                fields = self._others(found)
                kept = text or self.keep_empty
                return Record(text, "", fields) if kept else Record(None, "the text is empty", fields)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError):
                pass
        try:
            return self._slow(line)
        except BadDocument as error:
            return Record(None, str(error))

    def _others(self, found: Any) -> tuple[Any, ...]:
        return tuple([getattr(found, name) for name in self._names])

    def _slow(self, line: bytes) -> Record:
        value = load_json(line)
        fields = tuple(value.get(name) if isinstance(value, dict) else None for name in self.fields)
        if self._steps is not None:
            found = walk(value, self._steps)
        else:
            found = self._run(value)
        if self.keep_empty and found == "":
            return Record("", "", fields)
        return Record(checked(found, self.expression), "", fields)

    def _run(self, value: Any) -> Any:
        from feedmill.documents.expressions import JqError

        assert self._program is not None
        try:
            results = self._program(value)
        except JqError as error:
            raise BadDocument(f"jq: {error}") from None
        if not results:
            raise BadDocument(f"{self.expression} has no result")
        return results[0]


def load_json(line: bytes) -> Any:
    """Return the value of a line. Raises BadDocument."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadDocument(f"it is not valid UTF-8 (byte {error.start} of the line)") from None
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"it is not valid JSON ({str(error)[:120]}){instead_of_data(line)}") from None


def walk(value: Any, steps: list[Step]) -> Any:
    """Follow a path as jq does: null has every field and every element. Raises BadDocument."""
    for number, step in enumerate(steps):
        if value is None:
            return None
        if isinstance(step, str):
            if not isinstance(value, dict):
                raise BadDocument(f"{_shown(steps[:number])} is {_kind(value)}, so it has no field {step!r}")
            if step not in value:
                raise BadDocument(f"there is no {_shown(steps[: number + 1])}{_fields(value)}")
            value = value[step]
        else:
            if not isinstance(value, list):
                raise BadDocument(f"{_shown(steps[:number])} is {_kind(value)}, so it has no element {step}")
            if not -len(value) <= step < len(value):
                raise BadDocument(f"there is no {_shown(steps[: number + 1])}")
            value = value[step]
    return value


def checked(value: Any, where: str = "the text") -> str:
    """Return the value if it is a text that can be encoded as UTF-8. Raises BadDocument."""
    if value is None:
        raise BadDocument("the text is null")
    if not isinstance(value, str):
        raise BadDocument(f"{where} is {_kind(value)}, not a text")
    if not value:
        raise BadDocument("the text is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadDocument("the text has a lone surrogate, which is not a valid character") from None
    return value


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), f"of type {type(value).__name__}")


def _shown(steps: list[Step]) -> str:
    parts = [f".{s}" if isinstance(s, str) and s.isidentifier() else f"[{json.dumps(s)}]" for s in steps]
    text = "".join(parts)
    return text if text.startswith(".") else f".{text}"


def _fields(value: dict[str, Any], most: int = 20) -> str:
    """Return the fields of an object, for the error about a missing one."""
    if not value:
        return " (it has no fields)"
    names = [json.dumps(name[:60], ensure_ascii=False) for name in list(value)[:most]]
    return f" (its fields: {', '.join(names)}{', ...' if len(value) > most else ''})"


def _typed(steps: list[Step], fields: tuple[str, ...]) -> tuple[msgspec.json.Decoder[Any], Callable[[Any], str]]:
    kind: Any = str
    for depth, step in reversed(list(enumerate(steps))):
        if isinstance(step, int):
            kind = list[kind]
        else:
            beside = [(f"field{i}", Any, None) for i in range(len(fields))] if depth == 0 else []
            names = {"value": step, **({f"field{i}": name for i, name in enumerate(fields)} if depth == 0 else {})}
            kind = msgspec.defstruct("Line", [("value", kind), *beside], rename=names, gc=False)
    if all(isinstance(step, str) for step in steps):
        return decoder_of(kind), attrgetter(".".join(["value"] * len(steps)))

    def get(found: Any) -> str:
        for step in steps:
            found = found.value if isinstance(step, str) else found[step]
        return found  # type: ignore[no-any-return]

    return decoder_of(kind), get
