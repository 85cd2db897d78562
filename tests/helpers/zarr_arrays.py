"""Arrays of Zarr 3 and caches of Levanter, written without a Zarr library; for tests."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oracles.crc32c import crc32c

ABSENT = 2**64 - 1


def blosc(data: bytes, width: int, block: int | None = None, compressor: str = "lz4") -> bytes:
    """A container of shuffled blocks, each one stream, or of data as they are."""

    def head(flags: int, size: int) -> bytes:
        return bytes([2, 1, flags, width]) + np.array([len(data), block or len(data), size], "<u4").tobytes()

    if compressor == "stored":
        return head(2, 16 + len(data)) + data
    code = {"lz4": 1, "zlib": 3, "zstd": 4}[compressor]
    streams = []
    for at in range(0, len(data), block or len(data)):
        part = np.frombuffer(data[at : at + (block or len(data))], np.uint8)
        whole = len(part) // width * width
        shuffled = part[:whole].reshape(-1, width).T.tobytes() + part[whole:].tobytes()
        packed = _packed(shuffled, compressor)
        packed = packed if len(packed) < len(shuffled) else shuffled
        streams.append(len(packed).to_bytes(4, "little") + packed)
    begins = 16 + 4 * len(streams) + np.cumsum([0, *map(len, streams)])
    body = begins[:-1].astype("<i4").tobytes() + b"".join(streams)
    return head(1 | 16 | code << 5, 16 + len(body)) + body


def _packed(data: bytes, compressor: str) -> bytes:
    if compressor == "zlib":
        return zlib.compress(data)
    import pyarrow

    name = "lz4_raw" if compressor == "lz4" else "zstd"
    return bytes(pyarrow.Codec(name).compress(data, asbytes=True))


def crc(data: bytes) -> bytes:
    """Data with their checksum behind them."""
    return data + crc32c(data).to_bytes(4, "little")


def write_array(
    folder: Path,
    numbers: Sequence[int] | np.ndarray[Any, Any],
    dtype: str = "int32",
    *,
    chunk: int = 8,
    per_file: int | None = 4,
    codecs: Sequence[str] = ("blosc",),
    order: str = "little",
    at_end: bool = True,
    separator: str = "/",
    fill: int = 0,
    length: int = 2**54,
) -> None:
    """Write an array; chunks of fill values are not written, as tensorstore does. Without `per_file`, not sharded."""
    kind = np.dtype(dtype).newbyteorder("<" if order == "little" else ">")
    named: list[Any] = [{"name": "bytes", "configuration": {"endian": order}}]
    named += [{"name": name, "configuration": {}} for name in codecs]
    stored = chunk * (per_file or 1)
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    sharding = {"chunk_shape": [chunk], "codecs": named, "index_codecs": index}
    sharding |= {} if at_end else {"index_location": "start"}
    meta = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [length],
        "data_type": dtype,
        "fill_value": fill,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [stored]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}] if per_file else named,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(meta))
    whole = np.full(-(-len(numbers) // stored) * stored, fill, kind)
    whole[: len(numbers)] = numbers
    for file, part in enumerate(whole.reshape(-1, stored)):
        chunks = [None if (one == fill).all() else _encoded(one, codecs) for one in part.reshape(-1, chunk)]
        path = folder / f"c{separator}{file}"
        path.parent.mkdir(exist_ok=True)
        if not per_file:
            path.write_bytes(_encoded(part, codecs))
        elif any(one is not None for one in chunks):
            path.write_bytes(_sharded(chunks, at_end))


def _encoded(numbers: np.ndarray[Any, Any], codecs: Sequence[str]) -> bytes:
    data = numbers.tobytes()
    for name in codecs:
        if name == "blosc":
            data = blosc(data, numbers.itemsize)
        elif name == "crc32c":
            data = crc(data)
        else:
            data = gzip.compress(data) if name == "gzip" else _packed(data, name)
    return data


def _sharded(chunks: Sequence[bytes | None], at_end: bool) -> bytes:
    at = 0 if at_end else 16 * len(chunks) + 4
    index = []
    for one in chunks:
        index += [ABSENT, ABSENT] if one is None else [at, len(one)]
        at += len(one or b"")
    table, body = crc(np.array(index, "<u8").tobytes()), b"".join(filter(None, chunks))
    return body + table if at_end else table + body


def write_field(folder: Path, rows: Sequence[Sequence[int]], dtype: str = "int32", **options: Any) -> None:
    """Write a field of a cache: its data, and where its rows end."""
    flat = np.concatenate([np.zeros(0, np.int64), *(np.asarray(row, np.int64) for row in rows)])
    write_array(folder / "data", flat, dtype, **options)
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    options = {name: value for name, value in options.items() if name in ("chunk", "per_file", "codecs")}
    write_array(folder / "offsets", [len(rows), *ends], "int64", **options)


def write_ledger(folder: Path, rows: int, *, finished: bool = True, **metadata: Any) -> None:
    """Write the ledger of a cache."""
    ledger = {
        "total_num_rows": rows,
        "shard_rows": {"a": rows},
        "is_finished": finished,
        "finished_shards": ["a"] if finished else [],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": metadata},
    }
    (folder / "shard_ledger.json").write_text(json.dumps(ledger))


def write_cache(folder: Path, rows: Sequence[Sequence[int]], **options: Any) -> Path:
    """Write a cache with tokens alone; `options` are of `write_array`."""
    write_field(folder / "input_ids", rows, **options)
    write_ledger(folder, len(rows), tokenizer="gpt2")
    return folder
