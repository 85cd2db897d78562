"""Levanter's caches (tests/golden/sources/levanter), which tensorstore 0.1.86 wrote with Levanter's specification."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, FeedmillError, NotFound
from helpers.faces import face_of
from helpers.zarr_arrays import write_cache, write_field, write_ledger

CACHES = Path(__file__).parents[2] / "golden" / "sources" / "levanter"


def ids(k: int) -> list[int]:
    return [(k * 997 + j * 31) % 50257 for j in range((k * 37) % 113 + (k % 5 > 0))]


WANTED, CHATS = [ids(k) for k in range(400)], [ids(k) for k in range(60)]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CACHES / "text" / "train", tmp_path / "train"))


def documents(dataset: fm.Dataset) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in dataset.read(range(len(dataset)))]


def test_documents_are_those_of_the_rows(cache: Path) -> None:
    dataset = fm.open(cache)
    assert dataset.format == "levanter" and documents(dataset) == WANTED
    assert documents(pickle.loads(pickle.dumps(dataset))) == WANTED
    some = np.random.default_rng(1).integers(0, 400, 1000)
    assert [sample["input_ids"].tolist() for sample in dataset.read(some)] == [WANTED[n] for n in some]


@pytest.mark.parametrize("seq_len", [2, 64, 1000])
def test_windows_are_those_of_levanter(cache: Path, seq_len: int) -> None:
    flat = np.concatenate(WANTED)
    windows: Any = fm.open(cache, seq_len=seq_len, reuse_last_target=False)  # as its TokenSeqDataset
    assert len(windows) == len(flat) // seq_len
    assert (windows.gather(range(len(windows))).reshape(-1) == flat[: len(windows) * seq_len]).all()
    strided = np.zeros((len(windows), 2 * seq_len), np.int64)[:, ::2]
    assert (windows.gather(range(len(windows)), strided) == windows.gather(range(len(windows)))).all()


def test_masks_of_chats_and_prompts() -> None:
    chats, prompts = fm.open(CACHES / "chat/train"), fm.open(CACHES / "prompts/train")
    assert documents(chats) == documents(prompts) == CHATS
    for k, (chat, prompt) in enumerate(zip(chats, prompts, strict=True)):
        assert chat["loss_mask"].tolist() == [j % 7 > 2 for j in range(len(CHATS[k]))]
        assert prompt["loss_mask"].tolist() == [j >= len(CHATS[k]) // 3 for j in range(len(CHATS[k]))]
    for dataset in (chats, prompts):
        whole = np.concatenate([sample["loss_mask"] for sample in dataset])
        windows: Any = fm.open(dataset.url, seq_len=16, reuse_last_target=False)
        assert (windows.masks(range(len(windows))).reshape(-1) == whole[: len(windows) * 16]).all()
        assert any(f"{whole.sum():,} of {len(whole):,} tokens" in note for note in fm.check(dataset.url).notes)


def test_verbs_understand_them(cache: Path, tmp_path: Path) -> None:
    report = fm.check(cache)
    assert not report.findings and any("'attention_mask' is left out" in note for note in report.notes)
    info = json.loads(CliRunner().invoke(app, ["show", str(cache), "--json"]).stdout)
    assert info["tokens"] == sum(map(len, WANTED)) and info["tokenizer"] == "gpt2" and info["source_shards"] == 2
    assert info["processor"]["append_eos"] is True
    assert CliRunner().invoke(app, ["show", str(cache)]).exit_code == 0
    assert CliRunner().invoke(app, ["show", str(cache)]).exit_code == 0
    plan = fm.Recipe.parse({"source": str(cache), "shuffle": "none", "epochs": 1, "pack": {"seq_len": 128}}).plan()
    assert sum(row["tokens"] for row in plan.read(range(len(plan)))) == sum(map(len, WANTED))
    loader = fm.Loader(plan, batch_size=4, rank=0, world_size=1)
    assert (next(iter(loader))["input_ids"] == np.stack([row["input_ids"] for row in plan.read(range(4))])).all()


@pytest.mark.parametrize("to", ["pbin", "ds", "megatron", "dolma"])
def test_conversion_keeps_documents_and_masks(to: str, tmp_path: Path) -> None:
    fm.convert(CACHES / "chat/train", tmp_path / "out", to, progress=False)
    found, source = fm.open(tmp_path / "out"), fm.open(CACHES / "chat/train")
    kept = [k for k, row in enumerate(CHATS) if row]
    assert [row for row in documents(found) if row] == [CHATS[k] for k in kept]
    if to == "ds":
        masks = [sample["loss_mask"].tolist() for sample in found.read(range(len(found)))]
        assert masks == [sample["loss_mask"].tolist() for sample in source]


def test_fields_that_a_conversion_leaves_out_are_content(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(FeedmillError, match="'attention_mask' beside the ids"):
        fm.convert(cache, tmp_path / "out", "ds", progress=False)
    fm.convert(cache, tmp_path / "out", "ds", allow_loss=True, progress=False)
    assert documents(fm.open(tmp_path / "out")) == WANTED


@pytest.mark.parametrize("verb", ["merge", "shuffle"])
def test_verbs_that_map_files_refuse_them(verb: str, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compressed tokens, which only 'convert', plans and loaders read"):
        face_of(verb)(inputs=[str(cache)], output=str(tmp_path / "o.ds"), progress=False)


def change_ledger(**changes: Any) -> Callable[[Path], None]:
    def change(cache: Path) -> None:
        path = cache / "shard_ledger.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def change_array(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(cache: Path) -> None:
        path = cache / name / "zarr.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def flip(name: str, at: int, bits: int = 255) -> Callable[[Path], None]:
    def change(cache: Path) -> None:
        data = bytearray((cache / name).read_bytes())
        data[at] ^= bits
        (cache / name).write_bytes(data)

    return change


def cut(name: str, keep: int) -> Callable[[Path], None]:
    return lambda cache: (cache / name).write_bytes((cache / name).read_bytes()[:keep]) and None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_ledger(is_finished=False), "the cache is not finished: 400 rows of 2 of 2 source shards"),
        (change_ledger(total_num_rows=399), "399 rows in total, but 400 of its source shards"),
        (change_ledger(total_num_rows=399, shard_rows={"a": 399}), "the field has 400 rows, the ledger 399"),
        (change_ledger(total_num_rows="x"), "no total_num_rows and shard_rows as numbers"),
        (lambda cache: shutil.rmtree(cache / "input_ids"), r"no field 'input_ids' of tokens \(it has attention_mask\)"),
        (lambda cache: (cache / "input_ids/data/c/0").unlink(), "data/c/0: the file is missing: the numbers from 0 to"),
        (lambda cache: (cache / "input_ids/offsets/c/0").unlink(), "offsets/c/0: the file is missing"),
        (lambda cache: (cache / "input_ids/offsets/zarr.json").unlink(), "zarr.json"),
        (flip("input_ids/data/c/0", -1), r"index of its chunks is corrupt: its checksum .* \(array input_ids/data\)"),
        (flip("input_ids/data/c/0", -9000 + 8200), "checksum"),
        (flip("input_ids/data/c/0", 4, 1), "chunk 0 of input_ids/data cannot be read: expected"),
        (flip("input_ids/data/c/0", 3), "chunk 0 of input_ids/data cannot be read"),
        (cut("input_ids/data/c/0", 5000), "its index alone has 8,196"),
        (cut("input_ids/data/c/0", 9000), "the index of its chunks is corrupt"),
        (change_array("input_ids/data", data_type="float32"), "its type is float32, expected integers"),
        (change_array("input_ids/data", codecs=[{"name": "bytes"}]), "byte order None"),
        (change_array("input_ids/data", codecs=["pack"]), "its first codec is pack, expected bytes"),
        (change_array("input_ids/data", shape=[3, 4]), r"its shape is \[3, 4\], expected one dimension"),
        (change_array("input_ids/data", shape=[20]), "the array has 20 numbers, expected 22,717"),
        (change_array("input_ids/data", zarr_format=2), "expected an array of Zarr 3"),
        (change_array("input_ids/data", news={"must_understand": True}), "the field 'news' is unknown"),
    ],
)
def test_bad_caches_are_one_clear_error(change: Callable[[Path], None], words: str, cache: Path) -> None:
    change(cache)
    with pytest.raises(FeedmillError, match=words):
        documents(fm.open(cache))


def test_check_finds_chunks_that_were_never_written_or_are_corrupt(tmp_path: Path) -> None:
    rows = [[1] * 8, [0] * 8, [2] * 8, [3] * 4]
    cache = write_cache(tmp_path / "cache", rows)
    assert documents(fm.open(cache)) == rows
    (found,) = fm.check(cache).findings
    assert found.kind == "missing-shard" and "its chunk 1 was never written: 8 tokens read as 0" in str(found)
    flip("input_ids/data/c/0", 0)(cache)
    kinds = [error.kind for error in fm.check(cache).findings]
    assert kinds == ["bad-data", "missing-shard"]


@pytest.mark.parametrize(
    ("field", "rows", "words"),
    [
        ("assistant_masks", [[0, 1], [1, 1]], "its rows have other lengths than the tokens"),
        ("assistant_masks", [[0, 1, 7], [1, 1]], "it has the number 7, expected 0 and 1"),
        ("sources_len", [[1], [3]], "row 1 of 2 tokens has a prompt of 3"),
        ("sources_len", [[1, 1], []], "expected one number per row"),
    ],
)
def test_bad_masks(field: str, rows: list[list[int]], words: str, tmp_path: Path) -> None:
    cache = write_cache(tmp_path, [[5, 6, 7], [8, 9]])
    write_field(cache / field, rows)
    with pytest.raises(FeedmillError, match=words):
        fm.open(cache).read([0, 1])
    try:
        assert any(words in str(error) for error in fm.check(cache).findings)
    except FeedmillError as error:
        assert words in str(error)


def test_the_field_of_tokens_is_named_by_the_ledger(tmp_path: Path) -> None:
    write_field(tmp_path / "ids", [[1, 2], [3]])
    write_ledger(tmp_path, 2, input_ids_key="ids", loss_weights_key=None)
    assert documents(fm.open(tmp_path)) == [[1, 2], [3]]


def test_a_folder_of_caches_names_them(cache: Path) -> None:
    with pytest.raises(NotFound, match=r"Open the folder itself, e.g. .*/train/"):
        fm.open(cache.parent)
