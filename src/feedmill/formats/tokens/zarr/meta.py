"""``zarr.json`` of an array (Zarr version 3): its type, its chunks, and their codecs.

A codec turns the stored bytes of a chunk into the bytes of its numbers, every size and checksum compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.objects import read_object
from feedmill.formats.tokens.zarr.blosc import unpack
from feedmill.kernels.hashing.crc32c import crc32c
from feedmill.storage import Store
from feedmill.storage.codec import inflate, unzstd
from feedmill.storage.reasons import copy_again

NAME = "zarr.json"
SHARDED = "sharding_indexed"
_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_KNOWN = {"zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"}
CRC = "crc32c"
_CRC_BYTES = 4


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
    content = read_object(store, path, kind="bad-index", fix=copy_again("the folder"))
    try:
        return _parsed(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"this array cannot be read: {what}",
            file=store.locate(path),
            kind="bad-index",
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


def _checked(data: memoryview, size: int | None) -> memoryview:  # noqa: ARG001 - as the other decoders
    """Return what is before a checksum."""
    body = data[:-_CRC_BYTES]
    expected = int.from_bytes(data[-_CRC_BYTES:], "little")
    if len(data) < _CRC_BYTES or crc32c(body) != expected:
        raise ValueError("its checksum (CRC-32C) differs from its content")
    return body


_DECODERS: dict[str, Callable[[memoryview, Any], Any]] = {
    CRC: _checked,
    "blosc": unpack,
    "gzip": lambda data, size: inflate(data, size, gzip=True),
    "zstd": unzstd,
}


class Pipeline(NamedTuple):
    """The codecs of a chunk.

    Attributes:
        order: byte order of its numbers, ``<`` or ``>``.
        steps: names of the codecs that turned their bytes into the stored bytes, in the order of writing.
    """

    order: Literal["<", ">"]
    steps: tuple[str, ...]

    @property
    def overhead(self) -> int | None:
        """Return by how many bytes the stored bytes exceed the numbers'; None if that depends on the content."""
        return _CRC_BYTES * len(self.steps) if set(self.steps) <= {CRC} else None

    def decode(self, data: bytes, size: int) -> Any:
        """Return the bytes of the numbers, an object of `size` bytes.

        Raises:
            ValueError: the data are corrupt, truncated, or of another size.
        """
        sizes: list[int | None] = [size]
        for step in self.steps:
            before = sizes[-1]
            sizes.append(before + _CRC_BYTES if step == CRC and before is not None else None)
        found: Any = memoryview(data)
        for step, before in zip(reversed(self.steps), reversed(sizes[:-1]), strict=True):
            found = memoryview(_DECODERS[step](found, before)).cast("B")
        if len(found) != size:
            raise ValueError(f"expected {size:,} bytes, found {len(found):,}")
        return found


def pipeline_of(codecs: Sequence[Any], dtype: np.dtype[Any]) -> Pipeline:
    """Return the codecs of an array's metadata.

    Raises:
        ValueError: they are not what Zarr's specification allows, or unsupported; the message names them.
    """
    named = [(name_of(codec), configuration_of(codec)) for codec in codecs]
    while named and named[0][0] == "transpose" and named[0][1].get("order") in ([0], "C", "F"):
        named.pop(0)  # an array of one dimension stays as it is
    if not named or named[0][0] != "bytes":
        raise ValueError(f"its first codec is {named[0][0] if named else 'missing'}, expected bytes")
    endian = named[0][1].get("endian", "little" if dtype.itemsize == 1 else None)
    if endian not in ("little", "big"):
        raise ValueError(f"the codec bytes has the byte order {endian!r}, expected little or big")
    steps = tuple(name for name, _ in named[1:])
    wrong = [name for name in steps if name not in _DECODERS]
    if wrong:
        raise ValueError(f"the codec {wrong[0]} is unsupported, expected {', '.join(_DECODERS)} or sharding_indexed")
    if sum(step != CRC for step in steps) > 1:
        raise ValueError(f"its chunks are compressed twice ({', '.join(steps)})")
    return Pipeline("<" if endian == "little" else ">", steps)


def name_of(extension: Any) -> str:
    """Return the name of a codec, grid or encoding, which is given alone or in an object. Raises `ValueError`."""
    name = extension.get("name") if isinstance(extension, dict) else extension
    if not isinstance(name, str):
        raise ValueError(f"{str(extension)[:80]} has no name")
    return name


def configuration_of(extension: Any) -> dict[str, Any]:
    """Return the configuration of a codec, grid or encoding; empty by default. Raises `ValueError`."""
    found = extension.get("configuration", {}) if isinstance(extension, dict) else {}
    if not isinstance(found, dict):
        raise ValueError(f"the configuration of {name_of(extension)} is not an object")
    return found
