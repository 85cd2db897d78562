"""Nanotron's and datatrove's dataset classes by a changed import: the recorded samples of the originals."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError
from helpers.nanoset_golden import NANOSETS, expected, sha256

torch = pytest.importorskip("torch")
from feedmill.compat.datatrove.utils.dataset import DatatroveFileDataset, DatatroveFolderDataset  # noqa: E402
from feedmill.compat.nanotron.data.dataloader_builder import build_nanoset_dataloader  # noqa: E402
from feedmill.compat.nanotron.data.nanoset import Nanoset  # noqa: E402
from feedmill.compat.nanotron.data.nemo_dataset import BlendableDataset  # noqa: E402

GIVEN = expected()
FOLDERS = [str(NANOSETS / name) for name in ("nt_default", "doc_shuffled_split")]


def rows(dataset: Any, name: str = "input_ids") -> np.ndarray:
    return np.stack([sample[name].numpy() for sample in dataset.__getitems__(range(len(dataset)))])


def token_size(path: str) -> int:
    return 4 if path.startswith(("four_byte", "merged_4b")) else 2


@pytest.mark.parametrize("case", GIVEN["file_dataset"], ids=lambda c: f"{c['file']} {c['seq_len']}")
def test_files(case: dict[str, Any]) -> None:
    path = NANOSETS / case["file"]
    if not path.exists():
        pytest.skip("only its hash is kept")
    data = DatatroveFileDataset(str(path), case["seq_len"], token_size(case["file"]))
    assert len(data) == case["len"] and data[0]["input_ids"].dtype == torch.int64
    assert sha256(rows(data).astype("<i8").tobytes()) == case["all_sha256_as_i64le"]
    for number, window in case["windows"].items():
        assert data[int(number)]["input_ids"][: len(window)].tolist() == window
    for key, eos in (("positions_index", None), ("positions_eos", 0)):
        if f"{key}_sha256" in case:
            data = DatatroveFileDataset(str(path), case["seq_len"], token_size(case["file"]), True, eos)
            assert data[0]["positions"].dtype == torch.int64
            assert sha256(rows(data, "positions").astype("<i8").tobytes()) == case[f"{key}_sha256"]
    with pytest.raises(IndexError):
        data[len(data)]


@pytest.mark.parametrize("case", GIVEN["folder_dataset"], ids=str)
def test_folders(case: dict[str, Any]) -> None:
    if not (NANOSETS / case["folder"] / case["files"][0]).exists():
        pytest.skip("only its hash is kept")
    data = DatatroveFolderDataset(
        str(NANOSETS / case["folder"]),
        case["seq_len"],
        token_size=token_size(case["folder"]),
        shuffle=case["shuffle"],
        seed=case["seed"],
    )
    assert (len(data), data.lens) == (case["len"], case["lens"])
    assert [path.rpartition("/")[2] for path in data.files] == [name.rpartition("/")[2] for name in case["files"]]
    assert sha256(rows(data).astype("<i8").tobytes()) == case["all_sha256_as_i64le"]
    again = pickle.loads(pickle.dumps(data))
    assert again[len(data) - 1]["input_ids"].tolist() == data[len(data) - 1]["input_ids"].tolist()


def test_the_names_that_nanotron_passes() -> None:
    folder = FOLDERS[0]
    data = DatatroveFolderDataset(
        folder_path=folder, filename_pattern=f"{folder}/*.ds", seq_len=64, recursive=False, shuffle=True, eos_token_id=0
    )
    assert np.array_equal(rows(data), rows(DatatroveFolderDataset(folder, 64, shuffle=True)))
    with pytest.raises(FileNotFoundError):
        DatatroveFolderDataset(folder, 64, filename_pattern=".none")
    with pytest.raises(ConfigError, match="paths_file"):
        DatatroveFolderDataset(folder, 64, paths_file="x.json")
    with pytest.raises(TypeError):
        DatatroveFolderDataset(seq_len=3)


@pytest.mark.parametrize("case", GIVEN["nanoset_samples"], ids=str)
def test_nanosets(case: dict[str, Any]) -> None:
    data = Nanoset(
        dataset_folders=[str(NANOSETS / name) for name in case["folders"]],
        sequence_length=case["sequence_length"],
        token_size=2,
        train_split_num_samples=case["train_split_num_samples"],
        dataset_weights=case["weights"],
        random_seed=case["seed"],
        return_positions=False,
    )
    assert len(data) == case["train_split_num_samples"] and data.dataset_lengths == case["lengths"]
    assert data.dataset_index[:12].tolist() == case["di_head"] and data.dataset_index.dtype == np.uint64
    assert data.dataset_sample_index[:12].tolist() == case["si_head"]
    assert sha256(rows(data).astype("<i8").tobytes()) == case["all_sha256_as_i64le"]
    for number, tokens in case["samples"].items():
        assert data[int(number)]["input_ids"][: len(tokens)].tolist() == tokens
    with pytest.raises(AssertionError, match="weights but 1 datasets"):
        Nanoset(FOLDERS[:1], 64, 2, 10, dataset_weights=[1, 2])


@pytest.mark.parametrize("case", GIVEN["blendable"], ids=lambda c: str(c["size"]))
def test_blendable_datasets(case: dict[str, Any]) -> None:
    datasets = [SimpleNamespace(folder_path=str(n)) for n in range(len(case["weights"]))]
    data = BlendableDataset(datasets, case["weights"], case["size"])
    assert data.dataset_num_samples.tolist() == case["dataset_num_samples"] and len(data) == case["size"]
    if "dataset_index" in case:
        assert data.dataset_index.tolist() == case["dataset_index"]
        assert data.dataset_sample_index.tolist() == case["dataset_sample_index"]


def test_a_blend_continues_after_the_samples_of_earlier_stages() -> None:
    parts = [DatatroveFolderDataset(folder, 64, recursive=False) for folder in FOLDERS]
    data = BlendableDataset(parts, [3, 1], 40, seed=1, offsets_in_samples={FOLDERS[1]: 7})
    assert data.offsets_in_samples == {0: 0, 1: 7}
    first = int(np.flatnonzero(data.dataset_index == 1)[0])
    assert data[first]["input_ids"].tolist() == parts[1][7]["input_ids"].tolist()
    assert np.array_equal(rows(data), np.stack([data[i]["input_ids"].numpy() for i in range(40)]))
    with pytest.raises(IndexError):
        BlendableDataset(parts, [3, 1], 40, offsets_in_samples={FOLDERS[1]: 10**6})[first]


def context(rank: int, ranks: int, stage: int = 0, slice_: int = 0, slices: int = 1) -> SimpleNamespace:
    def group(rank: int, size: int) -> SimpleNamespace:
        return SimpleNamespace(rank=lambda: rank, size=lambda: size)

    groups = {"dp_pg": group(rank, ranks), "pp_pg": group(stage, 2), "cp_pg": group(slice_, slices)}
    return SimpleNamespace(**groups, context_parallel_size=slices)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_gives_a_rank_its_batches_and_resumes(workers: int) -> None:
    data = Nanoset(FOLDERS, 64, 2, 50, [1, 1], eos_token_id=0)
    seen = []
    for rank in range(2):
        loader = build_nanoset_dataloader(data, 64, context(rank, 2), 0, 0, 4, workers, dataloader_pin_memory=False)
        batches = list(loader)
        assert [len(batch["input_ids"]) for batch in batches] == [4] * 6
        seen.append(np.concatenate([batch["input_ids"] for batch in batches]))
        for batch in batches:
            assert set(batch) == {"input_ids", "position_ids", "label_ids", "label_mask"}
            assert np.array_equal(batch["input_ids"][:, 1:], batch["label_ids"][:, :-1])
            assert np.array_equal(batch["label_mask"][:, :-1], batch["position_ids"][:, 1:] != 0)
    whole = rows(data)[:48, :-1]
    assert np.array_equal(np.stack(seen, 1).reshape(48, -1), whole)
    resumed = build_nanoset_dataloader(
        data, 64, context(1, 2), 0, 0, 4, workers, consumed_train_samples=16, dataloader_pin_memory=False
    )
    assert np.array_equal(next(iter(resumed))["input_ids"], whole[17:24:2])


def test_slices_and_ranks_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Nanoset(FOLDERS, 64, 2, 8, [1, 1], return_positions=False, eos_token_id=0)

    def first(**options: Any) -> dict[str, Any]:
        where = context(0, 1, options.pop("stage", 0), options.pop("slice_", 0), 2)
        made = build_nanoset_dataloader(
            data, 64, where, 0, options.pop("last", 0), 4, 0, dataloader_pin_memory=False, **options
        )
        return next(iter(made))

    whole = rows(data)[:4]
    batch = first(slice_=1, use_position_ids=False)
    assert np.array_equal(batch["input_ids"], whole[:, 32:64]) and np.array_equal(batch["label_ids"], whole[:, 33:65])
    assert batch["input_mask"].shape == (4, 32) and batch["label_mask"].all()
    assert first()["position_ids"].shape == (4, 64)  # as in Nanotron, positions of all slices
    with pytest.raises(ConfigError, match="TensorPointer"):
        first(stage=1)
    module = SimpleNamespace(TensorPointer=lambda group_rank: group_rank)
    monkeypatch.setattr("feedmill.compat.nanotron.data.dataloader_builder.import_module", lambda name: module)
    assert first(stage=1) == {"input_ids": 0, "label_ids": 0, "label_mask": 0, "positions": 0}
    assert first(last=1)["label_ids"] == 1
