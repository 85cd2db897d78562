"""The kinds of values that the parts of all samples have, and the columns of formats that have one type for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from feedmill.converting.fields import KEY, Coded, Taken, digest, encoded, is_text, plain_bytes
from feedmill.errors import DataError
from feedmill.formats.base import Sample
from feedmill.formats.rows import RowSample

Survey = dict[str, dict[str, int]]
"""Part -> kind -> samples. Kinds: text, bytes, jpeg, png, int, float, bool, json, big (an integer beyond 64 bits),
null, ``array:<dtype>:<axes>``; the name "" counts samples as "samples", those with a key of their own as "keyed"."""

COUNTS = ""

Columns = Mapping[str, str]
"""Column -> form. MDS: its encodings. Parquet: string, binary, int64, double, bool, json, ``list:<dtype>``."""

BYTES = {"bytes", "jpeg", "png"}


def survey(samples: Iterable[tuple[int, Taken]]) -> Survey:
    """Count the kinds of values of samples, each given with its number."""
    found: dict[str, Counter[str]] = {COUNTS: Counter(samples=0, keyed=0)}
    for number, taken in samples:
        found[COUNTS]["samples"] += 1
        found[COUNTS]["keyed"] += taken.key != str(number)
        for name, value in taken.values.items():
            found.setdefault(name, Counter())[kind_of(name, value, typed=taken.typed)] += 1
    return {name: dict(counts) for name, counts in found.items()}


def merge(surveys: Iterable[Survey]) -> Survey:
    """Several surveys as one; names in the order in which they first come."""
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
    """Return the kinds of a part but for null, and whether some sample has none."""
    counts = found[name]
    missing = sum(n for kind, n in counts.items() if kind != "null") < found[COUNTS]["samples"]
    return set(counts) - {"null"}, missing


def names(found: Survey) -> list[str]:
    """Return all parts."""
    return [name for name in found if name != COUNTS]


def column_of(name: str, have: set[str], form: str) -> str:
    """Return the column of a part: arrays that it holds as bytes are .npy files, and say so."""
    arrays = bool(have) and all(kind.startswith("array:") for kind in have) and form in ("bytes", "binary")
    return f"{name}.npy" if arrays and not name.endswith(".npy") else name


def value_of(taken: Taken, column: str) -> Any:
    """Return what a sample has for a column."""
    return taken.values[column] if column in taken.values else taken.values.get(column.removesuffix(".npy"))


def text_of(value: Any) -> str:
    """Return a value of a column of text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def refuse_unsurveyed(taken: Taken, columns: Columns) -> None:
    """Raise `DataError` for what columns cannot hold: text that is none, parts that the survey has not seen."""
    for name, value in {KEY: taken.key, **taken.values}.items():
        if isinstance(value, str):
            encoded(taken.key, name, value)
    if all(name in columns for name in taken.values):
        return
    known = {name.removesuffix(".npy") for name in columns} | set(columns)
    other = [name for name, value in taken.values.items() if name not in known and value is not None]
    if other:
        raise DataError(
            f"the part {other[0]!r} was not there when the source was surveyed",
            record=taken.key,
            kind="changed",
            fix="The source changed meanwhile: run it again with --overwrite.",
        )


def read_digest(columns: Columns, sample: Sample) -> bytes:
    """Return the hash of a sample that was read back from columns."""
    assert isinstance(sample, RowSample)
    row = dict(sample.row)
    key = row.pop(KEY, None) or (sample.key if KEY in columns else "")
    return digest(key, {name: plain_bytes(value) for name, value in row.items() if value is not None})
