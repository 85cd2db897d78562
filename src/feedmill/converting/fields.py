"""Represent a sample of any source as a key and named values, and derive the parts of a tar from them.

A part of a tar or a JSON line is bytes and keeps its name. A column of a table has a type. In a tar it becomes a part
whose suffix determines its decoder (``caption`` -> ``caption.txt``); in any other format it keeps its type. A table
with a ``__key__`` column was written from parts: its text and bytes columns are already named as parts.
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
from feedmill.formats.base import Dataset
from feedmill.formats.rows import ANY, Lazy, RowSample, magic_suffix, to_bytes
from feedmill.formats.sample import Sample
from feedmill.samples.encode import encode_json

KEY = "__key__"
_TEXT = frozenset(
    (
        *("txt", "text", "transcript", "caption", "json", "jsn", "jsonl", "cls", "cls2", "index", "inx", "id"),
        *("html", "xml", "csv", "tsv", "md", "srt", "vtt", "py", "yaml", "yml"),
    )
)
"""Suffixes of text parts. Such a part is written as text if it is valid UTF-8."""
_JSON = frozenset(("json", "jsn"))


class Taken(NamedTuple):
    """A sample: its key, its values in order, and whether they are typed columns (not parts, which are bytes)."""

    key: str
    values: dict[str, Any]
    typed: bool


class Taker:
    """Callable that converts samples of one dataset to `Taken`.

    Args:
        dataset: the dataset of the samples.
        fields: names or patterns (``*.json``) of the fields to keep; all if empty.
        drop: names of fields to drop.
    """

    def __init__(self, dataset: Dataset, fields: Sequence[str] = (), drop: Container[str] = ()) -> None:
        self.fields, self.drop = tuple(fields), drop
        self.suffixes: Mapping[str, str] = getattr(dataset, "suffixes", {})
        self.lines = dataset.format == "jsonl"
        self.keyed = getattr(dataset, "key_column", None) == KEY
        self.types = types_in(getattr(dataset, "schema", None))

    def __call__(self, sample: Sample) -> Taken:
        """Return the key and values of a sample.

        Raises:
            DataError: none of the sample's fields is selected, or a value cannot be read.
        """
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
            raise DataError(
                "the sample has no selected fields", record=key, kind="no-parts", fix="Select others with --fields."
            )
        return Taken(key, values, typed)

    def _value(self, name: str, value: Any) -> Any:
        if type(value) is Lazy:
            data = value.packed()
            return Coded(data, magic_suffix(data) or "png")
        if type(value) is bytes:
            suffix = self.suffixes.get(name, "")
            suffix = magic_suffix(value) if suffix == ANY else suffix
            return Coded(value, suffix) if suffix else value
        return value if isinstance(value, np.ndarray) else simple(value)


def simple(value: Any) -> Any:
    """Return a value as JSON data: dates and times in ISO 8601, decimals as text, bytes in base64."""
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
    """Bytes of a known encoding, such as an image, with the suffix of that encoding."""

    suffix: str

    def __new__(cls, data: bytes, suffix: str) -> Coded:
        self = super().__new__(cls, data)
        self.suffix = suffix
        return self


def unfolded(key: str, line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the key and parts of a line with a ``__key__`` (``{"__key__": ..., "txt": ...}``).

    Any other line is returned whole, as the part ``json``.
    """
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
    """Return text as UTF-8. Raises `DataError` for lone surrogates, which UTF-8 cannot encode."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{name!r} is not valid Unicode text: it has a lone surrogate",
            record=key.encode("utf-8", "backslashreplace").decode(),
            kind="bad-text",
            fix="Fix the text, or drop the field.",
        ) from None


def refuse_unnamed(taken: Taken) -> None:
    """Raise `DataError` for a part without a name, which no format could give back; writing tars refuses it, too."""
    if "" in taken.values:
        raise DataError(
            "a part has no name: that of its file ends at the first dot",
            record=taken.key,
            kind="no-part-name",
            fix="Rename it, or select the other parts with --fields '?*'.",
        )


def folded(taken: Taken, *, keyed: bool) -> dict[str, Any]:
    """Return a sample as the object of a JSON line: its key and fields.

    If the source is not `keyed` and the only part is ``json``, that object is returned without a key. A ``json`` part
    that is not an object, or has a ``__key__`` of its own, is stored under its name beside the key.

    Raises:
        DataError: a part is not text, or has no name.
    """
    refuse_unnamed(taken)
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
    """Return the value of a JSON part. Raises `DataError` if it is not valid."""
    try:
        return loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the part {name!r} is not valid JSON ({error})",
            record=key,
            kind="bad-json",
            fix="Fix it, or convert to tars, MDS or Parquet, which store a part as it is.",
        ) from None


def _text(key: str, name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"the part {name!r} is not text, and JSON cannot store bytes",
            record=key,
            kind="binary-part",
            fix="Select only text fields with --fields, or convert to another format.",
        ) from None


def parts_of(taken: Taken) -> dict[str, bytes]:
    """Return the parts of a sample in a tar: part -> bytes. Values that are None are skipped.

    Raises:
        DataError: two columns would become the same part.
    """
    out: dict[str, bytes] = {}
    for name, value in taken.values.items():
        if value is None:
            continue
        part = part_name(name, value, keyed=not taken.typed)
        if part in out:
            raise DataError(f"two columns would become the part {part!r}", record=taken.key, kind="name-clash")
        out[part] = plain_bytes(value)
    return out


def part_name(name: str, value: Any, *, keyed: bool = False) -> str:
    """Return the name of the part that a column becomes: its name, with the suffix that selects the decoder.

    Args:
        name: name of the column or part.
        value: its value in the sample.
        keyed: whether the table has a ``__key__`` column, or the value is a part already.

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
    """Return a value as bytes, by the rules of `feedmill.formats.rows`."""
    return bytes(value) if type(value) is Coded else to_bytes(value)


