"""`feedmill.open` of token data: documents, windows by each format's rule, blocks, folders and combined files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.formats.tokens.windows import BlockDataset, WindowDataset
from feedmill.samples.open import _rule
from feedmill.storage import LocalStore

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def test_documents() -> None:
    dataset = fm.open(GOLDEN / "main_2b.pbin")
    assert isinstance(dataset, TokenDataset)
    assert len(dataset) == 69 and len(dataset[0]["input_ids"]) == 559


@pytest.mark.parametrize("case", EXPECTED["continuous"][::5], ids=str)
def test_windows_are_those_of_modalities(case: dict) -> None:
    dataset = fm.open(
        GOLDEN / case["file"], seq_len=case["sequence_length"], reuse_last_target=case["reuse_last_target"]
    )
    assert (len(dataset), dataset.width) == (case["len"], case["block_size"])
    if case["reuse_last_target"]:
        assert len(fm.open(GOLDEN / case["file"], seq_len=case["sequence_length"])) == case["len"]


def test_rules() -> None:
    assert [_rule("pbin", 8, reuse) for reuse in (None, True, False)] == [(9, 8), (9, 8), (8, 8)]
    assert [_rule("ds", 8, reuse) for reuse in (None, True, False)] == [(9, 9), (9, 8), (8, 8)]


def test_a_folder_and_a_list(tmp_path: Path) -> None:
    names = EXPECTED["combined"]["files"]
    (tmp_path / "b").mkdir()
    for name in names:
        shutil.copy(GOLDEN / name, tmp_path / ("b" if name == "crlf_2b.pbin" else ".") / name)
    whole = fm.open(tmp_path)
    assert [shard.path for shard in whole.shards] == ["b/crlf_2b.pbin", "main_2b.pbin", "nested_2b.pbin"]
    paths = [tmp_path / name for name in names[:2]] + [tmp_path / "b" / names[2]]
    combined = fm.open(paths, seq_len=EXPECTED["combined"]["sequence_length"])
    assert len(combined) == EXPECTED["combined"]["cumulative_sizes"][-1]
    for number, tokens in EXPECTED["combined"]["samples"].items():
        assert combined[int(number)]["input_ids"][: len(tokens)].tolist() == tokens
    assert len(fm.open(paths[:1])) == 69
    with pytest.raises(ConfigError, match=r"files cannot be opened together: expected one of "):
        fm.open([tmp_path / "x.tar", paths[0]])
    with pytest.raises(ConfigError, match="found none"):
        fm.open([])
    with pytest.raises(ConfigError, match="different stores"):
        fm.open([paths[0], "s3://bucket/x.pbin"])
    with pytest.raises(NotFound, match="token files have no splits"):
        fm.open(paths[0], split="train")


def test_options(tmp_path: Path) -> None:
    path = GOLDEN / "main_2b.pbin"
    sample = fm.open(path, seq_len=64, positions=True, boundaries=True)[8]
    assert sorted(sample) == ["boundaries", "input_ids", "positions"]
    by_index = fm.open(path, seq_len=64, positions=True)
    by_eos = fm.open(path, seq_len=64, positions=True, eos=0)
    for i in range(0, len(by_index), 37):
        assert np.array_equal(by_index[i]["positions"], by_eos[i]["positions"]) or 0 in by_index[i]["input_ids"]
    blocks = fm.open(path, block_size=64)
    assert isinstance(blocks, BlockDataset) and blocks[0]["input_ids"].tolist() == sample_of(path, 64)
    for options in ({"positions": True}, {"seq_len": 4, "block_size": 4}, {"block_size": 4, "reuse_last_target": True}):
        with pytest.raises(ConfigError):
            fm.open(path, **options)
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="seq_len: only token data can be read in windows"):
        fm.open(tmp_path / "x.jsonl", seq_len=3)
    with pytest.raises(ConfigError, match="no file has a whole window"):
        fm.open(path, seq_len=10**6)


def sample_of(path: Path, count: int) -> list[int]:
    return fm.open(path)[0]["input_ids"][:count].tolist()


def test_the_loader_reads_windows(tmp_path: Path) -> None:
    with write_pbin(LocalStore(tmp_path), "x.pbin", 2) as out:
        out.add(np.arange(1000), np.full(10, 100))
    (tmp_path / "r.yaml").write_text("path: x.pbin\n")
    dataset = fm.open(tmp_path / "x.pbin", seq_len=8)
    assert isinstance(dataset, WindowDataset)
    batch = dataset.read(np.arange(4))
    assert np.array_equal(np.stack([s["input_ids"] for s in batch]), dataset.gather(range(4)))
