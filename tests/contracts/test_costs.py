"""What samples cost, for every format: what the index says is what reading the samples shows, or it says nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from feedmill.formats.base import Dataset
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from helpers.dataset_kinds import FORMATS, SOURCES, TOKENS, TOTAL, make, opened

TARS = {"prepared", "plain", "tar", "pax", "vla", "vla-indexed", "braces", "glob", "wids", "kept-index"}
TARS |= {"img2dataset-webdataset"}
LINES = {"jsonl", "jsonl-unindexed", "documents", "documents-packed"}
TABLES = {"parquet", "arrow", "huggingface", "lerobot-v2", "lerobot-v3", "img2dataset-parquet"}
KNOWN = {
    "tokens": set(TOKENS),
    "loss_tokens": set(TOKENS),
    "bytes": {*TARS, *LINES, *TOKENS, "mds", "img2dataset-files"} - {"levanter"},  # its tokens are compressed
    "pixels": set(),
    "frames": {"img2dataset-parquet", "zarr", "rlds"},  # the recordings have a camera
    "n": TABLES | LINES,
    "text": set(),
    "__index__": set(),
}
"""Which of these datasets know which cost; `test_media_costs` has pixels."""


@pytest.fixture(scope="module", params=[*FORMATS, *TOKENS, *SOURCES])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def dataset(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return opened(make(tmp_path_factory.mktemp(kind), kind), kind)


def read(dataset: Dataset, kind: str, by: str) -> list[int]:
    """The costs by reading the samples."""
    samples = dataset.read_raw(range(len(dataset)))
    if by == "tokens":
        return [len(sample["input_ids"]) for sample in dataset]
    if by == "loss_tokens":
        return [int(np.sum(sample.get("loss_mask", np.ones(len(sample["input_ids"]))))) for sample in dataset]
    if by == "bytes" and kind == "img2dataset-files":
        return [sum(len(sample.raw(name)) for name in sample) for sample in samples]
    if by == "bytes" and kind == "documents-packed":  # those of the unpacked lines, with the blank ones behind them
        return [len(sample.raw("json")) + 1 + sample["json"]["n"] % 2 for sample in dataset]
    if by == "bytes":
        return [sample.source.length for sample in samples]
    if by == "frames":
        return [1] * len(samples)
    if kind in LINES:
        return [sample["json"][by] for sample in dataset]
    return [int(sample.raw(by)) for sample in samples]


@pytest.mark.parametrize("by", KNOWN)
def test_costs_are_what_reading_shows(dataset: Dataset, kind: str, by: str) -> None:
    costs = dataset.costs(by)
    assert (costs is not None) == (kind in KNOWN[by])
    if costs is None:
        assert dataset.costs_advice(by).endswith(".")
        return
    assert costs.dtype == np.int64 and costs.tolist() == read(dataset, kind, by)
    assert dataset.costs(by) is costs
    with pytest.raises(ValueError, match="read-only"):
        costs[0] = 1


def test_fields_are_numeric_columns(dataset: Dataset, kind: str) -> None:
    assert ("n" in dataset.cost_fields) == (kind in TABLES | LINES)


def test_costs_do_not_travel(dataset: Dataset, kind: str) -> None:
    for by in KNOWN:
        dataset.costs(by)
    assert "_costs" not in pickle.loads(pickle.dumps(dataset)).__dict__
    assert "_costs" not in dataset.__getstate__()


SPLIT = {"prepared": "val", "jsonl": "val", "huggingface": "train", "lerobot-v2": "test", "lerobot-v3": "test"}


@pytest.mark.parametrize("kind", SPLIT)
def test_costs_of_a_split_are_those_of_its_samples(kind: str, tmp_path: Path) -> None:
    path = make(tmp_path, {"prepared": "plain", "jsonl": "jsonl-unindexed"}.get(kind, kind))
    if kind in ("prepared", "jsonl"):
        prepare(path, split_ratio="2,1,1", progress=False)
    dataset = open_dataset(path, split=SPLIT[kind], raw=True)
    assert 0 < len(dataset) <= TOTAL and (kind == "huggingface" or len(dataset) < TOTAL)
    for by, known in KNOWN.items():
        costs = dataset.costs(by)
        assert (costs is not None) == (kind in known)
        assert costs is None or costs.tolist() == read(dataset, kind, by)
