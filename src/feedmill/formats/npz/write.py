"""Write ``.npz`` shards; see `feedmill.formats.npz.dataset` for the layout.

Arrays are stored uncompressed, so that single rows can be read. The same samples give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import DataError
from feedmill.formats.columnar import JSON, ColumnWriter, Forms, encode_json
from feedmill.formats.npz.arrays import npz
from feedmill.formats.npz.dataset import COLUMNS, OFFSETS, PRESENT, SHAPES
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store

_NUMBERS = {"int": np.int64, "float": np.float64, "bool": np.bool_}


class NpzWriter(ColumnWriter):
    """Writer of one ``.npz`` file per shard."""

    forms: ClassVar[Forms] = Forms(
        kinds={"text": "text", "bytes": "bytes", "jpeg": "jpeg", "png": "png", **{kind: kind for kind in _NUMBERS}},
        array=lambda dtype, axes: f"array:{dtype.str}" if axes and dtype.kind in "biuf" else "",
        text="text",
        bytes="bytes",
        media="media",
        exact=frozenset({"bytes", "media", "jpeg", "png"}),
        nulls=True,
    )

    def encode(self, form: str, value: Any) -> Any:
        """See `ColumnWriter`."""
        if value is None and form != JSON:
            return None
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
    """Return the arrays of a column: its values, with others in place of missing ones, and how to read them."""
    present = np.asarray([value is not None for value in values])
    more = {} if present.all() else {name + PRESENT: present}
    if form in _NUMBERS:
        return {name: np.asarray([0 if value is None else value for value in values], _NUMBERS[form]), **more}
    if not form.startswith("array:"):
        blocks = [value or b"" for value in values]
        flat = np.frombuffer(b"".join(blocks), np.uint8)
        return {name: flat, name + OFFSETS: _offsets(list(map(len, blocks))), **more}
    dtype = np.dtype(form.partition(":")[2])
    arrays = [np.asarray(value, dtype) for value in values if value is not None]
    shapes = {array.shape for array in arrays}
    common = shapes.pop() if len(shapes) == 1 else None
    axes = arrays[0].ndim if arrays else 1
    found = iter(arrays)
    filled = [next(found) if there else np.zeros(common or (0,) * axes, dtype) for there in present.tolist()]
    if common is not None:
        return {name: np.stack(filled), **more}
    flat = np.concatenate([array.ravel() for array in filled])
    sizes = np.asarray([array.shape for array in filled], np.int64)
    return {name: flat, name + OFFSETS: _offsets([array.size for array in filled]), name + SHAPES: sizes, **more}


def _offsets(lengths: Sequence[int]) -> Any:
    return bounds_of(np.asarray(lengths, np.int64))


WRITER = NpzWriter()
