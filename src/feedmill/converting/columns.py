"""Which column each part gets in formats whose columns have one type: MDS and Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from feedmill.converting.jsontypes import METADATA
from feedmill.converting.plan import Loss, named
from feedmill.converting.survey import COUNTS, Survey, kinds, names
from feedmill.converting.taking import KEY, Taken, is_json, plain_bytes
from feedmill.formats.mds.write import ENCODERS, has_dtype

Columns = dict[str, str]
"""Column -> form. MDS: its encodings. Parquet: string, binary, int64, double, bool, json, ``list:<dtype>``."""

_BYTES = {"bytes", "jpeg", "png"}
_NUMBERS = {"int", "float", "bool", "big"}


def mds_columns(found: Survey) -> tuple[Columns, list[Loss]]:
    """The encodings of MDS, in the order of the columns' names, and what cannot be kept."""
    out: Columns = {KEY: "str"} if found[COUNTS]["keyed"] else {}
    missing_bytes = []
    for name in names(found):
        have, missing = kinds(found, name)
        form = _mds_form(have, missing)
        out[_column(name, have, form)] = form
        if missing and form == "bytes":
            missing_bytes.append(name)
    losses = (
        [Loss("absent parts and null are one")] if any(kinds(found, name)[1] for name in out if name in found) else []
    )
    if missing_bytes:
        losses.append(
            Loss(
                f"samples without {named(missing_bytes)}: they would get no bytes there",
                content=True,
                fix="Leave these parts out with --fields, or choose another format.",
            )
        )
    return dict(sorted(out.items())), losses


def _column(name: str, have: set[str], form: str) -> str:
    """The column of a part: arrays that it holds as bytes are .npy files, and say so."""
    arrays = bool(have) and all(kind.startswith("array:") for kind in have) and form in ("bytes", "binary")
    return f"{name}.npy" if arrays and not name.endswith(".npy") else name


def _value(taken: Taken, column: str) -> Any:
    """What a sample has for a column."""
    return taken.values[column] if column in taken.values else taken.values.get(column.removesuffix(".npy"))


def _mds_form(have: set[str], missing: bool) -> str:
    arrays = {kind for kind in have if kind.startswith("array:")}
    if have == {"text"}:
        return "json" if missing else "str"
    if have <= _BYTES and have:
        return have.pop() if len(have) == 1 and not missing else "bytes"
    if arrays == have and have:
        dtypes = {kind.split(":")[1] for kind in arrays}
        return "ndarray" if not missing and all(map(has_dtype, dtypes)) else "bytes"
    if have & _BYTES or arrays:
        return "bytes"
    if len(have) == 1 and not missing and have <= {"int", "float"}:
        return "int" if have == {"int"} else "float64"
    return "json"


def parquet_columns(found: Survey) -> tuple[Columns, list[Loss]]:
    """The forms of Parquet's columns, in the order of the parts."""
    out: Columns = {KEY: "string"} if found[COUNTS]["keyed"] else {}
    for name in names(found):
        have = kinds(found, name)[0]
        form = _parquet_form(have)
        out[_column(name, have, form)] = form
    mixed = [name for name, form in out.items() if form == "json"]
    losses = []
    if any(kinds(found, name)[1] for name in names(found)):
        losses.append(Loss("absent parts and null are one"))
    if mixed:
        losses.append(Loss(f"values in {named(mixed)} that are nested or of several types become text of JSON"))
    return out, losses


def _parquet_form(have: set[str]) -> str:
    if have <= {"text"}:
        return "string"
    if len(have) == 1 and (one := next(iter(have))) in ("int", "float", "bool"):
        return {"int": "int64", "float": "double", "bool": "bool"}[one]
    if len(have) == 1 and next(iter(have)).startswith("array:"):
        _, dtype, axes = next(iter(have)).split(":")
        return f"list:{dtype}" if axes == "1" and np.dtype(dtype).kind in "iuf" and dtype != "<f2" else "binary"
    if have & _BYTES or any(kind.startswith("array:") for kind in have):
        return "binary"
    return "json"


def mds_row(columns: Mapping[str, str], taken: Taken) -> tuple[list[bytes], dict[str, bytes]]:
    """The encoded values of a sample, and the parts that are read back."""
    out, parts = [], {}
    for name, form in columns.items():
        value = taken.key if name == KEY else _value(taken, name)
        if form == "json":
            value = _text(value) if isinstance(value, bytes) else value
            if value is not None:
                parts[name] = plain_bytes(value)
        elif form in ("bytes", "jpeg", "png"):
            value = parts[name] = plain_bytes(value)
        elif name != KEY:
            parts[name] = plain_bytes(value)
        out.append(ENCODERS[form](value))
    return out, parts


def parquet_row(columns: Mapping[str, str], taken: Taken) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The values of a row, and the parts that are read back."""
    row: dict[str, Any] = {}
    parts = {}
    for name, form in columns.items():
        value = taken.key if name == KEY else _value(taken, name)
        if value is None:
            row[name] = None
            continue
        if form == "string":
            value = _text(value)
        elif form == "binary":
            value = plain_bytes(value)
        elif form == "json":
            value = json.dumps(_text(value) if isinstance(value, bytes) else value, ensure_ascii=False, default=str)
        if name != KEY:
            parts[name] = plain_bytes(value)
        row[name] = value
    return row, parts


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """The schema of Parquet files with these columns; it says which of them hold text of JSON."""
    import pyarrow as pa

    def kind(form: str) -> Any:
        if form.startswith("list:"):
            return pa.list_(pa.from_numpy_dtype(np.dtype(form[5:])))
        plain = {"string": pa.string(), "json": pa.string(), "binary": pa.binary(), "int64": pa.int64()}
        return {**plain, "double": pa.float64(), "bool": pa.bool_()}[form]

    texts = {name: "json" for name, form in columns.items() if form == "json" or (form == "string" and is_json(name))}
    said = {METADATA: json.dumps(texts).encode()} if texts else None
    return pa.schema([pa.field(name, kind(form)) for name, form in columns.items()], metadata=said)