def is_json(name: str) -> bool:
    """Return whether the name of a part has a JSON suffix."""
    return last(name) in _JSON


def last(name: str) -> str:
    """Return the last suffix of a part's name in lower case; the whole name if it has no dot."""
    return name.rpartition(".")[2].lower()


def is_text(name: str, value: bytes) -> bool:
    """Return whether a part has a text suffix and is valid UTF-8."""
    if last(name) not in _TEXT:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def digest(key: str, parts: Mapping[str, bytes]) -> bytes:
    """Return the xxh3-128 digest of a key and its parts, independent of their order. 16 bytes."""
    hasher = xxhash.xxh3_128(key.encode("utf-8", "surrogatepass"))
    for name in sorted(parts):
        data = parts[name]
        hasher.update(f"\0{len(name)}\0{name}\0{len(data)}\0".encode("utf-8", "surrogatepass"))
        hasher.update(data)
    return hasher.digest()


def wanted(name: str, fields: Sequence[str]) -> bool:
    """Return whether a column is selected: it matches a name or pattern of `fields`, or `fields` is empty."""
    return not fields or any(fnmatchcase(name, pattern) for pattern in fields)


def row_of(dataset: Dataset, sample: Sample) -> dict[str, Any]:
    """Return the values of a sample as JSON data."""
    if not isinstance(sample, RowSample):
        return parse(sample.raw("json"))
    types = types_in(getattr(dataset, "schema", None))
    row = {n: unfit(v, types[n]) if n in types else simple(v) for n, v in sample.row.items()}
    return {KEY: sample.key, **row} if getattr(dataset, "key_column", None) == KEY else row


def row_digest(row: Mapping[str, Any]) -> bytes:
    """Return the digest of a row's values, independent of their order. 16 bytes."""
    return digest("", {"row": encode_json(canonical(simple(dict(row))))})
