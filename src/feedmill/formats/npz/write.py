"""Write ``.npz`` shards; see `feedmill.formats.npz.dataset` for the layout.

Arrays are stored uncompressed, so that single rows can be read. The same samples give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import DataError
from feedmill.formats.columnar import JSON, ColumnWriter, encode_json
from feedmill.formats.npz.arrays import npz
from feedmill.formats.npz.dataset import COLUMNS, OFFSETS, SHAPES
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store

_NUMBERS = {"int": np.int64, "float": np.float64, "bool": np.bool_}


class NpzWriter(ColumnWriter):
    """Writer of one ``.npz`` file per shard."""

    exact: ClassVar[AbstractSet[str]] = frozenset({"bytes", "jpeg", "png"})

    def form(self, kinds: AbstractSet[str], missing: bool) -> str:
        """See `ColumnWriter`."""
        if kinds and all(kind.startswith("array:") for kind in kinds):
            _, dtype, axes = min(kinds).split(":")
            whole = len(kinds) == 1 and axes != "0" and not missing and np.dtype(dtype).kind in "biuf"
            return f"array:{dtype}" if whole else "bytes"
        if any(kind in self.exact or kind.startswith("array:") for kind in kinds):
            return next(iter(kinds)) if len(kinds) == 1 and not missing else "bytes"
        if len(kinds) == 1 and not missing and kinds <= {"text", *_NUMBERS}:
            return next(iter(kinds))
        return JSON

    def encode(self, form: str, value: Any) -> Any:
        """See `ColumnWriter`."""
        if form == "text":
            return value.encode() if isinstance(value, str) else bytes(value)
        return encode_json(value) if form == JSON else value

    def write(self, store: Store, path: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Any:
        """See `ColumnWriter`."""
        arrays = {COLUMNS: np.frombuffer(orjson.dumps(dict(columns)), np.uint8)}
        for number, (name, form) in enumerate(columns.items()):
            for added, array in _arrays(name, form, [row[number] for row in rows]).items():
                if added in arrays:
                    raise DataError(
                        f"two arrays would have the name {added!r}",
                        file=store.locate(path),
                        kind="name-clash",
                        fix="Select only one of the parts with --fields.",
                    )
                arrays[added] = array
        store.write_bytes(path, npz(arrays))


def _arrays(name: str, form: str, values: list[Any]) -> dict[str, Any]:
    """Return the arrays of a column."""
    if form in _NUMBERS:
        return {name: np.asarray(values, _NUMBERS[form])}
    if not form.startswith("array:"):
        flat = np.frombuffer(b"".join(values), np.uint8)
        return {name: flat, name + OFFSETS: _offsets(list(map(len, values)))}
    dtype = np.dtype(form.partition(":")[2])
    arrays = [np.asarray(value, dtype) for value in values]
    if len({array.shape for array in arrays}) == 1:
        return {name: np.stack(arrays)}
    flat = np.concatenate([array.ravel() for array in arrays])
    shapes = np.asarray([array.shape for array in arrays], np.int64)
    return {name: flat, name + OFFSETS: _offsets([array.size for array in arrays]), name + SHAPES: shapes}


def _offsets(lengths: Sequence[int]) -> Any:
    return bounds_of(np.asarray(lengths, np.int64))


WRITER = NpzWriter()
