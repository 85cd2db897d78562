"""The closed table of conversions: the fate of each kind of value in each format, for code, pages and tests.

A *kind* is what a reader of the source gets. A *store* is how a destination keeps values for which it has no form of
its own: as ``text``, as ``json`` (read back as JSON values), as ``json text`` (read back as text), as ``bytes``, as
``lines`` of JSON, or as ``parts`` of tars. What has a form of its own (`feedmill.formats.columnar.Forms`) is read back
as it was. A kind that no table names is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from feedmill.converting.preview import Loss, named
from feedmill.converting.values import Coded
from feedmill.errors import ConfigError
from feedmill.samples.decode import codec_of


class Kind(NamedTuple):
    """One row of the table.

    Attributes:
        noun: what its values are, in messages.
        text, json, lines, parts: what they become in each store: "" if they are read back as they were, None if they
            are never stored so, a noun otherwise. After ``!`` it is a loss of content.
    """

    noun: str
    text: str | None
    json: str | None
    lines: str | None
    parts: str | None


_BASE64, _DROPPED = "!base64 text", "!nothing"
KINDS: Mapping[str, Kind] = {
    "null": Kind("nulls", None, "", "", ""),
    "text": Kind("text", "", "", "", ""),
    "text:part": Kind("text", "", "", "values", "values"),  # of a column that is named as a part, such as x.json
    "text:json": Kind("JSON values", "text", "text", "", ""),  # a part of a tar
    "text:number": Kind("numbers", "text", "text", "text", ""),
    "text:bytes": Kind("bytes", "text", "text", "text", ""),
    "bool": Kind("booleans", None, "", "", ""),
    "int": Kind("integers", None, "", "", ""),
    "big": Kind("integers beyond 64 bits", None, "", "", ""),
    "float": Kind("floats", None, "", "", ""),
    "decimal": Kind("decimals", "text", "text", "text", "text"),
    "date": Kind("dates", "text", "text", "text", "text"),
    "time": Kind("times", "text", "text", "text", "text"),
    "timestamp": Kind("timestamps", "text", "text", "text", "text"),
    "duration": Kind("durations", "text", "text", "text", "text"),
    "uuid": Kind("UUIDs", "text", "text", "text", "text"),
    "interval": Kind("intervals", None, "lists", "lists", "lists"),
    "json": Kind("lists and objects", None, "", "", ""),
    "empty": Kind("empty lists", None, "", "", ""),
    "pairs": Kind("maps", None, "lists", "lists", "lists"),
    "array": Kind("arrays", None, "lists", "lists", ""),
    "bytes": Kind("bytes", None, _BASE64, _DROPPED, ""),
    "part": Kind("encoded bytes", None, _BASE64, _DROPPED, ""),  # bytes that are decoded by the name of their column
    "jpeg": Kind("images", None, _BASE64, _DROPPED, ""),
    "png": Kind("images", None, _BASE64, _DROPPED, ""),
    "media": Kind("files", None, _BASE64, _DROPPED, ""),
    "list": Kind("lists of bytes or images", None, _BASE64, _DROPPED, _BASE64),
}
"""The table. A kind may have details after a colon (``array:<f4:1``); nested values are ``json:`` and the kinds in them
that are no JSON; ``text:json`` and the like are rows of their own."""

EXACT = frozenset({"bytes", "part", "jpeg", "png", "media"})
"""Kinds whose values are bytes."""
TEXTUAL = frozenset(kind for kind, row in KINDS.items() if row.text is not None)
"""Kinds of which a column of text can be made."""

_TYPES: tuple[tuple[type, str], ...] = (
    (str, "text"), (bool, "bool"), (np.bool_, "bool"), (int, "int"), (float, "float"), (np.integer, "int"),
    (np.floating, "float"), (Coded, "part"), (bytes, "bytes"), (Decimal, "decimal"), (datetime.datetime, "timestamp"),
    (datetime.date, "date"), (datetime.time, "time"), (datetime.timedelta, "duration"), (UUID, "uuid"),
)  # fmt: skip
_IMAGES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
_NUMBERS = {"json": "text:json", "cls": "text:number"}


def family(kind: str) -> str:
    """Return the row of the table that a kind belongs to.

    >>> family("array:<f4:1"), family("json:date"), family("text:json")
    ('array', 'json', 'text:json')
    """
    return kind if kind in KINDS else kind.partition(":")[0]


def kind_of(value: Any) -> str:
    """Return the kind of a value, with its details; ``other:<type>`` if the table has none."""
    if value is None:
        return "null"
    if isinstance(value, np.ndarray | np.longdouble) and (value.dtype.kind not in "biufSU" or _is_long(value.dtype)):
        return _other(value)
    if isinstance(value, np.ndarray):
        return f"array:{value.dtype.newbyteorder('<').str}:{value.ndim}"
    if isinstance(value, Coded):
        return _IMAGES.get(value.suffix.lower(), f"media:{value.suffix}")
    if type(value).__name__ == "MonthDayNano":
        return "interval"
    if isinstance(value, list | tuple | dict):
        return _nested(value)
    kind = next((kind for kind_type, kind in _TYPES if isinstance(value, kind_type)), "")
    return "big" if kind == "int" and not -(2**63) <= value < 2**63 else kind or _other(value)


def _is_long(dtype: np.dtype[Any]) -> bool:
    """Return whether numbers have more bits than Python's: no format but ``.npy`` has such."""
    return dtype.kind == "f" and dtype.itemsize > 8


