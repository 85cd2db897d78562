"""datatrove's windows over golden files and folders: tokens, positions by index and by end-of-text token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedmill.formats.tokens.ds import FILE_SEED, open_ds
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers.nanoset_golden import NANOSETS, expected, sha256


def digest(rows: np.ndarray) -> str:
    return sha256(np.ascontiguousarray(rows, "<i8").tobytes())


def windows(path: Path, seq_len: int, **options: object) -> WindowDataset:
    dataset = open_dataset(path, seq_len=seq_len, **options)  # type: ignore[arg-type]
    assert isinstance(dataset, WindowDataset)
    return dataset


@pytest.mark.parametrize("case", expected()["file_dataset"], ids=lambda case: f"{case['file']}-{case['seq_len']}")
def test_every_window_and_position_of_files(case: dict) -> None:
    path = NANOSETS / case["file"]
    dataset = windows(path, case["seq_len"], positions=True)
    assert len(dataset) == case["len"]
    samples = dataset.read(np.arange(len(dataset)))
    assert digest(dataset.gather(np.arange(len(dataset)))) == case["all_sha256_as_i64le"]
    assert digest(np.stack([sample["positions"] for sample in samples])) == case["positions_index_sha256"]
    for number, tokens in case["windows"].items():
        assert samples[int(number)]["input_ids"].tolist()[: len(tokens)] == tokens  # the first 66
        positions = case["positions_index"][number]
        assert samples[int(number)]["positions"].tolist()[: len(positions)] == positions
    by_eos = windows(path, case["seq_len"], positions=True, eos=0)
    rows = np.stack([sample["positions"] for sample in by_eos.read(np.arange(len(by_eos)))])
    assert digest(rows) == case["positions_eos_sha256"]
    for number, positions in case["positions_eos"].items():
        assert rows[int(number)].tolist()[: len(positions)] == positions


@pytest.mark.parametrize(
    "case", expected()["folder_dataset"], ids=lambda c: f"{c['folder']}-{c['seq_len']}-{c['seed']}"
)
def test_folders(case: dict) -> None:
    seed = case["seed"] if case["shuffle"] else None
    if seed in (None, FILE_SEED):
        dataset = windows(NANOSETS / case["folder"], case["seq_len"], files="nanotron" if seed else "sorted")
    else:
        documents = open_ds(LocalStore(NANOSETS / case["folder"]), "", case["folder"], seed=seed)
        dataset = WindowDataset(documents, width=case["seq_len"] + 1)
    assert len(dataset) == case["len"]
    assert [shard.path for shard in dataset.tokens.shards] == case["files"]
    assert digest(dataset.gather(np.arange(len(dataset)))) == case["all_sha256_as_i64le"]


def test_without_index_and_metadata(tmp_path: Path) -> None:
    (tmp_path / "x.ds").write_bytes(np.arange(20, dtype="<u4").tobytes())
    dataset = windows(tmp_path / "x.ds", 4, token_size=4)
    assert [sample["input_ids"].tolist() for sample in dataset] == np.arange(20).reshape(4, 5).tolist()
    by_eos = windows(tmp_path / "x.ds", 4, token_size=4, positions=True, eos=6)
    assert by_eos[1]["positions"].tolist() == [0, 1, 0, 1, 2]
