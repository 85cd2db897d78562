"""Represent a sample of any source as a key and named values, and derive the parts of a tar from them.

A part of a tar or a JSON line is bytes and keeps its name. A column of a table has a type. In a tar it becomes a part
whose suffix determines its decoder (``caption`` -> ``caption.txt``); in any other format it keeps its type. A table
with a ``__key__`` column was written from parts: its text and bytes columns are already named as parts.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from feedmill.converting.fates import TEXT_PARTS
from feedmill.converting.jsontypes import types_in, unfit
from feedmill.converting.lines import parse
from feedmill.converting.values import Coded, plain_bytes, simple, tagged, values_of
from feedmill.errors import DataError
from feedmill.formats.base import Dataset
from feedmill.formats.mds.dataset import MdsDataset
from feedmill.formats.objects import decode_json
from feedmill.formats.rows import RowSample, RowsDataset, to_bytes
from feedmill.formats.sample import Sample
from feedmill.samples.encode import encode_json

KEY = "__key__"
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
        self.lines = dataset.format == "jsonl"
        self.typed = is_typed(dataset)
        self.types = types_in(getattr(dataset, "schema", None))

    def __call__(self, sample: Sample) -> Taken:
        """Return the key and values of a sample.

        Raises:
            DataError: none of the sample's fields is selected, or a value cannot be read.
        """
        key, values = sample.key, values_of(sample)
        if self.lines:
            key, values = unfolded(key, values["json"], self.fields)
        elif not self.typed:
            key = values.pop(KEY, key)
        elif self.types:
            values = {name: unfit(v, self.types.get(name, "null")) for name, v in values.items()}
        if not self.lines:
            values = {name: value for name, value in values.items() if wanted(name, self.fields)}
        if self.drop:
            values = {name: v for name, v in values.items() if name not in self.drop}
        if not values:
            raise DataError(
                "the sample has no selected fields", record=key, kind="no-parts", fix="Select others with --fields."
            )
        return Taken(key, values, self.typed)


def is_typed(dataset: Dataset) -> bool:
    """Return whether samples have typed columns; not if a column of keys tells that they were written from parts."""
    if isinstance(dataset, MdsDataset):
        return all(c.encoding != "str" for shard in dataset.shards[:1] for c in shard.columns if c.name == KEY)
    return isinstance(dataset, RowsDataset) and getattr(dataset, "key_column", None) != KEY


def unfolded(key: str, line: bytes, fields: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the key and the wanted parts of a line with a ``__key__`` (``{"__key__": ..., "txt": ...}``).

    Names that do not decode their value become those that columns become. Any other line is returned whole, as the
    part ``json``.

    Raises:
        DataError: two names would become the same part, or text has a lone surrogate.
    """
    whole = {"json": line} if wanted("json", fields) else {}
    if b'"__key__"' not in line:
        return key, whole
    try:
        row = decode_json(line)
    except (ValueError, RecursionError):
        return key, whole
    if type(row.get(KEY)) is not str:
        return key, whole
    found, parts = row.pop(KEY), dict[str, Any]()
    for name, value in row.items():
        part = _named(name, value)
        if not (wanted(name, fields) or wanted(part, fields)):
            continue
        if part in parts:
            raise DataError(f"two names would become the part {part!r}", record=found, kind="name-clash")
        if value is not None or is_json(part):
            parts[part] = _part(found, part, value)
    return found, parts


def _named(name: str, value: Any) -> str:
    """Return the name of the part that a value of a JSON line becomes."""
    stays = last(name) in TEXT_PARTS or name.startswith("__") or not name
    return name if stays or value is None else part_name(name, value)


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
            kind="bad-encoding",
            fix="Fix the text, or drop the field.",
        ) from None


def refuse_unnamed(taken: Taken) -> None:
    """Raise `DataError` for a part without a name, which no format could give back; writing tars refuses it, too."""
    if "" in taken.values:
        raise DataError(
            "a part has no name: that of its file ends at the first dot",
            record=taken.key,
            kind="bad-name",
            fix="Rename it, or select the other parts with --fields '?*'.",
        )


