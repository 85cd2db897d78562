"""Read documents with text and id of declared types at dotted names, as in Dolma's configuration.

This is stricter than `feedmill.documents.textpath`: a line with a missing field, or a field of another type, is a bad
document. White space around the text is removed, and a document with no other text is skipped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from feedmill.documents.batch import Record, Records
from feedmill.errors import ConfigError
from feedmill.formats.documents import json_fault, one_a_line
from feedmill.structs import decoder_of

ID_TYPES: dict[str, Any] = {
    "str": str,
    "string": str,
    "int": int,
    "integer": int,
    "float": float,
    "number": float,
    "bool": bool,
    "boolean": bool,
    "null": type(None),
    "None": type(None),
    "list": list,
    "array": list,
    "dict": dict,
    "object": dict,
}


@dataclass(frozen=True, slots=True)
class Typed:
    """Locations of the text and the id.

    Attributes:
        text, id: Dotted names; None reads no id.
        id_type: A key of `ID_TYPES`.
    """

    text: str = "text"
    id: str | None = "id"
    id_type: str = "str"


class TypedReader:
    """Reader of JSON lines with the interface of `feedmill.documents.textpath.TextReader`.

    Raises:
        ConfigError: One name is a prefix of the other, or the type is unknown.
    """

    def __init__(self, typed: Typed) -> None:
        if typed.id_type not in ID_TYPES:
            raise ConfigError(f"unknown id type {typed.id_type!r}", fix=f"Use one of {', '.join(ID_TYPES)}.")
        tree: dict[str, Any] = {}
        wanted = [(typed.text, str), *([] if typed.id is None else [(typed.id, ID_TYPES[typed.id_type])])]
        getters = [_place(tree, name, kind) for name, kind in wanted]
        decoder = decoder_of(_struct(tree))
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._text = attrgetter(getters[0])
        self._id = None if typed.id is None else attrgetter(getters[1])

    def read(self, block: bytes | memoryview) -> Records | None:
        """Return the documents of whole lines at once; None if a line must be read by `record`."""
        try:
            found = self._decode_lines(block)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        texts = [self._text(one).strip() for one in found]
        if not all(texts) or not one_a_line(block, len(found)):
            return None
        return Records(texts, [(None if self._id is None else self._id(one),) for one in found])

    def record(self, line: bytes) -> Record:
        """Return the document of one line, with the reason if it has no text; without a reason if it is skipped."""
        try:
            found = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = json_fault(line, error)[:200]
            return Record(None, f"the line is not a document with the required fields ({why})")
        text: str = self._text(found).strip()
        return Record(text or None, "", (None if self._id is None else self._id(found),))


def _place(tree: dict[str, Any], name: str, kind: Any) -> str:
    """Add a dotted name to the tree, and return the path of attributes to it."""
    *above, last = name.split(".")
    at, path = tree, []
    for part in above:
        path.append(f"f{list(at).index(part) if part in at else len(at)}")
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            raise _clash(name)
    if last in at and at[last] is not kind:
        raise _clash(name)
    path.append(f"f{list(at).index(last) if last in at else len(at)}")
    at[last] = kind
    return ".".join(path)


def _clash(name: str) -> ConfigError:
    return ConfigError(f"the text and the id cannot both be read from {name!r}", fix="Use two different fields.")


def _struct(tree: dict[str, Any]) -> Any:
    kinds = [(f"f{i}", _struct(kind) if isinstance(kind, dict) else kind) for i, kind in enumerate(tree.values())]
    return msgspec.defstruct("Line", kinds, rename={f"f{i}": name for i, name in enumerate(tree)}, gc=False)
