"""Python values of columns of Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.arrowtypes.nanoseconds import to_python
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.rows import ANY, Lazy


def is_media(pyarrow: Any, kind: Any) -> bool:
    """Return whether a column holds files as Hugging Face `datasets` stores them: ``{bytes, path}``."""
    return bool(pyarrow.types.is_struct(kind)) and {field.name for field in kind} == {"bytes", "path"}


def suffixes_of(schema: Any) -> dict[str, str]:
    """Return the suffixes of columns that hold files, for `RowsDataset.suffixes`."""
    pyarrow = load_pyarrow()
    return {field.name: ANY for field in schema if is_media(pyarrow, field.type)}


def values(column: Any) -> list[Any]:
    """Return the values of an array or chunked array as Python objects.

    Lists of numbers become numpy arrays, those that contain nulls stay lists; files become bytes, times that need
    nanoseconds become text.
    """
    pyarrow = load_pyarrow()
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(column, pyarrow.ChunkedArray):  # too large for one array
            return [value for chunk in column.chunks for value in values(chunk)]
    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return values(column.storage)
    types = pyarrow.types
    if is_media(pyarrow, kind):
        return _files(column.to_pylist())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        if types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner):
            return _arrays(column)
    return to_python(column)


def filled(column: Any) -> npt.NDArray[Any]:
    """Return a numeric or boolean array or chunked array as numpy array [n] of its type; 0 in place of nulls."""
    none = False if load_pyarrow().types.is_boolean(column.type) else 0
    numbers: npt.NDArray[Any] = np.asarray(column.fill_null(none) if column.null_count else column)
    return numbers


def _arrays(column: Any) -> list[Any]:
    """Return lists of numbers as arrays, with None for null lists. One that contains nulls is a Python list.

    The value of a row does not depend on the other rows, which are those that happen to be read with it.
    """
    flat = column.flatten()
    numbers = filled(flat) if flat.null_count else flat.to_numpy(zero_copy_only=False)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(present, column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), 0)
    ends = np.cumsum(lengths)
    rows = zip((ends - lengths).tolist(), ends.tolist(), present.tolist(), strict=True)
    out = [numbers[begin:end].copy() if there else None for begin, end, there in rows]
    if flat.null_count:
        nulls = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
        for row in np.unique(np.searchsorted(ends, nulls, side="right")).tolist():
            out[row] = column[row].as_py()
    return out


def _files(found: list[Any]) -> list[Any]:
    """Return the bytes of files. Files given only by path are not read: they may be anywhere."""
    return [None if value is None else _missing(value) if value["bytes"] is None else value["bytes"] for value in found]


def _missing(value: dict[str, Any]) -> Lazy | None:
    path = value["path"]
    if path is None:
        return None

    def refuse() -> Any:
        raise DataError(
            f"the dataset does not contain the bytes of this file, only its path {path!r}",
            kind="outside-file",
            fix="Save the dataset again with embedded files (embed_external_files=True).",
        )

    return Lazy(refuse, refuse)
