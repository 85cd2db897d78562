"""Read MosaicML's streaming shards (MDS).

Layout::

    index.json              {"version": 2, "shards": [{"format": "mds", "samples": 8, "column_names": [...],
                            "column_encodings": [...], "column_sizes": [null, 8, ...], "compression": null,
                            "raw_data": {"basename": ..., "bytes": ..., "hashes": {}}, "zip_data": null}, ...]}
    shard.00000.mds         u32 samples, u32[samples + 1] offsets from the beginning of the file, a description as JSON,
                            the samples; all little endian. One sample: u32 size of each column without a fixed size,
                            then the columns one after another.
    shard.00000.mds.zstd    the same, compressed as a whole (zstd, gz, bz2; with pyarrow also snappy and brotli)

A compressed shard is decompressed into memory when it is
first read, and cached up to `CACHE_BYTES`. Keys are sample numbers.

Rejected: shards of other formats (json, csv), names that lead out of the folder, and shards whose
size or count differs from the index. Values of pickled columns require trust; their bytes can always be read.

The encodings of MDS columns: how the bytes of a column are decoded.

bytes, str, json                    bytes; text and JSON in UTF-8
int                                 int64
uint8 ... int64, float16 ... 64     one number, little endian
str_int, str_float, str_decimal     a number as text: int, float, `decimal.Decimal`
ndarray                             [type: 1 byte] [axes << 2 | log2 of the bytes of an axis: 1] [axes] values
ndarray:TYPE, ndarray:TYPE:2,3      the same without the type; without type and axes
pil                                 u32 width, height, length of the mode; the mode; pixels: an array [H, W, C]
jpeg, png                           the encoded image, decoded as images are
list[jpeg], list[png], list[pil]    u32 unused, number, sizes; then the images
jpegarray, jpeg_array               u32 number, sizes; then the images
pkl                                 a pickle: bytes, unless the user trusts the data
"""

from __future__ import annotations

import bz2
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.format import OpenRequest
from feedmill.formats.objects import read_object
from feedmill.formats.offsets import Int64s, read_record, read_records
from feedmill.formats.rows import PICKLED, BlockCache, RowsDataset
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store
from feedmill.storage.codec import GZIP, ZSTD, read_within, unpacked
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.reasons import copy_again

INDEX = "index.json"
CACHE_BYTES = 512 << 20
"""Maximum bytes of decompressed shards cached by an open dataset."""

_MOST = 1 << 32
"""Maximum number of samples and bytes of a shard, because offsets are u32."""
_ARROW = {"snappy": "snappy", "br": "brotli"}
"""Compressions that pyarrow undoes, by MDSWriter's names, with pyarrow's."""
"""Compressions that pyarrow decompresses."""
_AGAIN = copy_again("the dataset", "rewrite it with MDSWriter")


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of the index: the stored file, its size, its compression, and the size of the raw file."""

    path: str
    bytes: int
    compression: str
    raw_bytes: int
    samples: int
    hashes: Mapping[str, str]
    columns: tuple[Column, ...]


def is_mds(store: Store) -> bool:
    """Return whether the folder's ``index.json`` is an index of streaming shards."""
    if not store.exists(INDEX):
        return False
    head = store.read(INDEX, 0, min(4096, store.stat(INDEX).size))
    return b'"shards"' in head and (b'"column_encodings"' in head or b'"raw_data"' in head)


