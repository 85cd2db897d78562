"""`.pbin`: all versions read, broken merges fixed, damage told apart, V3 written byte for byte; the bounds sidecar."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.tokens import manifest
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, bounds_path, write_manifest
from feedmill.formats.tokens.pbin import open_pbin, open_pbins, token_size, write_bounds, write_pbin
from feedmill.indexing.check import check
from feedmill.storage import LocalStore
from helpers import warm
from helpers.durations import examples

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
LEGACY = json.loads((GOLDEN / "legacy.json").read_text())
STORE = LocalStore(GOLDEN)


def open_one(path: Path) -> Any:
    return open_pbin(LocalStore(path.parent), path.name, str(path))


def documents(dataset: Any) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in dataset.read(range(len(dataset)))]


def make(header: bytes, dtype: str, docs: list[list[int]], base: int, protocol: int = 4) -> bytes:
    parts = [np.array(doc, dtype).tobytes() for doc in docs]
    index, at = [], base
    for part in parts:
        index.append((at, len(part)))
        at += len(part)
    return header + b"".join(parts) + pickle.dumps(index, protocol)


def v3(docs: list[list[int]], width: int = 2, protocol: int = 4) -> bytes:
    return make(struct.pack("<QI", sum(map(len, docs)) * width, width), f"<u{width}", docs, 0, protocol)


@pytest.mark.parametrize("name", EXPECTED["pbin"])
def test_golden_files_read_and_written(name: str, tmp_path: Path) -> None:
    facts = EXPECTED["pbin"][name]
    dataset = open_pbin(STORE, name, str(GOLDEN / name))
    assert (len(dataset), dataset.tokens) == (facts["n_docs"], facts["n_tokens"])
    shard = dataset.shards[0]
    size = shard.dtype.itemsize
    bounds = shard.bounds * size
    index = facts["index"] if isinstance(facts["index"], list) else facts["index"]["entries"]
    assert list(zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True))[: len(index)] == [
        tuple(pair) for pair in index
    ]
    docs = documents(dataset)
    assert [t for doc in docs for t in doc][:32] == facts["first_tokens"]
    assert docs[-1][-8:] == facts["last_tokens"]
    with write_pbin(LocalStore(tmp_path), name, size) as out:  # in uneven groups
        for low in range(0, len(docs), 7):
            group = docs[low : low + 7]
            out.add(np.concatenate(group), np.array([len(doc) for doc in group]))
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()
    assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == facts["sha256"]


def test_golden_documents_and_slices() -> None:
    dataset = open_pbin(STORE, "main_2b.pbin", "main_2b.pbin")
    assert len(dataset) == EXPECTED["memmap_dataset"]["len"]
    for number, tokens in EXPECTED["memmap_dataset"]["samples"].items():
        assert dataset[int(number)]["input_ids"].tolist() == [*tokens, 0]  # those were tokenized again, without EOD
        assert dataset[int(number)]["input_ids"].dtype == np.int64
    for case in EXPECTED["base_slices"]:
        assert [len(sample["input_ids"]) for sample in dataset[slice(*case["slice"])]] == case["lengths"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_golden_legacy_files(version: int) -> None:
    name = f"legacy_v{version}.pbin"
    facts = LEGACY[name]
    dataset = open_pbin(STORE, name, name)
    docs = documents(dataset)
    assert len(docs) == facts["n_docs"]
    tokens = np.array([t for doc in docs for t in doc], "<i8")
    assert tokens[:24].tolist() == facts["first_tokens"]
    assert hashlib.sha256(tokens.tobytes()).hexdigest() == facts["tokens_sha256_as_i64le"]
    assert [len(doc) * facts["token_size"] for doc in docs] == [length for _, length in facts["index"]]
    assert dataset.locate(0).offset == facts["index"][0][0] or version == 3


def test_golden_merge_is_mended() -> None:
    merged = open_pbin(STORE, "merged_2b.pbin", "merged_2b.pbin")
    parts = [documents(open_pbin(STORE, name, name)) for name in EXPECTED["merged"]["sources"]]
    assert documents(merged) == [doc for part in parts for doc in part]
    (remark,) = merged.describe()["remarks"]
    assert remark.startswith("merged_2b.pbin: 40 entries of the index were wrong")


def test_a_merge_of_merges_is_mended(tmp_path: Path) -> None:
    docs = [[1, 2, 3, 0], [4, 0], [5, 6, 0], [7, 0], [8, 9, 9, 0]]
    data = v3(docs)
    starts = [start - 12 * k for start, k in zip([0, 8, 12, 18, 22], [0, 1, 2, 1, 3], strict=True)]
    end = data.index(b"\x80\x04")
    (tmp_path / "x.pbin").write_bytes(data[:end] + pickle.dumps(list(zip(starts, [8, 4, 6, 4, 8], strict=True)), 4))
    with pytest.raises(DataError, match="negative"):  # 8 - 12
        len(open_one(tmp_path / "x.pbin"))
    docs = [[9] * 40, *docs]
    starts = [0, *(start + 80 for start in starts)]
    data = v3(docs)
    (tmp_path / "x.pbin").write_bytes(
        data[: data.index(b"\x80\x04")] + pickle.dumps(list(zip(starts, [80, 8, 4, 6, 4, 8], strict=True)), 4)
    )
    dataset = open_one(tmp_path / "x.pbin")
    assert documents(dataset) == docs
    assert "4 entries" in dataset.describe()["remarks"][0]
    write_bounds(LocalStore(tmp_path), "x.pbin")
    again = open_one(tmp_path / "x.pbin")
    assert documents(again) == docs
    assert again.describe() == dataset.describe()
    assert again.fingerprint() == dataset.fingerprint()


def test_a_legacy_file_whose_first_token_looks_like_a_token_size(tmp_path: Path) -> None:
    for count in range(1, 4000, 7):  # some of these have 0x80 0x0? where the other version's index would begin
        docs = [[2, 0]] * count
        data = make(struct.pack(">Q", count * 8), ">u4", docs, 8)
        (tmp_path / "x.pbin").write_bytes(data)
        assert len(open_one(tmp_path / "x.pbin")) == count


@settings(max_examples=examples(60), deadline=None)
@given(
    docs=st.lists(st.lists(st.integers(0, 255), max_size=9), max_size=30),
    width=st.sampled_from([1, 2, 4]),
    protocol=st.integers(2, 5),
    given_dtype=st.sampled_from([np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64]),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, docs: list[list[int]], width: int, protocol: int, given_dtype: Any
) -> None:
    folder = tmp_path_factory.mktemp("x")
    lengths = np.array([len(doc) for doc in docs], np.int64)
    with write_pbin(LocalStore(folder), "x.pbin", width) as out:
        out.add(np.array([t for doc in docs for t in doc], np.uint8).astype(given_dtype), lengths)
    assert (folder / "x.pbin").read_bytes() == v3(docs, width)
    assert documents(open_one(folder / "x.pbin")) == docs
    os.unlink(folder / bounds_path("x.pbin"))
    assert documents(open_one(folder / "x.pbin")) == docs
    (folder / "old.pbin").write_bytes(v3(docs, width, protocol))
    assert documents(open_one(folder / "old.pbin")) == docs


def test_no_documents(tmp_path: Path) -> None:
    with write_pbin(LocalStore(tmp_path), "x.pbin", 2):
        pass
    assert (tmp_path / "x.pbin").read_bytes() == v3([])
    for _ in range(2):
        dataset = open_one(tmp_path / "x.pbin")
        assert (len(dataset), dataset.tokens, documents(dataset)) == (0, 0, [])
        (tmp_path / bounds_path("x.pbin")).unlink(missing_ok=True)


def damaged() -> dict[str, tuple[bytes, str]]:
    good = v3([[1, 2, 0], [3, 0]])
    data = good[:22]
    evil = b"cos\nsystem\n(S'echo unpickled'\ntR."
    return {
        "empty": (b"", "0 bytes, fewer than the header"),
        "short": (good[:9], "9 bytes, fewer than the header"),
        "killed": (bytes(8) + good[8:22], "length field is 0 although there is data.*did not finish"),
        "killed early": (bytes(12), "length field is 0"),
        "tokens cut": (good[:18], "truncated: its header declares 10 bytes"),
        "index gone": (data, "truncated: its header declares"),
        "index cut": (good[:-4], "list of documents at byte 22 is truncated"),
        "index cut at a stop": (good[:-4] + b".", "opcode|truncated|frame"),
        "token size": (struct.pack("<QI", 10, 3) + good[12:], "has tokens of 3 bytes"),
        "odd size": (struct.pack("<QI", 9, 2) + good[12:], "not a whole number of tokens"),
        "no pickle": (data + b"hello world.", "no list of documents begins at byte 22"),
        "other file": (b"hello world, this is text\n" * 9, "not a Modalities .pbin"),
        "attack": (data + b"\x80\x04\x95" + struct.pack("<Q", len(evil)) + evil, r"opcode GLOBAL \(0x63\)"),
        "attack in a list": (data + b"\x80\x04]\x94(" + evil, r"opcode GLOBAL"),
        "too few": (data + pickle.dumps([(0, 6)], 4), "expected documents of 10 bytes in total, found 6"),
        "too many": (data + pickle.dumps([(0, 6), (6, 4), (10, 2)], 4), "found 12 in the index"),
        "huge": (data + pickle.dumps([(0, 2**62), (6, 4)], 4), "length of 4611686018427387904"),
        "odd length": (data + pickle.dumps([(0, 5), (5, 5)], 4), "length of 5 bytes"),
        "swapped": (data + pickle.dumps([(4, 6), (0, 4)], 4), "start of 4, expected 0"),
        "gap": (data + pickle.dumps([(0, 6), (8, 4)], 4), "start of 8, expected 6"),
        "trailing": (good + b"..", "after the end"),
        "protocol 0": (data + pickle.dumps([(0, 6), (6, 4)], 0), "no list of documents"),
    }


@pytest.mark.parametrize("name", damaged())
def test_damage_is_told_apart(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, message = damaged()[name]
    (tmp_path / "x.pbin").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        len(open_one(tmp_path / "x.pbin"))
    assert caught.value.file == str(tmp_path / "x.pbin")
    assert caught.value.fix
    assert "unpickled" not in capfd.readouterr().out


@settings(max_examples=examples(200), deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 30),
)
def test_no_damage_gives_anything_but_an_error(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(v3([[1, 2, 0], [3, 0], list(range(20))], 4))
    for at, value in edits:
        data[at % len(data)] = value
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    path.write_bytes(bytes(data[: len(data) - cut]))
    try:
        docs = documents(open_one(path))
    except DataError:
        return
    assert sum(len(doc) for doc in docs) <= len(data)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"x\.pbin"):
        open_one(tmp_path / "x.pbin")


@pytest.mark.parametrize(("width", "bad"), [(1, 256), (2, 65_536), (4, 2**32), (2, -1)])
def test_ids_that_do_not_fit_are_refused(width: int, bad: int, tmp_path: Path) -> None:
    message = f"'document 3'.*token id {bad} does not fit tokens of {width} bytes"
    with pytest.raises(DataError, match=message), write_pbin(LocalStore(tmp_path), "x.pbin", width) as out:
        out.add(np.array([1, 2, 3]), np.array([2, 1]))
        out.add(np.array([1, 2, bad]), np.array([1, 2]))
    assert not os.listdir(tmp_path)


def test_the_writer_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(ConfigError, match="3 bytes"), write_pbin(store, "x.pbin", 3):
        pass
    for tokens, lengths in (([1, 2], [1]), ([1, 2], [3, -1]), ([], [1])):
        with pytest.raises(FeedmillError, match="do not add up"), write_pbin(store, "x.pbin", 2) as out:
            out.add(np.array(tokens, np.int64), np.array(lengths))
    with pytest.raises(FeedmillError, match="integers"), write_pbin(store, "x.pbin", 2) as out:
        out.add(np.array([1.0]), np.array([1]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="loss"), write_pbin(store, "x.pbin", 2) as out:
        out.add(np.array([1]), np.array([1]), np.array([True]))
    assert not os.listdir(tmp_path)


def test_token_size_by_vocabulary() -> None:
    for vocab, size in EXPECTED["token_size_by_vocab"].items():
        assert token_size(int(vocab)) == size
    assert token_size(2**32) == 4
    for wrong in (0, -5, 2**32 + 1):
        with pytest.raises(ConfigError):
            token_size(wrong)


class TestSidecar:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        with write_pbin(LocalStore(tmp_path), "x.pbin", 2) as out:
            out.add(np.arange(40_000), np.full(8_000, 5))
        return tmp_path / "x.pbin"

    def test_it_is_used(self, path: Path) -> None:
        shard = open_one(path).shards[0]
        assert isinstance(shard.bounds.base, np.memmap) or isinstance(shard.bounds, np.memmap)
        assert shard.bounds.tolist() == list(range(0, 40_001, 5))

    def test_it_equals_the_index(self, path: Path) -> None:
        side = Path(bounds_path(str(path)))
        written = side.read_bytes()
        dataset = open_one(path)
        side.unlink()
        other = open_one(path)
        assert other.fingerprint() == dataset.fingerprint()
        assert np.array_equal(other.lengths, dataset.lengths)
        assert write_bounds(LocalStore(path.parent), "x.pbin") == 8_000
        assert side.read_bytes() == written

    def test_one_of_another_file_is_left_aside(self, path: Path) -> None:
        data = path.read_bytes()
        for other in (v3([[1, 2, 0]]), data[:12] + b"\1" + data[13:]):
            path.write_bytes(other)
            dataset = open_one(path)
            assert len(dataset) == (1 if len(other) < 100 else 8_000)
        path.write_bytes(make(data[:12], "<u2", [[1] * 4] * 10_000, 0))  # as many tokens, other documents
        assert len(open_one(path)) == 10_000

    @pytest.mark.parametrize("size", [0, 10, 63, 64, 72, 1000])
    def test_a_cut_one_is_left_aside(self, path: Path, size: int) -> None:
        os.truncate(bounds_path(str(path)), size)
        assert len(open_one(path)) == 8_000

    def test_one_that_is_damaged_is_refused(self, path: Path) -> None:
        with open(bounds_path(str(path)), "r+b") as f:
            f.seek(64 + 8 * 5)
            f.write(struct.pack("<Q", 26))
        with pytest.raises(
            DataError, match=r"x.pbin.feedmill.bounds: the bounds of documents are corrupt.*feedmill tokens index"
        ):
            len(open_one(path))
        write_bounds(LocalStore(path.parent), "x.pbin")
        assert len(open_one(path)) == 8_000

    def test_a_large_one_that_is_damaged_is_found_by_check(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(manifest, "HASHED", 0)
        assert not check(str(path), progress=False).findings
        with open(bounds_path(str(path)), "r+b") as f:
            f.seek(64 + 8 * 5)
            f.write(struct.pack("<Q", 26))
        assert len(open_one(path)) == 8_000
        assert ["corrupt" in finding.what for finding in check(str(path), progress=False).findings] == [True]

    def test_one_of_another_version_is_left_aside(self, path: Path) -> None:
        with open(bounds_path(str(path)), "r+b") as f:
            f.seek(8)
            f.write(struct.pack("<I", 1))
            f.seek(64 + 8 * 5)
            f.write(struct.pack("<Q", 26))
        assert open_one(path).lengths.tolist() == [5] * 8_000

    def test_one_with_wrong_numbers_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(manifest, "HASHED", 0)
        with open(bounds_path(str(path)), "r+b") as f:
            f.seek(-8, 2)
            f.write(struct.pack("<Q", 7))
        with pytest.raises(DataError, match=r"x.pbin.feedmill.bounds: expected bounds from 0 to .*, found 0 to 7"):
            len(open_one(path))

    @pytest.mark.parametrize("end", [10**6, 2, 2**63])
    def test_one_with_a_wrong_number_inside_gives_no_tokens_by_it(
        self, path: Path, end: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(manifest, "HASHED", 0)
        with open(bounds_path(str(path)), "r+b") as f:
            f.seek(64 + 8 * 5)
            f.write(struct.pack("<Q", end))
        with pytest.raises(DataError, match=r"x.pbin: documents end before they begin, or after the last token"):
            open_one(path).read_raw([4, 5])


MANY_FILES = """
import resource, shutil, sys
import numpy as np
from feedmill.formats.tokens.pbin import open_pbins, write_pbin
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.storage import LocalStore
store = LocalStore(sys.argv[1])
names = [f"{i}.pbin" for i in range(300)]
for name in names:
    with write_pbin(store, name, 2) as out:
        out.add(np.arange(6), np.array([2, 4]))
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
windows = WindowDataset(open_pbins(store, names, "u"), width=3)
print(len(windows), windows.gather(np.arange(len(windows))).sum())
"""


def test_more_files_than_a_process_usually_may_open(tmp_path: Path) -> None:
    run = warm.run([sys.executable, "-c", MANY_FILES, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["600", str(300 * 15)], run.stderr


def test_several_files_are_one_data_set() -> None:
    names = EXPECTED["combined"]["files"]
    dataset = open_pbins(STORE, names, "golden")
    parts = [documents(open_pbin(STORE, name, name)) for name in names]
    assert documents(dataset) == [doc for part in parts for doc in part]
    assert dataset.locate(len(parts[0])).file == names[1]
    assert dataset.fingerprint_of_first(len(parts[0])) == open_pbins(STORE, names[:1], "x").fingerprint()
    assert dataset.fingerprint_of_first(1) is None


def test_the_tokenizer_is_shown(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with write_pbin(store, "x.pbin", 2) as out:
        out.add(np.arange(4), np.array([4]))
    write_manifest(store, "x.pbin", TokenManifest("pbin", 1, 4, tokenizer=TokenizerFacts("gpt2", "ab12", 50257)))
    facts = open_pbin(store, "x.pbin", "x.pbin").describe()
    assert (facts["tokenizer"], facts["tokenizer_hash"]) == ("gpt2", "ab12")


def test_a_data_set_goes_to_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "x.pbin"
    path.write_bytes(v3([[1, 2, 0], [3, 0]]))
    assert documents(pickle.loads(pickle.dumps(open_one(path)))) == [[1, 2, 0], [3, 0]]
