"""Lance tables of frames: what pylance reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import FeedmillError
from helpers.recordings import picture

lance: Any = pytest.importorskip("lance")
pa: Any = pytest.importorskip("pyarrow")
LENGTHS = [5, 1, 9]


def write(path: Path, **more: Any) -> Path:
    count, rng = sum(LENGTHS), np.random.default_rng(0)
    frames = np.concatenate([np.arange(length) for length in LENGTHS])
    columns = {
        "episode_index": np.repeat(np.arange(len(LENGTHS), dtype=np.int32), LENGTHS),
        "frame_index": frames,
        "timestamp": (frames / 20).astype(np.float32),
        "action": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=count * 3).astype("f4")), 3),
        "observation_state": pa.array(rng.normal(size=(count, 2)).tolist()),
        "observation_image": pa.array([picture(n) for n in range(count)], pa.binary()),
        "text": [f"step {n}" for n in range(count)],
        "objects": [{"a": 1}] * count,
    }
    lance.write_dataset(pa.table({**columns, **more}), str(path), max_rows_per_file=4)
    return path


def test_steps_are_those_of_pylance(tmp_path: Path) -> None:
    path = write(tmp_path / "x.lance")
    dataset, expected = fm.open(path, decode=None), lance.dataset(str(path)).to_table().to_pylist()
    assert len(dataset) == 15 and dataset.fps == 20 and dataset.episode_lengths.tolist() == LENGTHS
    for step, row in enumerate(expected):
        found = dataset[step].row
        assert found["action"].tolist() == row["action"] and found["action"].dtype == np.float32
        assert found["observation_state"].tolist() == row["observation_state"]
        assert found["observation_image"] == row["observation_image"] and found["text"] == row["text"]
    assert dataset.remarks == ["'objects': the type struct<a: int64>, not read"]
    assert fm.open(path)[7]["observation_image"].shape == (16, 24, 3)


def test_windows_batches_and_conversion(tmp_path: Path) -> None:
    path = write(tmp_path / "x.lance")
    dataset = fm.open(path, windows={"action": [-0.05, 0.0, 0.05]})
    whole = fm.open(path)
    assert np.array_equal(dataset[6]["action"], np.stack([whole[n]["action"] for n in (6, 6, 7)]))
    loader = fm.Loader(fm.Plan.over(dataset, shuffle="global"), 4, workers=2)
    assert next(iter(loader))["action"].shape == (4, 3, 3)
    loader.close()
    assert not fm.check(path).findings
    fm.convert(path, tmp_path / "out", "lerobot", progress=False, workers=1)
    back = fm.open(tmp_path / "out")
    assert back.episode_lengths.tolist() == LENGTHS and np.array_equal(back[9]["action"], whole[9]["action"])


def test_rows_that_are_deleted(tmp_path: Path) -> None:
    path = write(tmp_path / "x.lance")
    lance.dataset(str(path)).delete("episode_index = 1")
    assert fm.open(path).format == "lance" and fm.open(path).episode_lengths.tolist() == [5, 9]  # type: ignore[attr-defined]
    lance.dataset(str(path)).delete("frame_index = 3")
    with pytest.raises(FeedmillError, match="'frame_index' does not count the rows"):
        fm.open(path)


def test_tables_that_are_no_episodes(tmp_path: Path) -> None:
    for name, more, words in (
        ("a", {"frame_index": np.zeros(15, np.int64)}, "'frame_index' does not count the rows"),
        ("b", {"episode_index": [0, 1, 0] + [2] * 12, "frame_index": [0, 0, 0, *range(12)]}, "do not lie together"),
    ):
        with pytest.raises(FeedmillError, match=words):
            fm.open(write(tmp_path / f"{name}.lance", **more))
    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "c.lance"))
    with pytest.raises(FeedmillError, match=r"no column 'episode_index'"):
        fm.open(tmp_path / "c.lance")
    for file in (write(tmp_path / "d.lance") / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(FeedmillError, match=r"the table cannot be read"):
        fm.open(tmp_path / "d.lance")
