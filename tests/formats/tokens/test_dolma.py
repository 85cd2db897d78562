"""Dolma's token files: golden data both ways, where documents came from, and files that do not fit."""

from __future__ import annotations

import csv
import gzip
import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats import documents as text_rows
from feedmill.formats.tokens.dolma import dolma_dtype, open_dolma, read_origins, write_dolma
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, write_manifest
from feedmill.storage import LocalStore
from helpers.durations import examples
from helpers.nanoset_golden import documents

TOKENS = Path(__file__).parents[2] / "golden" / "dolma" / "tokens"
PAIRS = sorted(str(path.relative_to(TOKENS)) for path in TOKENS.rglob("*.npy"))


def rows_of(path: Path) -> list[list[str]]:
    with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("name", PAIRS)
def test_golden_files_both_ways(name: str, tmp_path: Path) -> None:
    source, rows = open_dolma(LocalStore(TOKENS), name, name), rows_of(TOKENS / name)
    assert source.shards[0].dtype == np.dtype("<u2")
    assert source.lengths.tolist() == [int(row[1]) - int(row[0]) for row in rows]
    samples = [sample["input_ids"] for sample in source.read_raw(range(len(source)))]
    assert np.concatenate(samples).astype("<u2").tobytes() == (TOKENS / name).read_bytes()
    origins = list(read_origins(source.store, name))
    assert [[*map(str, origin)] for origin in origins] == [row[2:] for row in rows]
    with write_dolma(LocalStore(tmp_path), "out.npy", source.shards[0].dtype) as writer:
        for low in range(0, len(samples), 4):
            part = samples[low : low + 4]
            writer.add(np.concatenate(part), np.asarray([len(p) for p in part]), origins=origins[low : low + 4])
    assert (tmp_path / "out.npy").read_bytes() == (TOKENS / name).read_bytes()
    found, wanted = (gzip.decompress(p.read_bytes()) for p in (tmp_path / "out.csv.gz", TOKENS / f"{name[:-4]}.csv.gz"))
    assert found == wanted


def test_golden_folders(tmp_path: Path) -> None:
    dataset = open_dolma(LocalStore(TOKENS), "split_files_ordered", "u")
    whole = open_dolma(LocalStore(TOKENS), "eos_ordered/part-0-00000.npy", "u")
    assert [shard.path.rpartition("/")[2] for shard in dataset.shards] == [f"part-0-0000{n}.npy" for n in range(4)]
    assert (len(dataset), dataset.tokens) == (len(whole), whole.tokens)
    with pytest.raises(NotFound, match=r"no '\.npy' files"):
        open_dolma(LocalStore(tmp_path), "", "u")


IDS = st.text(st.characters(codec="utf-8"), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), IDS, IDS, st.integers(1, 99)), max_size=8),
    size=st.sampled_from(["u1", "u2", "u4", "u8"]),
    block=st.sampled_from([3, 40, 1 << 20]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple], size: str, block: int
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("dolma"))
    lengths = np.asarray([row[0] for row in rows], np.int64)
    origins = [row[1:] for row in rows]
    with write_dolma(store, "x.npy", size) as writer:
        tokens = np.arange(lengths.sum()) % 256
        half = len(rows) // 2
        cut = int(lengths[:half].sum())
        writer.add(tokens[:cut], lengths[:half], origins=origins[:half])
        writer.add(tokens[cut:], lengths[half:], origins=origins[half:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "BLOCK", block)
        dataset = open_dolma(store, "x.npy", "u")
        assert dataset.lengths.tolist() == lengths.tolist()
        assert list(read_origins(store, "x.npy")) == origins
    assert dataset.describe()["bytes"] == lengths.sum() * np.dtype(size).itemsize
    assert [s["input_ids"].tolist() for s in dataset.read_raw(range(len(dataset)))] == [
        part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])
    ] or not rows


@pytest.mark.parametrize("mark", ["", '"'])
def test_rows_are_read_in_a_stream(tmp_path: Path, mark: str) -> None:
    count, name = 40_000, "f" * 500 + mark
    store = LocalStore(tmp_path)
    with write_dolma(store, "x.npy", "u2") as writer:
        writer.add(np.zeros(count, np.int64), np.ones(count, np.int64), origins=[(name, "s", n) for n in range(count)])
    tracemalloc.start()
    try:
        assert len(open_dolma(store, "x.npy", "u")) == count
        assert sum(origin.id == name for origin in read_origins(store, "x.npy")) == count
        assert tracemalloc.get_traced_memory()[1] < 12e6  # unpacked it has 20 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mark", ["", '"'])
def test_ids_may_be_longer_than_csv_allows(tmp_path: Path, mark: str) -> None:
    limit = csv.field_size_limit()
    assert limit == 131_072, "an earlier test of this process left another limit of csv"
    store, name = LocalStore(tmp_path), "x" * 2 * limit + mark
    with write_dolma(store, "x.npy", "u2") as writer:
        writer.add(*documents([2, 3]), origins=[(name, "f", 1), ("b", "f", 2)])
    assert open_dolma(store, "x.npy", "u").lengths.tolist() == [2, 3]
    assert [origin.id for origin in read_origins(store, "x.npy")] == [name, "b"]
    assert csv.field_size_limit() == limit


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        with write_dolma(LocalStore(tmp_path), name, "u2") as writer:
            writer.add(*documents([3, 4]))
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert rows_of(tmp_path / "a.npy") == [["0", "3", "0", "", "1"], ["3", "7", "1", "", "2"]]


