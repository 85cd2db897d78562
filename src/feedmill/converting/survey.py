"""Count the kinds of values in each field of all samples, to choose the columns of formats with typed columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from feedmill.converting.fields import KEY, Coded, Taken, digest, encoded, is_text, plain_bytes, refuse_unnamed
from feedmill.errors import DataError
from feedmill.formats.rows import RowSample
from feedmill.formats.sample import Sample

Survey = dict[str, dict[str, int]]
"""Field -> kind -> number of samples.

Kinds: text, bytes, jpeg, png, int, float, bool, json, big (an integer beyond 64 bits), null, ``array:<dtype>:<axes>``.
The field "" counts all samples as "samples", and those whose key is not their number as "keyed".
"""

COUNTS = ""

Columns = Mapping[str, str]
"""Column -> form. MDS: its encodings. Parquet: string, binary, int64, double, bool, json or ``list:<dtype>``."""

BYTES = {"bytes", "jpeg", "png"}
_LIST = re.compile(r"array:.[biuf]\d+:1")


def survey(samples: Iterable[tuple[int, Taken]]) -> Survey:
    """Return the survey of samples, given with their numbers."""
    found: dict[str, Counter[str]] = {COUNTS: Counter(samples=0, keyed=0)}
    for number, taken in samples:
        found[COUNTS]["samples"] += 1
        found[COUNTS]["keyed"] += taken.key != str(number)
        for name, value in taken.values.items():
            if name == COUNTS:  # a part without a name, which is refused when it is written
                continue
            found.setdefault(name, Counter())[kind_of(name, value, typed=taken.typed)] += 1
    return {name: dict(counts) for name, counts in found.items()}


def merge(surveys: Iterable[Survey]) -> Survey:
    """Return the sum of several surveys. Fields are in the order of their first occurrence."""
    out: dict[str, Counter[str]] = {}
    for found in surveys:
        for name, counts in found.items():
            out.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in out.items()}


def kind_of(name: str, value: Any, *, typed: bool) -> str:
    """Return the kind of a value, see `Survey`."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        if isinstance(value, Coded):
            return {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}.get(value.suffix, "bytes")
        if not typed and is_text(name, value):
            return "text"
        suffix = name.rpartition(".")[2].lower()
        return {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}.get(suffix, "bytes") if not typed else "bytes"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "big"
    if isinstance(value, float):
        return "float"
    if isinstance(value, np.ndarray):
        return f"array:{value.dtype.newbyteorder('<').str}:{value.ndim}"
    return "json"


def kinds(found: Survey, name: str) -> tuple[set[str], bool]:
    """Return the kinds of a field without null, and whether it is missing or null in any sample.

    Lists of numbers of which some contain nulls are all JSON, see `json_value`.
    """
    counts = found[name]
    missing = sum(n for kind, n in counts.items() if kind != "null") < found[COUNTS]["samples"]
    have = set(counts) - {"null"}
    if "json" in have and all(kind == "json" or _LIST.fullmatch(kind) for kind in have):
        have = {"json"}
    return have, missing


def names(found: Survey) -> list[str]:
    """Return the names of all fields."""
    return [name for name in found if name != COUNTS]


def column_of(name: str, have: set[str], form: str) -> str:
    """Return the column name of a field. Arrays that are stored as bytes are .npy files, and get that suffix."""
    arrays = bool(have) and all(kind.startswith("array:") for kind in have) and form in ("bytes", "binary")
    return f"{name}.npy" if arrays and not name.endswith(".npy") else name


def value_of(taken: Taken, column: str) -> Any:
    """Return the value of a sample for a column, or None."""
    return taken.values[column] if column in taken.values else taken.values.get(column.removesuffix(".npy"))


def json_value(value: Any) -> Any:
    """Return a value for a column of JSON text: text for bytes, a list for an array."""
    return value.tolist() if isinstance(value, np.ndarray) else text_of(value) if isinstance(value, bytes) else value


def text_of(value: Any) -> str:
    """Return a value as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def refuse_unsurveyed(taken: Taken, columns: Columns) -> None:
    """Raise `DataError` for what the columns cannot store.

    That is text with lone surrogates, a field without a name, and fields that the survey did not see.
    """
    refuse_unnamed(taken)
    for name, value in {KEY: taken.key, **taken.values}.items():
        if isinstance(value, str):
            encoded(taken.key, name, value)
    if all(name in columns for name in taken.values):
        return
    known = {name.removesuffix(".npy") for name in columns} | set(columns)
    other = [name for name, value in taken.values.items() if name not in known and value is not None]
    if other:
        raise DataError(
            f"the field {other[0]!r} is new: no sample had it when the source was surveyed",
            record=taken.key,
            kind="changed",
            fix="The source has changed. Run the conversion again with --overwrite.",
        )


def read_digest(columns: Columns, sample: Sample) -> bytes:
    """Return the digest of a sample that was read back from columns. 16 bytes."""
    assert isinstance(sample, RowSample)
    row = dict(sample.row)
    key = row.pop(KEY, None) or (sample.key if KEY in columns else "")
    return digest(key, {name: plain_bytes(value) for name, value in row.items() if value is not None})