def _other(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"other:array of {value.dtype}"
    return f"other:{type(value).__name__}"


def _nested(value: Any) -> str:
    if isinstance(value, list):
        if not value:
            return "empty"
        first = kind_of(value[0]) if isinstance(value[0], bytes) else ""
        if first and all(isinstance(item, bytes) for item in value):
            found = {kind_of(item) for item in value}
            return f"list:{first}" if len(found) == 1 else "list:files"
    inside: set[str] = set()
    _look(value, inside)
    return f"json:{','.join(sorted(inside))}" if inside else "json"


def _look(value: Any, inside: set[str]) -> None:
    """Add the families of what is in a nested value and is no JSON."""
    if isinstance(value, dict):
        for item in value.values():
            _look(item, inside)
    elif isinstance(value, list | tuple) and type(value).__name__ != "MonthDayNano":
        if isinstance(value, tuple):
            inside.add("pairs")
        for item in value:
            _look(item, inside)
    elif type(value) not in (str, int, float, bool, type(None)):
        kind = kind_of(value)
        if kind.startswith("other:"):
            inside.add(kind.replace(",", " "))
        elif KINDS[family(kind)].json:
            inside.add(family(kind))


def kind_of_part(name: str, value: Any) -> str:
    """Return the kind of a part of a tar, or of a column that is named as one."""
    codec = codec_of(name)
    if isinstance(value, str):
        return "text" if codec in ("", "txt") else "text:part"
    if isinstance(value, bytes) and is_text(name, value):
        return "text" if codec == "txt" else _NUMBERS.get(codec, "text:bytes")
    if isinstance(value, Coded):
        return _IMAGES.get(value.suffix.lower(), "part")
    return kind_of(value)


TEXT_PARTS = frozenset(
    (
        *("txt", "text", "transcript", "caption", "json", "jsn", "jsonl", "cls", "cls2", "index", "inx", "id"),
        *("html", "xml", "csv", "tsv", "md", "srt", "vtt", "py", "yaml", "yml"),
    )
)
"""Suffixes of text parts. Such a part is written as text if it is valid UTF-8."""


def is_text(name: str, value: bytes) -> bool:
    """Return whether a part has a text suffix and is valid UTF-8."""
    if name.rpartition(".")[2].lower() not in TEXT_PARTS:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def changes(store: str, kinds: Iterable[str]) -> dict[str, str]:
    """Return what becomes of values of these kinds in a store: noun -> what they become, see `Kind`.

    Raises:
        ConfigError: the table does not name a kind; without the name of the column.
    """
    out: dict[str, str] = {}
    for kind in kinds:
        inside = kind.partition(":")[2].split(",") if kind.startswith("json:") else [family(kind)]
        where = "json" if kind.startswith("json:") and store == "parts" else store
        for one in inside:
            if one not in KINDS:
                name = (kind if one == "other" else one).partition(":")[2] or one
                raise ConfigError(
                    f"its values are of the type {name!r}, which no format can store",
                    kind="unsupported",
                    fix="Select other columns with --fields.",
                )
            if where == "bytes":  # a column with bytes that nothing decodes
                becomes: str | None = "" if one == "bytes" else "bytes"
            elif where == "json text":
                lost = KINDS[one].json or ""
                becomes = lost if lost.startswith("!") else "JSON text"
            else:
                becomes = getattr(KINDS[one], where)
            if becomes:
                out[KINDS[one].noun] = becomes
    return out


Changed = dict[str, dict[str, str]]
"""Column -> noun -> what values become."""


def changed_of(columns: Mapping[str, tuple[str, Iterable[str]]]) -> Changed:
    """Return the changes of columns, given with their store and their kinds; of those that change.

    Raises:
        ConfigError: a column has values that no format can store.
    """
    out = {}
    for name, (store, kinds) in columns.items():
        try:
            found = changes(store, kinds)
        except ConfigError as error:
            error.record = name
            raise
        if found:
            out[name] = found
    return out


def losses(changed: Changed) -> list[Loss]:
    """Return the losses to declare: one for each kind and what it becomes, with the names of the columns."""
    by: dict[tuple[str, str], list[str]] = {}
    for name, found in changed.items():
        for noun, becomes in found.items():
            by.setdefault((noun, becomes), []).append(name)
    out = []
    for (noun, becomes), names in by.items():
        content, becomes = becomes.startswith("!"), becomes.removeprefix("!")
        if not content:
            out.append(Loss(f"types of {named(names)}: {noun} become {becomes}"))
            continue
        end = "" if becomes == "nothing" else f", which become {becomes}"
        fix = "Select other columns with --fields, or convert to a format that keeps them (docs/convert.md)."
        out.append(Loss(f"the {noun} of {named(names)}{end}", content=True, fix=fix))
    return out