def test_type_by_vocabulary() -> None:
    assert [dolma_dtype(size).str for size in (256, 257, 65_536, 65_537)] == ["|u1", "<u2", "<u2", "<u4"]


def put(root: Path, tokens: bytes, rows: str) -> LocalStore:
    (root / "x.npy").write_bytes(tokens)
    (root / "x.csv.gz").write_bytes(gzip.compress(rows.encode()))
    return LocalStore(root)


def test_rows_without_a_last_newline_and_with_quotes(tmp_path: Path) -> None:
    store = put(tmp_path, bytes(10), "0,2,a,f,1\n2,5,b,f,2")
    assert open_dolma(store, "x.npy", "u").lengths.tolist() == [2, 3]
    store = put(tmp_path, bytes(20), '0,2,"a\r\nb",f,1\r\n2,5,"say ""b""",f,2\r\n')
    dataset = open_dolma(store, "x.npy", "u")
    assert (dataset.lengths.tolist(), dataset.shards[0].dtype.itemsize) == ([2, 3], 4)
    assert [origin.id for origin in read_origins(store, "x.npy")] == ["a\r\nb", 'say "b"']


@pytest.mark.parametrize(
    ("tokens", "rows", "message"),
    [
        (b"\0" * 9, "0,2,a,f,1\n2,5,b,f,2\n", "its 9 bytes do not match the 5 tokens"),
        (b"\0" * 15, "0,2,a,f,1\n2,5,b,f,2\n", "do not match"),
        (b"\0" * 100, "", "do not match the 0 tokens"),
        (b"\0" * 10, "0,2,a,f,1\n3,5,b,f,2\n", "'row 2': its tokens are 3 to 5, expected from 2 on"),
        (b"\0" * 10, "1,2,a,f,1\n2,5,b,f,2\n", "'row 1': its tokens are 1 to 2, expected from 0 on"),
        (b"\0" * 10, "0,5,a,f,1\n5,3,b,f,2\n", "'row 2': its tokens are 5 to 3"),
        (b"\0" * 10, "0,2,a,f,1\ntwo,5,b,f,2\n", "'row 2': expected start and end"),
        (b"\0" * 10, "0,2,a,f,1\n2\n", "'row 2': expected start and end"),
        (b"\0" * 10, "0,2,a,f,1\n\n2,5,b,f,2\n", "'row 2': expected start and end"),
        (b"\0" * 10, "0,-2,a,f,1\n", "'row 1'"),
        (b"\0" * 10, f"0,2,a,f,1\n2,{2**63},b,f,2\n", "'row 2': expected start and end"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, tokens: bytes, rows: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dolma(put(tmp_path, tokens, rows), "x.npy", "u")


def test_other_things_that_are_refused(tmp_path: Path) -> None:
    store = put(tmp_path, bytes(10), "0,5,a,f,1\n")
    with pytest.raises(DataError, match="do not match"):
        open_dolma(store, "x.npy", "u", dtype="u4")
    assert open_dolma(store, "x.npy", "u", dtype="u2").tokens == 5
    (tmp_path / "x.csv.gz").write_bytes((tmp_path / "x.csv.gz").read_bytes()[:-9])
    with pytest.raises(DataError, match="corrupt or truncated"):
        open_dolma(store, "x.npy", "u")
    (tmp_path / "x.csv.gz").write_bytes(b"0,5,a,f,1\n")
    with pytest.raises(DataError, match="holds text"):
        open_dolma(store, "x.npy", "u")
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    (tmp_path / "x.npy").write_bytes(array.getvalue())
    with pytest.raises(ConfigError, match="saved by numpy"):
        open_dolma(store, "x.npy", "u")
    (tmp_path / "x.csv.gz").unlink()
    (tmp_path / "x.npy").write_bytes(bytes(4))
    with pytest.raises(NotFound, match=r"x\.npy: its file 'x\.csv\.gz' .* is missing"):
        open_dolma(store, "x.npy", "u")


def test_writing_wrongly(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(ConfigError, match="not support tokens of type int32"), write_dolma(store, "x.npy", "i4"):
        pass
    with write_dolma(store, "x.npy", "u2") as writer:
        with pytest.raises(ConfigError, match="written without one"):
            writer.add(*documents([1]), np.array([True]))
        with pytest.raises(ValueError, match="1 origins for 2 documents"):
            writer.add(*documents([1, 1]), origins=[("a", "f", 1)])
        with pytest.raises(DataError, match="does not fit into 2 bytes"):
            writer.add(*documents([1], 70_000))


def test_the_tokenizer_is_shown(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with write_dolma(store, "x.npy", "u2") as out:
        out.add(*documents([2, 3]))
    write_manifest(store, "x.npy", TokenManifest("dolma", 2, 5, tokenizer=TokenizerFacts("gpt2", "ab12", 50257)))
    assert open_dolma(store, "x.npy", "x.npy").describe()["tokenizer"] == "gpt2"
