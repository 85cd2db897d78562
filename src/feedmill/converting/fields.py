"""A sample of any source as a key and named values, and the parts that a tar would have of them.

A part of a tar or a JSON line is bytes and keeps its name. A column of a table has a type: in a tar it becomes a part
whose suffix says how it is read (``caption`` -> ``caption.txt``), in any other format it keeps its type. Beside a
column ``__key__`` texts and bytes were parts once: they keep the names that say how they are read.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import xxhash

from feedmill.converting.jsontypes import canonical, loads, types_in, unfit
from feedmill.converting.lines import parse
from feedmill.errors import DataError
from feedmill.formats.base import Dataset, Sample
from feedmill.formats.rows import ANY, Lazy, RowSample, magic_suffix, to_bytes
from feedmill.samples.encode import encode_json

KEY = "__key__"
_TEXT = frozenset(
    (
        *("txt", "text", "transcript", "caption", "json", "jsn", "jsonl", "cls", "cls2", "index", "inx", "id"),
        *("html", "xml", "csv", "tsv", "md", "srt", "vtt", "py", "yaml", "yml"),
    )
)
"""Suffixes of parts that hold text; those of them that are valid UTF-8 are written as text."""
_JSON = frozenset(("json", "jsn"))


class Taken(NamedTuple):
    """A sample: its key, its values in order, and whether they are columns with types (not parts of bytes)."""

    key: str
    values: dict[str, Any]
    typed: bool


class Taker:
    """Takes samples of one dataset.

    Args:
        fields: names or patterns (``*.json``) of the parts to take; all where there are none.
        drop: names of parts not to take.
    """

    def __init__(self, dataset: Dataset, fields: Sequence[str] = (), drop: Container[str] = ()) -> None:
        self.fields, self.drop = tuple(fields), drop
        self.suffixes: Mapping[str, str] = getattr(dataset, "suffixes", {})
        self.lines = dataset.format == "jsonl"
        self.keyed = getattr(dataset, "key_column", None) == KEY
        self.types = types_in(getattr(dataset, "schema", None))

    def __call__(self, sample: Sample) -> Taken:
        """Raises `DataError` if nothing is left of the sample, or its bytes cannot be had."""
        key, typed = sample.key, False
        values: dict[str, Any]
        if isinstance(sample, RowSample):
            values, typed = {name: self._value(name, value) for name, value in sample.row.items()}, not self.keyed
            if type(values.get(KEY)) is str:
                key = values.pop(KEY)
                typed = False
            if typed and self.types:
                values = {name: unfit(v, self.types.get(name, "null")) for name, v in values.items()}
        else:
            values = {name: sample.raw(name) for name in sample}
            if self.lines:
                key, values = unfolded(key, values["json"])
        if self.fields:
            values = {name: v for name, v in values.items() if any(fnmatchcase(name, f) for f in self.fields)}
        if self.drop:
            values = {name: v for name, v in values.items() if name not in self.drop}
        if not values:
            raise DataError("nothing is left of the sample", record=key, kind="no-parts", fix="Take other --fields.")
        return Taken(key, values, typed)

    def _value(self, name: str, value: Any) -> Any:
        if type(value) is Lazy:
            return Coded(value.packed(), "png")
        if type(value) is bytes:
            suffix = self.suffixes.get(name, "")
            suffix = magic_suffix(value) if suffix == ANY else suffix
            return Coded(value, suffix) if suffix else value
        return value if isinstance(value, np.ndarray) else simple(value)


def simple(value: Any) -> Any:
    """A value as JSON knows it: moments in ISO 8601, decimals as text, bytes inside of lists and objects in base64."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): simple(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [simple(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Lazy):
        return simple(value.packed())
    if isinstance(value, np.ndarray | np.generic):
        return simple(value.tolist())
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class Coded(bytes):
    """Bytes that are known to be of a kind, such as an image."""

    suffix: str

    def __new__(cls, data: bytes, suffix: str) -> Coded:
        self = super().__new__(cls, data)
        self.suffix = suffix
        return self


def unfolded(key: str, line: bytes) -> tuple[str, dict[str, Any]]:
    """The key and parts of a line that has them (``{"__key__": ..., "txt": ...}``); else the line as the part json."""
    if b'"__key__"' not in line:
        return key, {"json": line}
    try:
        row = loads(line)
    except (ValueError, RecursionError):
        return key, {"json": line}
    if type(row.get(KEY)) is not str:
        return key, {"json": line}
    found = row.pop(KEY)
    return found, {name: _part(found, name, value) for name, value in row.items()}


def _part(key: str, name: str, value: Any) -> bytes:
    if type(value) is str and not is_json(name):
        return encoded(key, name, value)
    return encode_json(value)