class MdsDataset(RowsDataset):
    """The samples of streaming shards, by number."""

    format: ClassVar[str] = "mds"

    def __init__(self, store: Store, shards: Sequence[Shard], *, name: str) -> None:
        counts = np.asarray([shard.samples for shard in shards], np.int64)
        super().__init__(store, name=name, files=[shard.path for shard in shards], counts=counts)
        self.shards = list(shards)
        self._offsets: dict[int, Int64s] = {}
        self._raw = BlockCache(CACHE_BYTES)
        self.suffixes = {c.name: c.suffix for shard in shards[:1] for c in shard.columns if c.suffix}

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        shard = self.shards[file]
        offsets = self._shard_offsets(file)
        begins, ends = offsets[local], offsets[local + 1]
        if shard.compression:
            raw = self._unpacked(file)
            blocks = [raw[b:e] for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
        else:
            blocks = read_records(self.store, shard.path, begins, ends)
        return [self._values(shard, begin, block) for begin, block in zip(begins.tolist(), blocks, strict=True)]

    def _row(self, file: int, local: int) -> dict[str, Any]:
        shard = self.shards[file]
        if shard.compression:
            return super()._row(file, local)
        return self._values(shard, *read_record(self.store, shard.path, self._shard_offsets(file), local))

    def _values(self, shard: Shard, begin: int, block: bytes) -> dict[str, Any]:
        """Return the values of a sample at an offset. Raises `DataError`."""
        try:
            return _row(shard.columns, block)
        except (ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
            raise DataError(
                f"the sample cannot be read ({error})",
                file=self.store.locate(shard.path),
                offset=begin,
                kind="bad-part",
                fix=_AGAIN,
            ) from None

    def _load(self, files: Sequence[int]) -> None:
        missing = [n for n in files if n not in self._offsets and not self.shards[n].compression]
        if len(missing) > 1:
            for _ in ordered_map(self._shard_offsets, missing, workers=min(64, len(missing)), in_flight=128):
                pass

    def _ranges(self, file: int, local: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        shard, which = self.shards[file], np.arange(len(local))
        if not shard.compression:
            offsets = self._shard_offsets(file)
            return which, offsets[local], offsets[local + 1]
        if file in self._raw:
            which = which[:0]
        return which, np.zeros(len(which), np.int64), np.full(len(which), shard.bytes, np.int64)

    def _shard_offsets(self, file: int) -> Int64s:
        known = self._offsets.get(file)
        if known is not None:
            return known
        shard = self.shards[file]
        size = 8 + 4 * shard.samples
        head = (
            self._unpacked(file)[:size]
            if shard.compression
            else self.store.read(shard.path, 0, min(size, shard.raw_bytes))
        )
        numbers = np.frombuffer(head[: len(head) // 4 * 4], "<u4").astype(np.int64)
        where = self.store.locate(shard.path)
        if not len(numbers) or numbers[0] != shard.samples:
            found = int(numbers[0]) if len(numbers) else 0
            raise DataError(
                f"the shard has {found} samples, but {INDEX} has {shard.samples}",
                file=where,
                kind="wrong-count",
                fix=_AGAIN,
            )
        offsets = numbers[1:]
        if (
            len(offsets) != shard.samples + 1
            or offsets[0] < size
            or offsets[-1] != shard.raw_bytes
            or (np.diff(offsets) < 0).any()
        ):
            raise DataError("invalid offsets in the shard's header", file=where, kind="bad-header", fix=_AGAIN)
        self._offsets[file] = offsets
        return offsets

    def _unpacked(self, file: int) -> bytes:
        raw: bytes = self._raw.get(file, lambda: _unpack(self.store, self.shards[file]))
        return raw

    def _extent(self, file: int, local: int) -> tuple[int, int]:
        shard = self.shards[file]
        if shard.compression:
            return 0, shard.bytes
        begin, end = self._shard_offsets(file)[local : local + 2].tolist()
        return begin, end - begin

    def _find_costs(self, by: str) -> Int64s | None:
        if by != "bytes" or any(shard.compression for shard in self.shards):  # samples have no stored size
            return None
        threads = 0 if self.store.is_local else 16
        offsets = ordered_map(self._shard_offsets, range(len(self.shards)), workers=threads, in_flight=64)
        return np.concatenate([np.zeros(0, np.int64), *map(np.diff, offsets)])

    def costs_advice(self, by: str) -> str:
        if by != "bytes":
            return super().costs_advice(by)
        return "Its shards are compressed as a whole, so samples have no stored size. Decompress the shards."

    def _file_hash(self, file: int) -> str:
        shard = self.shards[file]
        columns = [f"{c.name}:{c.encoding}" for c in shard.columns]
        return f"{shard.bytes} {shard.raw_bytes} {sorted(shard.hashes.items())} {columns}"

    def verify(self) -> Sequence[FeedmillError]:
        """Compare the headers of all shards with the index, and their bytes with its hashes."""
        findings: list[FeedmillError] = []
        for number, shard in enumerate(self.shards):
            try:
                self._shard_offsets(number)
                findings += _wrong_hashes(self.store, shard)
            except FeedmillError as error:
                findings.append(error)
        return findings

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`; ``columns`` maps each column to its encoding."""
        columns = {c.name: c.encoding for shard in self.shards[:1] for c in shard.columns}
        return {**super().describe(), "columns": columns}


def _row(columns: Sequence[Column], block: bytes) -> dict[str, Any]:
    """Return the values of one sample."""
    at = 0
    head = 4 * sum(c.size is None for c in columns)
    if head > len(block):
        raise ValueError(f"its {len(block)} bytes are too few")
    out = {}
    data = head
    for c in columns:
        if c.size is None:
            size = int.from_bytes(block[at : at + 4], "little")
            at += 4
        else:
            size = c.size
        if data + size > len(block):
            raise ValueError(f"the column {c.name!r} is longer than the sample")
        out[c.name] = c.decode(block[data : data + size])
        data += size
    if data != len(block):
        raise ValueError(f"{len(block) - data} bytes are left over")
    return out


def _unpack(store: Store, shard: Shard) -> tuple[bytes, int]:
    where = store.locate(shard.path)
    packed = store.read(shard.path)
    limit = max_unpacked(len(packed))
    if shard.raw_bytes > limit:
        raise too_large(limit, file=where)
    if shard.compression in _ARROW:
        raw = _by_arrow(packed, shard.compression, limit, where)
    elif shard.compression == "bz2":
        try:
            with bz2.open(io.BytesIO(packed)) as stream:
                raw = read_within(cast(BinaryIO, stream), limit, file=where)
        except (OSError, EOFError) as error:
            raise _undone(error, where) from None
    else:
        with unpacked(io.BytesIO(packed), ZSTD if shard.compression == "zstd" else GZIP, file=where) as stream:
            raw = read_within(stream, limit, file=where)
    if len(raw) != shard.raw_bytes:
        raise DataError(
            f"the decompressed shard does not have the {shard.raw_bytes} bytes of {INDEX}",
            file=where,
            kind="wrong-count",
            fix=_AGAIN,
        )
    return raw, len(raw)


def _by_arrow(packed: bytes, compression: str, limit: int, where: str) -> bytes:
    """Return the bytes of a shard that pyarrow decompresses. Raises `MissingExtra` without it."""
    pyarrow = load_pyarrow(f"MDS shards compressed with {compression}")
    try:
        if compression == "br":
            with pyarrow.CompressedInputStream(pyarrow.py_buffer(packed), _ARROW[compression]) as stream:
                return read_within(cast(BinaryIO, stream), limit, file=where)
        size = sum((byte & 127) << 7 * n for n, byte in enumerate(packed[: _snappy_head(packed)]))
        if size > limit:
            raise too_large(limit, file=where)
        raw: bytes = pyarrow.decompress(packed, size, compression, asbytes=True)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, FeedmillError):
            raise
        raise _undone(error, where) from None
    return raw


def _snappy_head(packed: bytes) -> int:
    """Return the bytes of the length with which snappy's data begins: 7 bits each, the last below 128."""
    return next((n + 1 for n, byte in enumerate(packed[:5]) if byte < 128), 0)


def _undone(error: Exception, where: str) -> DataError:
    return DataError(f"the compressed shard is damaged ({error})", file=where, kind="bad-compression", fix=_AGAIN)


def _wrong_hashes(store: Store, shard: Shard) -> Iterator[FeedmillError]:
    import hashlib

    import xxhash

    data = store.read(shard.path) if shard.hashes else b""
    for name, expected in shard.hashes.items():
        if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
            found = hashlib.new(name, data, usedforsecurity=False).hexdigest()
        elif name in ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"):
            found = getattr(xxhash, name)(data).hexdigest()
        else:
            continue
        if found != expected:
            yield DataError(
                f"its {name} differs from {INDEX}", file=store.locate(shard.path), kind="hash-mismatch", fix=_AGAIN
            )


def open_mds(store: Store, url: str) -> MdsDataset:
    """Open a folder of streaming shards. Raises `NotFound`, `DataError`, `ConfigError`."""
    content = read_object(store, INDEX, kind="bad-index", fix=_AGAIN)
    listed = content.get("shards")
    if not isinstance(listed, list):
        raise _bad(store.locate(INDEX), "expected 'shards'")
    if content.get("version") != 2:
        raise DataError(
            f"the index has the version {content.get('version')!r}, expected version 2",
            file=store.locate(INDEX),
            kind="unsupported",
            fix="Write the dataset with another release of MDSWriter.",
        )
    sizes = _sizes(store, listed)
    shards = [_shard(store, item, number, sizes) for number, item in enumerate(listed)]
    return MdsDataset(store, [shard for shard in shards if shard.samples], name=url)


def _sizes(store: Store, listed: Sequence[Any]) -> dict[str, int]:
    """Return the sizes of those files of an index that exist. What is wrong with the index is reported by `_shard`."""
    files = [item.get(form) for item in listed if isinstance(item, dict) for form in ("raw_data", "zip_data")]
    names = [file["basename"] for file in files if isinstance(file, dict) and isinstance(file.get("basename"), str)]
    paths = list(dict.fromkeys(filter(None, names)))
    return {entry.path: entry.size for entry in store.entries(paths) if entry is not None}


def _shard(store: Store, item: Any, number: int, sizes: Mapping[str, int]) -> Shard:
    where = store.locate(INDEX)
    try:
        if item["format"] != "mds":
            raise ConfigError(
                f"shard {number} has the unsupported format {item['format']!r}: expected mds",
                file=where,
                kind="unsupported",
                fix="Write it with MDSWriter, or open JSON lines as .jsonl.",
            )
        parts = zip(item["column_names"], item["column_encodings"], item["column_sizes"], strict=True)
        columns = tuple(column(name, encoding, size, where) for name, encoding, size in parts)
        raw, zipped = item["raw_data"], item.get("zip_data")
        samples, raw_bytes = int(item["samples"]), int(raw["bytes"])
        compression = str(item.get("compression") or "").partition(":")[0]
        if zipped is None or store.check_path(raw["basename"]) in sizes:
            stored, compression = raw, ""
        else:
            stored = zipped
        path, size = store.check_path(str(stored["basename"])), int(stored["bytes"])
        hashes = {str(k): str(v) for k, v in (stored.get("hashes") or {}).items()}
        if not 0 <= samples < _MOST or not 0 <= raw_bytes < _MOST:
            raise ValueError(f"{samples} samples in {raw_bytes} bytes")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _bad(where, f"shard {number}: {type(error).__name__} {error}") from None
    if compression not in ("", "zstd", "gz", "bz2", *_ARROW):
        raise ConfigError(
            f"shard {number} has the unsupported compression {compression!r}: expected zstd, gz, bz2, snappy or br",
            file=where,
            kind="unsupported",
            fix="Write the dataset with one of these, or decompress its shards.",
        )
    _check_file(store, path, size, sizes)
    return Shard(path, size, compression, raw_bytes, samples, hashes, columns)


def _check_file(store: Store, path: str, size: int, sizes: Mapping[str, int]) -> None:
    if path not in sizes:
        raise NotFound(
            f"{INDEX} lists this shard, but it is missing", file=store.locate(path), kind="missing-shard", fix=_AGAIN
        )
    if sizes[path] != size:
        raise DataError(
            f"the shard has {sizes[path]} bytes, but {INDEX} has {size}",
            file=store.locate(path),
            kind="wrong-count",
            fix=_AGAIN,
        )


def _bad(where: str, why: str) -> DataError:
    return DataError(f"invalid index ({why})", file=where, kind="bad-index", fix=_AGAIN)


def open_found(wanted: OpenRequest) -> MdsDataset:
    """See `open_mds`."""
    return open_mds(wanted.store, wanted.url)


def mark(store: Store) -> str | None:
    """Return a mark if a folder has streaming shards, else None."""
    return "" if is_mds(store) else None


_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_AXES = ("<u1", "<u2", "<u4", "<u8")
_MODES = {
    "L": ("u1", 1), "P": ("u1", 1), "LA": ("u1", 2), "PA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3),
    "LAB": ("u1", 3), "HSV": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I": ("<i4", 1),
    "F": ("<f4", 1), "I;16": ("<u2", 1), "I;16L": ("<u2", 1), "I;16B": (">u2", 1), "I;16N": ("u2", 1),
    "La": ("u1", 2), "RGBa": ("u1", 4),
}  # fmt: skip


class Column(NamedTuple):
    """One column: its fixed size in bytes or None, its decoder, and the suffix by which bytes values are decoded."""

    name: str
    encoding: str
    size: int | None
    decode: Callable[[bytes], Any]
    suffix: str = ""


def column(name: Any, encoding: Any, size: Any, where: str) -> Column:
    """Return the column of this name, encoding and fixed size.

    Raises:
        ConfigError: the encoding is unknown.
        ValueError: the size does not match the encoding.
    """
    if not isinstance(name, str) or not isinstance(encoding, str):
        raise ValueError("names and encodings must be text")
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"the size {size!r} of {name!r}")
    kind, _, rest = encoding.partition(":")
    decode, suffix = _reader(kind, rest)
    if decode is None:
        raise ConfigError(
            f"the column {name!r} has the unknown encoding {encoding!r}",
            file=where,
            record=name,
            kind="unsupported",
            fix="Write the dataset with one of MDS's own encodings.",
        )
    return Column(name, encoding, size, decode, suffix)


def _reader(kind: str, rest: str) -> tuple[Callable[[bytes], Any] | None, str]:
    if kind == "ndarray":
        return _ndarray_reader(rest), ""
    if kind in _DTYPES.values():
        return partial(_decode_number, np.dtype(kind).newbyteorder("<")), ""
    if kind in ("list[jpeg]", "list[png]"):
        return partial(_pieces, 4), "jpg" if "jpeg" in kind else "png"
    if kind == "list[pil]":
        return _pil_list, ""
    return _READERS.get(kind, (None, ""))


def _same(data: bytes) -> bytes:
    return data


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _decode_number(dtype: np.dtype[Any], data: bytes) -> Any:
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are not a value of {dtype}")
    return np.frombuffer(data, dtype)[0].item()


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except InvalidOperation:
        raise ValueError(f"{data[:40]!r} is not a number") from None


def _ndarray_reader(rest: str) -> Callable[[bytes], Any] | None:
    dtype, _, shape = rest.partition(":")
    if dtype and dtype not in _DTYPES.values():
        return None
    try:
        axes = tuple(map(int, shape.split(","))) if shape else None
    except ValueError:
        return None
    if axes is not None and min(axes) < 0:
        return None
    return partial(_ndarray, dtype or None, axes)


def _ndarray(dtype: str | None, shape: tuple[int, ...] | None, data: bytes) -> npt.NDArray[Any]:
    at = 0
    if dtype is None:
        if data[0] not in _DTYPES:
            raise ValueError(f"{data[0]} is not an array type")
        dtype, at = _DTYPES[data[0]], 1
    if shape is None:
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, _AXES[data[at] & 3], axes, at + 1).tolist())
        at += 1 + axes * width
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), -1, at).reshape(shape).copy()


def _pil(data: bytes) -> npt.NDArray[Any]:
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii", "replace")
    if mode == "1":
        bits = np.frombuffer(data, np.uint8, -1, 12 + length).reshape(height, -(-width // 8))
        return np.unpackbits(bits, axis=1, count=width).astype(bool)
    if mode not in _MODES:
        raise ValueError(f"unknown image mode {mode!r}")
    dtype, channels = _MODES[mode]
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(data, dtype, -1, 12 + length).reshape(shape).copy()


def _pieces(skip: int, data: bytes) -> list[bytes]:
    (count,) = np.frombuffer(data, "<u4", 1, skip).tolist()
    sizes = np.frombuffer(data, "<u4", count, skip + 4).astype(np.int64)
    ends = skip + 4 + 4 * count + np.cumsum(sizes)
    if count and ends[-1] != len(data):
        raise ValueError(f"the sizes of {count} images do not add up to their bytes")
    return [data[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def _pil_list(data: bytes) -> list[Any]:
    return [_pil(piece) for piece in _pieces(4, data)]


_READERS: dict[str, tuple[Callable[[bytes], Any], str]] = {
    "bytes": (_same, ""),
    "str": (_text, ""),
    "int": (partial(_decode_number, np.dtype("<i8")), ""),
    "json": (json.loads, ""),
    "str_int": (int, ""),
    "str_float": (float, ""),
    "str_decimal": (_decimal, ""),
    "pil": (_pil, ""),
    "jpeg": (_same, "jpg"),
    "png": (_same, "png"),
    "jpegarray": (partial(_pieces, 0), "jpg"),
    "jpeg_array": (partial(_pieces, 0), "jpg"),
    PICKLED: (_same, PICKLED),
}
