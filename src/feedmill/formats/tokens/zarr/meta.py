"""``zarr.json`` of an array (Zarr version 3): its type, its chunks, and their codecs; and reading ranges of it.

A codec turns the stored bytes of a chunk into the bytes of its numbers, every size and checksum compared. Ranges of an
array of one dimension are read chunk by chunk, through a bounded cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.objects import read_object
from feedmill.formats.offsets import Int64s, read_records
from feedmill.formats.rows import BlockCache
from feedmill.formats.tokens.zarr.blosc import unpack
from feedmill.kernels.hashing.crc32c import crc32c
from feedmill.kernels.rows import copy_spans
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


ABSENT = -1
"""Begin of a chunk that was never written."""
_CACHE, _INDICES = 64 << 20, 16 << 20
_TOGETHER = 16
"""Chunks whose stored bytes are in memory at once."""
_AGAIN = copy_again("the folder", "write it again")


class ZarrArray:
    """An array of integers. Thread-safe.

    Args:
        store, folder: the folder with ``zarr.json``.
        sizes: bytes of the files of the store by path, so that no file needs a request for its size.
    """

    def __init__(self, store: Store, folder: str, sizes: Mapping[str, int]) -> None:
        self.store, self.folder, self.meta = store, folder, read_meta(store, folder)
        self._sizes = sizes
        self._make_caches()

    def _make_caches(self) -> None:
        self._chunks, self._indices = BlockCache(_CACHE), BlockCache(_INDICES)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_chunks", "_indices")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_caches()

    def path(self, file: int) -> str:
        """Return the path of a stored file."""
        return f"{self.folder}/{self.meta.key % file}"

    def files(self, length: int) -> list[str]:
        """Return the paths of the files of the first `length` numbers.

        Raises:
            DataError: one is missing, or the array is shorter. Zarr reads such a file as fill values, but a lost file
                and one that was never written look alike.
        """
        if length > self.meta.length:
            raise DataError(
                f"the array has {self.meta.length:,} numbers, expected {length:,}",
                file=self.store.locate(self.folder),
                kind="truncated",
                fix=_AGAIN,
            )
        paths = [self.path(file) for file in range(-(-length // self.meta.stored))]
        for number, path in enumerate(paths):
            if path not in self._sizes:
                first = number * self.meta.stored
                raise DataError(
                    f"the file is missing: the numbers from {first:,} to {min(first + self.meta.stored, length):,} of"
                    f" the array would all be {self.meta.fill}",
                    file=self.store.locate(path),
                    kind="missing-shard",
                    fix=_AGAIN,
                )
        return paths

    def read(self, first: int, stop: int) -> npt.NDArray[Any]:
        """Return the numbers ``[first, stop)``. Raises as `copy`."""
        out = np.empty(stop - first, self.meta.dtype)
        self.copy(np.array([first]), np.array([stop]), np.zeros(1, np.int64), out)
        return out

    def copy(self, first: Int64s, stop: Int64s, to: Int64s, out: npt.NDArray[Any]) -> None:
        """Copy ranges to places of an array. A chunk is decoded once for all ranges.

        Args:
            first, stop: int64[n], ranges inside the array.
            to: int64[n], where each begins in `out`.
            out: integers[m] that any number fits.

        Raises:
            DataError: a chunk is corrupt, truncated or missing.
        """
        row, chunk, begin, end = self._pieces(first, stop)
        if not len(row):
            return
        order = np.argsort(chunk, kind="stable")
        row, chunk, begin, end = row[order], chunk[order], begin[order], end[order]
        numbers, low = np.unique(chunk, return_index=True)
        high = np.append(low[1:], len(chunk))
        places = to[row] + begin - first[row]
        base = chunk * self.meta.chunk
        for number, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if number % _TOGETHER == 0:
                decoded = self.decoded(numbers[number : number + _TOGETHER])
            copy_spans(next(decoded), begin[a:b] - base[a:b], end[a:b] - begin[a:b], places[a:b], out)

    def extents(self, first: Int64s, stop: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return range number, number of the file, begin and end in it of the chunks of ranges, int64[m] each."""
        row, chunk, _, _ = self._pieces(first, stop)
        file, begin, end = self.places(chunk)
        real = begin != ABSENT
        return row[real], file[real], begin[real], end[real]

    def _pieces(self, first: Int64s, stop: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return the parts of ranges in each chunk: number of range and chunk, first number and end, int64[m] each."""
        size = self.meta.chunk
        low = first // size
        count = np.where(stop > first, (stop - 1) // size - low + 1, 0)
        row = np.repeat(np.arange(len(first)), count)
        chunk = np.arange(len(row)) + (low - np.cumsum(count) + count)[row]
        return row, chunk, np.maximum(first[row], chunk * size), np.minimum(stop[row], (chunk + 1) * size)

    def decoded(self, numbers: Int64s) -> Iterator[npt.NDArray[Any]]:
        """Yield the numbers of chunks (ascending, different), in native byte order; do not change them.

        Their stored bytes are read before the first is decoded.
        """
        missing = np.array([number not in self._chunks for number in numbers.tolist()], np.bool_)
        blocks = dict(zip(numbers[missing].tolist(), self._stored(numbers[missing]), strict=True))
        for number in numbers.tolist():
            yield self._chunks.get(number, partial(self._decode, number, blocks.pop(number, None)))

    def _stored(self, numbers: Int64s) -> list[bytes | None]:
        """Return the stored bytes of chunks; None for those that were never written."""
        file, begin, end = self.places(numbers)
        out: list[bytes | None] = [None] * len(numbers)
        for each in np.unique(file).tolist():
            rows = np.flatnonzero((file == each) & (begin != ABSENT))
            blocks = read_records(self.store, self.path(each), begin[rows], end[rows])
            for row, block in zip(rows.tolist(), blocks, strict=True):
                out[row] = block
        return out

    def _decode(self, number: int, block: bytes | None) -> tuple[npt.NDArray[Any], int]:
        """Return a chunk, and its bytes in memory."""
        meta = self.meta
        if block is None:  # also for one that another thread removed from the cache meanwhile
            block = self._stored(np.array([number]))[0]
        if block is None:
            found = np.full(meta.chunk, meta.fill, meta.dtype)
            return found, found.nbytes
        try:
            data = meta.pipeline.decode(block, meta.chunk * meta.dtype.itemsize)
        except ValueError as error:
            raise self._corrupt(number, str(error)) from None
        found = np.frombuffer(data, meta.dtype.newbyteorder(meta.pipeline.order)).astype(meta.dtype, copy=False)
        return found, found.nbytes

    def places(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the file of chunks, begin and end in it, int64[n] each; `ABSENT` for what was never written.

        Reads the indices of the files, which are kept.
        """
        file, local = np.divmod(numbers, self.meta.per_file)
        begin, end = np.full(len(file), ABSENT, np.int64), np.full(len(file), ABSENT, np.int64)
        for each in np.unique(file).tolist():
            rows = np.flatnonzero(file == each)
            index = self._indices.get(each, partial(self._load_index, each))
            begin[rows], end[rows] = index[local[rows], 0], index[local[rows], 1]
        return file, begin, end

    def _load_index(self, file: int) -> tuple[Int64s, int]:
        """Return begin and end of the chunks of a file, int64[chunks, 2], and their bytes in memory."""
        path, meta = self.path(file), self.meta
        if path not in self._sizes:
            raise DataError("the file is missing", file=self.store.locate(path), kind="missing-shard", fix=_AGAIN)
        size = self._sizes[path]
        if meta.table is None:
            return np.array([[0, size]], np.int64), 16
        body = meta.per_file * 16
        length = body + (meta.table.overhead or 0)
        if length > size:
            raise self._bad_index(path, f"the file has {size:,} bytes, its index alone has {length:,}")
        data = self.store.read(path, size - length if meta.at_end else 0, length)
        try:
            numbers = np.frombuffer(meta.table.decode(data, body), f"{meta.table.order}u8").reshape(-1, 2)
        except ValueError as error:
            raise self._bad_index(path, f"the index of its chunks is corrupt: {error}") from None
        absent = (numbers == np.iinfo(np.uint64).max).all(axis=1)
        begin, count = numbers[:, 0].astype(np.uint64), numbers[:, 1].astype(np.uint64)
        outside = ~absent & ((begin > size) | (count > size) | (begin + count > size) | (count == 0))
        if outside.any():
            number = int(np.flatnonzero(outside)[0])
            raise self._bad_index(
                path, f"its chunk {number} has {int(count[number]):,} bytes from {int(begin[number]):,}, of {size:,}"
            )
        found = np.full(numbers.shape, ABSENT, np.int64)
        found[~absent, 0], found[~absent, 1] = begin[~absent], (begin + count)[~absent]
        return found, found.nbytes

    def verify(self, length: int) -> Iterator[tuple[int, DataError | None]]:
        """Decode all chunks of the first `length` numbers: yield those that were never written, and the errors."""
        for number in range(-(-length // self.meta.chunk)):
            try:
                if self.places(np.array([number]))[1][0] == ABSENT:
                    yield number, None
                else:
                    self._decode(number, None)
            except DataError as error:
                yield number, error
                if error.kind == "bad-index":
                    return  # all other chunks of the file have the same error

    def _corrupt(self, number: int, what: str) -> DataError:
        file, local = divmod(number, self.meta.per_file)
        return DataError(
            f"the chunk {local} of {self.folder} cannot be read: {what}",
            file=self.store.locate(self.path(file)),
            record=f"chunk {local}",
            kind="bad-data",
            fix=_AGAIN,
        )

    def _bad_index(self, path: str, what: str) -> DataError:
        return DataError(f"{what} (array {self.folder})", file=self.store.locate(path), kind="bad-index", fix=_AGAIN)
