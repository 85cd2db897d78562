"""``zarr.json`` of an array (Zarr version 3): its type, its chunks, and their codecs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.objects import read_object
from feedmill.formats.tokens.zarr.codecs import Pipeline, configuration_of, name_of, pipeline_of
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

NAME = "zarr.json"
SHARDED = "sharding_indexed"
_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_KNOWN = {"zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"}
_KNOWN |= {"attributes", "dimension_names", "storage_transformers"}
_LARGEST = 1 << 28
"""Bytes of a chunk that is decoded at once, and of an index of a shard: memory is allocated for them."""
_INDEX = np.dtype("u8")


class ZarrMeta(NamedTuple):
    """An array of one dimension.

    Attributes:
        dtype: type of its numbers, in native byte order.
        length: numbers of the array, most of which may never have been written.
        stored: numbers per stored file.
        chunk: numbers per chunk that is decoded at once, of which a file has one or more.
        pipeline: codecs of a chunk.
        table: codecs of the index of a file's chunks; None if a file is one chunk.
        at_end: whether that index is at the end of the file.
        fill: value of numbers that were never written.
        key: pattern of the path of a file, with its number.
    """

    dtype: np.dtype[Any]
    length: int
    stored: int
    chunk: int
    pipeline: Pipeline
    table: Pipeline | None
    at_end: bool
    fill: int
    key: str

    @property
    def per_file(self) -> int:
        """Number of chunks per file."""
        return self.stored // self.chunk


def read_meta(store: Store, folder: str) -> ZarrMeta:
    """Read the metadata of the array in a folder.

    Raises:
        NotFound: there is no ``zarr.json``.
        DataError: it is no metadata of an array of integers of one dimension, or has something unsupported.
    """
    path = f"{folder}/{NAME}"
    found = read_object(store, path, kind="bad-zarr", fix=copy_again("the folder"))
    try:
        return _parsed(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"this array cannot be read: {what}",
            file=store.locate(path),
            kind="bad-zarr",
            fix="Write it again with the codecs of Levanter's own writer.",
        ) from None


def _parsed(found: dict[str, Any]) -> ZarrMeta:
    if found.get("zarr_format") != 3 or found.get("node_type") != "array":
        raise ValueError(f"expected an array of Zarr 3, found {found.get('node_type')!r} of {found.get('zarr_format')}")
    for name in found.keys() - _KNOWN:
        if not (isinstance(found[name], dict) and found[name].get("must_understand") is False):
            raise ValueError(f"the field {str(name)[:80]!r} is unknown")
    if found.get("storage_transformers"):
        raise ValueError("storage_transformers are unsupported")
    kind, fill = found["data_type"], found["fill_value"]
    if kind not in _TYPES:
        raise ValueError(f"its type is {str(kind)[:80]}, expected integers")
    dtype = np.dtype(kind)
    if isinstance(fill, bool) or not isinstance(fill, int) or not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        raise ValueError(f"its fill value {str(fill)[:80]} is no {kind}")
    length = _single(found["shape"], "shape", least=0)
    if name_of(found["chunk_grid"]) != "regular":
        raise ValueError(f"its chunk grid is {name_of(found['chunk_grid'])}, expected regular")
    stored = chunk = _single(configuration_of(found["chunk_grid"])["chunk_shape"], "chunk_shape")
    codecs, index, at_end = found["codecs"], None, True
    if not isinstance(codecs, list) or not codecs:
        raise ValueError("it has no list of codecs")
    if name_of(codecs[0]) == SHARDED:
        if len(codecs) > 1:
            raise ValueError(f"the codec {name_of(codecs[1])} after {SHARDED} is unsupported")
        sharding = configuration_of(codecs[0])
        chunk, codecs = _single(sharding["chunk_shape"], "chunk_shape"), sharding["codecs"]
        index = pipeline_of(sharding["index_codecs"], _INDEX)
        place = sharding.get("index_location", "end")
        if stored % chunk or place not in ("start", "end") or index.overhead is None:
            raise ValueError(f"its chunks of {stored} have parts of {chunk}, and a compressed index or one at {place}")
        at_end = place == "end"
        if stored // chunk * 2 * _INDEX.itemsize > _LARGEST:
            raise ValueError(f"a file has {stored // chunk:,} chunks, which is too many")
    pipeline = pipeline_of(codecs, dtype)
    if chunk * dtype.itemsize > _LARGEST:
        raise ValueError(f"a chunk has {chunk * dtype.itemsize:,} bytes, expected {_LARGEST:,} or fewer")
    key = _key(found["chunk_key_encoding"])
    return ZarrMeta(dtype, length, stored, chunk, pipeline, index, at_end, fill, key)


def _single(numbers: Any, name: str, least: int = 1) -> int:
    """Return the only number of a shape. Raises `ValueError`."""
    if not isinstance(numbers, list) or len(numbers) != 1:
        raise ValueError(f"its {name} is {str(numbers)[:80]}, expected one dimension")
    if isinstance(numbers[0], bool) or not isinstance(numbers[0], int) or not least <= numbers[0] < 1 << 63:
        raise ValueError(f"its {name} is {str(numbers)[:80]}")
    return numbers[0]


def _key(encoding: Any) -> str:
    name = name_of(encoding)
    if name not in ("default", "v2"):
        raise ValueError(f"the chunk key encoding {name} is unknown")
    separator = configuration_of(encoding).get("separator", "/" if name == "default" else ".")
    if separator not in ("/", "."):
        raise ValueError(f"the separator {separator!r} of chunk keys is unknown")
    return f"c{separator}%d" if name == "default" else "%d"
