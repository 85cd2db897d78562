"""Write MosaicML's streaming shards; see `feedmill.formats.mds.dataset` for the layout.

A shard is assembled in memory, because its header has the offset of every sample. Columns are sorted by name, as
MDSWriter writes them. The same samples give the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import DataError
from feedmill.formats.columnar import ColumnWriter, Forms, encode_json
from feedmill.formats.mds.dataset import INDEX
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store

SIZES = {"int": 8, "float64": 8, "float32": 4}
_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
_MOST = 2**32 - 1


def encode_array(value: Any) -> bytes:
    """Return an array with its type and shape in the encoding ``ndarray``."""
    array = np.ascontiguousarray(value) if value.ndim else np.asarray(value)
    longest = max(array.shape, default=0)
    width = next(n for n in range(4) if longest < 1 << (8 << n))
    axes = np.asarray(array.shape, f"<u{1 << width}").tobytes()
    head = bytes([_CODES[array.dtype.name], array.ndim << 2 | width])
    return head + axes + array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def encode_list(values: Sequence[bytes]) -> bytes:
    """Return images in the encodings ``list[jpeg]`` and ``list[png]``."""
    sizes = np.asarray([0, len(values), *map(len, values)], "<u4")  # the first number is reserved
    return b"".join([sizes.tobytes(), *values])


ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "bytes": bytes,
    "jpeg": bytes,
    "png": bytes,
    "str": lambda value: value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value),
    "int": lambda value: struct.pack("<q", value),
    "float64": lambda value: struct.pack("<d", value),
    "json": encode_json,
    "ndarray": encode_array,
    "str_decimal": lambda value: str(value).encode(),
    "list[jpeg]": encode_list,
    "list[png]": encode_list,
}
"""Encoding -> function that encodes a value as bytes."""


def write_shard(store: Store, path: str, columns: Mapping[str, str], rows: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """Write one shard and return its entry for `write_index`.

    Args:
        columns: column -> encoding, in the order of their names.
        rows: for each sample the encoded values, in the order of the columns.

    Raises:
        DataError: the shard would have 4 GiB or more, which its offsets cannot represent.
    """
    sizes = [SIZES.get(encoding) for encoding in columns.values()]
    facts = {
        "column_encodings": list(columns.values()), "column_names": list(columns), "column_sizes": sizes,
        "compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2,
    }  # fmt: skip
    config = json.dumps(facts, sort_keys=True).encode()
    samples = [_sample(sizes, row) for row in rows]
    lengths = np.asarray([len(sample) for sample in samples], np.int64)
    offsets = 4 + 4 * (len(rows) + 1) + len(config) + bounds_of(lengths)
    if offsets[-1] > _MOST:
        raise DataError(
            f"the shard would have {int(offsets[-1]):,} bytes, more than the maximum of MDS, {_MOST:,}",
            file=store.locate(path),
            kind="too-large",
            fix="Write smaller shards: --max-shard-size 64MB.",
        )
    with store.write(path) as file:
        file.write(struct.pack("<I", len(rows)))
        file.write(offsets.astype("<u4").tobytes())
        file.write(config)
        file.writelines(samples)
    raw = {"basename": path, "bytes": int(offsets[-1]), "hashes": {}}
    return {**facts, "samples": len(rows), "raw_data": raw, "zip_data": None}


def _sample(sizes: Sequence[int | None], row: Sequence[bytes]) -> bytes:
    heads = [len(value).to_bytes(4, "little") for value, size in zip(row, sizes, strict=True) if size is None]
    return b"".join([*heads, *row])


def write_index(store: Store, shards: Sequence[Mapping[str, Any]]) -> None:
    """Write ``index.json``, which makes the folder a dataset."""
    store.write_bytes(INDEX, orjson.dumps({"shards": list(shards), "version": 2}, option=orjson.OPT_SORT_KEYS))


class MdsWriter(ColumnWriter):
    """Writer of MDS shards and their index."""

    forms: ClassVar[Forms] = Forms(
        kinds={
            "text": "str", "int": "int", "float": "float64", "decimal": "str_decimal", "bytes": "bytes", "jpeg": "jpeg",
            "png": "png", "list:jpeg": "list[jpeg]", "list:png": "list[png]",
        },
        array=lambda dtype, _: "ndarray" if dtype.name in _CODES else "",
        text="str",
        bytes="bytes",
        media="bytes",
        exact=frozenset({"bytes", "jpeg", "png"}),
    )  # fmt: skip
    index: ClassVar[str] = INDEX

    def encode(self, form: str, value: Any) -> bytes:
        """See `ColumnWriter`."""
        return ENCODERS[form](value)

    def write(self, store: Store, path: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Any:
        """See `ColumnWriter`."""
        return write_shard(store, path, columns, rows)

    def finish(self, store: Store, shards: Sequence[Any]) -> None:
        """See `ColumnWriter`."""
        write_index(store, shards)


WRITER = MdsWriter()
