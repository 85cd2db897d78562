"""Datasets with more shards than a process may have files open."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.formats import offsets
from helpers.tars import make_shards


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let this process map four offset files."""
    gc.collect()
    monkeypatch.setattr(offsets, "_maps", type(offsets._maps)())
    monkeypatch.setattr(offsets, "file_limit", lambda: 8)
    monkeypatch.setattr(offsets, "_SMALL", 0)
    return 4


def test_offsets_of_shards_do_not_use_up_the_descriptors(tmp_path: Path, few: int) -> None:
    folders = [make_shards(tmp_path / name, [3] * 10) for name in "ab"]
    for folder in folders:
        fm.prepare(str(folder), progress=False)
    gc.collect()
    datasets = [fm.open(folder) for folder in folders]
    for shard in range(10):
        for dataset in datasets:
            assert [sample.key for sample in dataset.read(range(3 * shard, 3 * shard + 3))]
            assert len(offsets._maps) <= few
    assert sum(len(dataset.table._offsets) for dataset in datasets) <= few


def test_prepare_again_does_not_either(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_shards(tmp_path / "a", [3] * 10)
    fm.prepare(str(folder), progress=False)
    most = 0
    load = offsets.load_offsets

    def loaded(*arguments: object, **options: object) -> object:
        nonlocal most
        found = load(*arguments, **options)  # type: ignore[arg-type]
        most = max(most, len(offsets._maps))
        return found

    monkeypatch.setattr("feedmill.indexing.scanning.load_offsets", loaded)
    assert fm.prepare(str(folder), workers=1, progress=False).reused == 10
    assert most == few
