"""Arrays of Zarr 3: any sizes of chunks, files and ranges, all codecs, and damaged containers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.tokens.zarr.meta import ZarrArray, unpack
from feedmill.storage import LocalStore
from helpers.zarr_arrays import blosc, write_array

CODECS = [(), ("blosc",), ("zstd",), ("gzip",), ("crc32c",), ("blosc", "crc32c"), ("crc32c", "zstd")]


def opened(folder: Path) -> ZarrArray:
    store = LocalStore(str(folder))
    return ZarrArray(store, "a", {entry.path: entry.size for entry in store.files()})


@given(
    numbers=st.lists(st.integers(0, 200), max_size=90),
    chunk=st.integers(1, 40),
    per_file=st.one_of(st.none(), st.integers(1, 5)),
    codecs=st.sampled_from(CODECS),
    order=st.sampled_from(["little", "big"]),
    at_end=st.booleans(),
    separator=st.sampled_from("/."),
    dtype=st.sampled_from(["uint8", "int16", "int32", "uint64"]),
    seed=st.integers(0, 99),
)
def test_ranges_are_those_of_the_numbers(
    numbers: list[int], codecs: Any, dtype: str, seed: int, **options: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_array(Path(folder) / "a", numbers, dtype, codecs=codecs, fill=200, **options)
        array = opened(Path(folder))
        expected = np.array(numbers, dtype)
        ends = np.sort(np.random.default_rng(seed).integers(0, len(numbers) + 1, (6, 2)), axis=1).astype(np.int64)
        try:
            paths = array.files(len(numbers))
        except DataError as error:  # a file of fill values alone is not written
            assert error.kind == "missing-shard" and 200 in numbers
            return
        assert len(paths) == -(-len(numbers) // (options["chunk"] * (options["per_file"] or 1)))
        assert (array.read(0, len(numbers)) == expected).all()
        to = np.cumsum(ends[:, 1] - ends[:, 0]) - (ends[:, 1] - ends[:, 0])
        out = np.zeros(int((ends[:, 1] - ends[:, 0]).sum()), np.int64 if dtype != "uint64" else np.uint64)
        array.copy(ends[:, 0], ends[:, 1], to, out)
        assert (out == np.concatenate([expected[low:high] for low, high in ends.tolist()])).all()
        assert array.meta.dtype == np.dtype(dtype)


@given(
    data=st.binary(min_size=1, max_size=600),
    repeat=st.integers(1, 20),
    width=st.sampled_from([1, 2, 4, 8, 3]),
    block=st.one_of(st.none(), st.integers(1, 900)),
    compressor=st.sampled_from(["lz4", "zlib", "zstd", "stored"]),
)
def test_containers_unpack(data: bytes, repeat: int, width: int, block: int | None, compressor: str) -> None:
    whole = data * repeat
    packed = blosc(whole, width, None if block is None else min(block, len(whole)), compressor)
    assert unpack(packed, len(whole)).tobytes() == whole


@given(at=st.integers(0, 10_000), bits=st.integers(1, 255), size=st.integers(0, 10_000))
def test_damaged_containers_are_value_errors_or_other_numbers(at: int, bits: int, size: int) -> None:
    whole = np.arange(900, dtype="<i4").tobytes()
    packed = bytearray(blosc(whole, 4, 512))
    packed[at % len(packed)] ^= bits
    for data in (bytes(packed), bytes(packed)[: size % len(packed)]):
        try:
            assert len(unpack(data, len(whole))) == len(whole)
        except ValueError:
            continue


def test_streams_that_end_early_are_errors() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    short = bytes(pyarrow.Codec("lz4_raw").compress(b"a" * 90, asbytes=True))
    body = (20).to_bytes(4, "little") + len(short).to_bytes(4, "little") + short
    head = bytes([2, 1, 16 | 1 << 5, 1]) + np.array([100, 100, 16 + len(body)], "<u4").tobytes()
    with pytest.raises(ValueError, match="the LZ4 data end before 100 bytes"):
        unpack(head + body, 100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunk_grid": {"name": "rectilinear"}}, "its chunk grid is rectilinear, expected regular"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}}, r"its chunk_shape is \[0\]"),
        ({"chunk_key_encoding": "suffix"}, "the chunk key encoding suffix is unknown"),
        ({"fill_value": -1e9}, "its fill value -1000000000.0 is no int32"),
        ({"node_type": "group"}, "expected an array of Zarr 3, found 'group'"),
        ({"codecs": ["bytes"]}, "byte order None"),
        ({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, "zfp"]}, "the codec zfp is unsupported"),
        (
            {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, "gzip", "zstd"]},
            r"compressed twice \(gzip, zstd\)",
        ),
        (
            {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "chunk_grid": {
                "name": "regular", "configuration": {"chunk_shape": [1 << 40]}}},
            "a chunk has 4,398,046,511,104 bytes",
        ),
        ({"storage_transformers": ["x"]}, "storage_transformers are unsupported"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_read(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_array(tmp_path / "a", range(20))
    path = tmp_path / "a" / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FeedmillError, match=words):
        opened(tmp_path)


def test_an_index_that_points_outside_its_file(tmp_path: Path) -> None:
    from helpers.zarr_arrays import crc

    write_array(tmp_path / "a", range(1, 33))
    path = tmp_path / "a/c/0"
    data = path.read_bytes()
    index = np.frombuffer(data[-68:-4], "<u8").copy()
    index[3] = 1 << 62
    path.write_bytes(data[:-68] + crc(index.tobytes()))
    with pytest.raises(DataError, match=r"c/0: its chunk 1 has 4,611,686,018,427,387,904 bytes from \d+, of \d+"):
        opened(tmp_path).read(0, 32)