def encoded(key: str, name: str, text: str) -> bytes:
    """Text as UTF-8. Raises `DataError` for lone surrogates, which are no text."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{name!r} is not Unicode text (it has a lone surrogate)",
            record=key.encode("utf-8", "backslashreplace").decode(),
            kind="bad-text",
            fix="Fix it, or leave it out.",
        ) from None


def folded(taken: Taken, *, keyed: bool) -> dict[str, Any]:
    """A sample as the object of a JSON line: its key and parts, or where they are not `keyed` the part json alone.

    A part json that is no object, or has a ``__key__`` of its own, stands beside its key.

    Raises:
        DataError: a part is not text.
    """
    if not keyed and list(taken.values) == ["json"] and not taken.typed:
        row = parse_json(taken.key, "json", plain_bytes(taken.values["json"]))
        if isinstance(row, dict) and KEY not in row:
            return row
    out: dict[str, Any] = {KEY: taken.key}
    for name, value in taken.values.items():
        if isinstance(value, str) and not taken.typed:
            value = value.encode()
        if isinstance(value, bytes):
            out[name] = parse_json(taken.key, name, value) if is_json(name) else _text(taken.key, name, value)
        elif value is not None:
            out[name] = loads(to_bytes(value)) if not isinstance(value, str | np.ndarray) else _plain(value)
    return out


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def parse_json(key: str, name: str, data: bytes) -> Any:
    """Return the value of a part of JSON. Raises `DataError`."""
    try:
        return loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the part {name!r} is no JSON ({error})",
            record=key,
            kind="bad-json",
            fix="Fix it, or convert to another format: tars, MDS and Parquet keep a part as it is.",
        ) from None


def _text(key: str, name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"the part {name!r} is not text, and JSON has no place for bytes",
            record=key,
            kind="binary-part",
            fix="Take only parts of text with --fields, or convert to another format.",
        ) from None


def parts_of(taken: Taken) -> dict[str, bytes]:
    """Return the parts that a tar has of a sample: values that are None have none.

    Raises:
        DataError: two columns would be one part.
    """
    out: dict[str, bytes] = {}
    for name, value in taken.values.items():
        if value is None:
            continue
        part = part_name(name, value, keyed=not taken.typed)
        if part in out:
            raise DataError(f"two columns would be the part {part!r}", record=taken.key, kind="name-clash")
        out[part] = plain_bytes(value)
    return out


def part_name(name: str, value: Any, *, keyed: bool = False) -> str:
    """Return the part that a column becomes: its name, with a suffix that says how the value is read.

    Args:
        keyed: whether there is a column ``__key__`` beside it, or it is a part already.

    >>> part_name("caption", "a cat"), part_name("label", 3), part_name("caption.txt", "a cat"), part_name("raw", b"")
    ('caption.txt', 'label.json', 'caption.txt', 'raw')
    """
    suffix = last(name)
    if isinstance(value, str):
        return name if suffix in (_TEXT if keyed else ("txt", "text", "transcript")) else f"{name}.txt"
    if isinstance(value, Coded):
        return name if suffix == value.suffix or {suffix, value.suffix} <= {"jpg", "jpeg"} else f"{name}.{value.suffix}"
    if isinstance(value, bytes):
        return name
    if isinstance(value, np.ndarray):
        return name if suffix == "npy" else f"{name}.npy"
    return name if suffix in _JSON else f"{name}.json"


def plain_bytes(value: Any) -> bytes:
    """Return a value as bytes, by the rule of `feedmill.formats.rows`."""
    return bytes(value) if type(value) is Coded else to_bytes(value)


def is_json(name: str) -> bool:
    """Return whether a part holds JSON, by its name."""
    return last(name) in _JSON


def last(name: str) -> str:
    """Return the last suffix of a part's name; the whole name where it has no dot."""
    return name.rpartition(".")[2].lower()


def is_text(name: str, value: bytes) -> bool:
    """Return whether a part is text by its name and its bytes."""
    if last(name) not in _TEXT:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def digest(key: str, parts: Mapping[str, bytes]) -> bytes:
    """xxh3-128 of a key and its parts, whatever their order. 16 bytes."""
    word = xxhash.xxh3_128(key.encode("utf-8", "surrogatepass"))
    for name in sorted(parts):
        data = parts[name]
        word.update(f"\0{len(name)}\0{name}\0{len(data)}\0".encode("utf-8", "surrogatepass"))
        word.update(data)
    return word.digest()


def wanted(name: str, fields: Sequence[str]) -> bool:
    """Return whether a column is taken: it is named or matches a pattern, or there are none."""
    return not fields or any(fnmatchcase(name, pattern) for pattern in fields)


def row_of(dataset: Dataset, sample: Sample) -> dict[str, Any]:
    """Return the values of a sample, as JSON knows them."""
    if not isinstance(sample, RowSample):
        return parse(sample.raw("json"))
    types = types_in(getattr(dataset, "schema", None))
    row = {n: unfit(v, types[n]) if n in types else simple(v) for n, v in sample.row.items()}
    return {KEY: sample.key, **row} if getattr(dataset, "key_column", None) == KEY else row


def row_digest(row: Mapping[str, Any]) -> bytes:
    """Return the hash of a row: of its values, whatever their order."""
    return digest("", {"row": encode_json(canonical(simple(dict(row))))})