def folded(taken: Taken, changed: Container[str], *, keyed: bool) -> dict[str, Any]:
    """Return a sample as the object of a JSON line: its key and fields.

    If the source is not `keyed` and the only part is ``json``, that object is returned without a key. A ``json`` part
    that is not an object, or has a ``__key__`` of its own, is stored under its name beside the key.

    Args:
        changed: typed columns whose values are declared to change.

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
        if taken.typed:
            out[name] = simple(value) if name in changed else value
            continue
        data = value.encode() if isinstance(value, str) else value
        if isinstance(data, bytes):
            out[name] = parse_json(taken.key, name, data) if is_json(name) else _text(taken.key, name, data)
        elif value is not None:
            out[name] = simple(value)
    return {name: value for name, value in out.items() if value is not None}


def parse_json(key: str, name: str, data: bytes) -> Any:
    """Return the value of a JSON part. Raises `DataError` if it is not valid."""
    try:
        return decode_json(data)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the part {name!r} is not valid JSON ({error})",
            record=key,
            kind="bad-line",
            fix="Fix it, or convert to tars, MDS or Parquet, which store a part as it is.",
        ) from None


def _text(key: str, name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"the part {name!r} is not text, and JSON cannot store bytes",
            record=key,
            kind="no-conversion",
            fix="Select only text fields with --fields, or convert to another format.",
        ) from None


def parts_of(taken: Taken, changed: Container[str]) -> dict[str, Any]:
    """Return the parts of a sample in a tar: part -> its value as it will be read back. None has no part.

    Args:
        changed: typed columns whose values are declared to change.

    Raises:
        DataError: two columns would become the same part.
    """
    out: dict[str, Any] = {}
    for name, value in taken.values.items():
        if value is None:
            continue
        part = part_name(name, value, keyed=not taken.typed)
        if part in out:
            raise DataError(f"two columns would become the part {part!r}", record=taken.key, kind="name-clash")
        if taken.typed:
            value = simple(value) if name in changed and not isinstance(value, bytes | np.ndarray) else value
            out[part] = part_bytes(part, value) if part.startswith("__") else value
        else:
            out[part] = tagged(part, plain_bytes(value))
    return out


def part_bytes(name: str, value: Any) -> bytes:
    """Return the bytes of a part of this value."""
    text = isinstance(value, str) and is_json(name)
    return to_bytes([value])[1:-1] if text else plain_bytes(value)


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
        return name if suffix in (TEXT_PARTS if keyed else ("txt", "text", "transcript")) else f"{name}.txt"
    if isinstance(value, Coded):
        return name if suffix == value.suffix or {suffix, value.suffix} <= {"jpg", "jpeg"} else f"{name}.{value.suffix}"
    if isinstance(value, bytes):
        return name
    if isinstance(value, np.ndarray):
        return name if suffix == "npy" else f"{name}.npy"
    return name if suffix in _JSON else f"{name}.json"


def is_json(name: str) -> bool:
    """Return whether the name of a part has a JSON suffix."""
    return last(name) in _JSON


def last(name: str) -> str:
    """Return the last suffix of a part's name in lower case; the whole name if it has no dot."""
    return name.rpartition(".")[2].lower()


def wanted(name: str, fields: Sequence[str]) -> bool:
    """Return whether a column is selected: it matches a name or pattern of `fields`, or `fields` is empty."""
    return not fields or any(fnmatchcase(name, pattern) for pattern in fields)


def row_of(dataset: Dataset, sample: Sample) -> dict[str, Any]:
    """Return the values of a sample as one row. What `feedmill.converting.jsontypes` made JSON text is restored."""
    if not isinstance(sample, RowSample):
        return parse(sample.raw("json"))
    types = types_in(getattr(dataset, "schema", None))
    row = {n: unfit(v, types[n]) if n in types else v for n, v in values_of(sample).items()}
    return {KEY: sample.key, **row} if getattr(dataset, "key_column", None) == KEY else row
