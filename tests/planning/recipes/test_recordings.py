"""Recordings of several formats in one mixture: common names and shapes, and statistics of what is trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from helpers.recordings import aloha, replay_buffer, rlds, robomimic


def test_embodiments_of_three_recorders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))
    robomimic(tmp_path / "a.hdf5")
    aloha(tmp_path / "b.hdf5", 9)
    replay_buffer(tmp_path / "c.zarr")
    common = {"windows": {"action": [0, 3]}, "sizes": {"action": 8}, "parts": ["action"]}
    recipe = {
        "episodes": {**common, "normalize": {"action": "mean_std"}},
        "blend": [
            {"path": "a.hdf5", "episodes": {"rename": {"actions": "action"}, "where": {"dones": False}}},
            {"path": "b.hdf5"},
            {"path": "c.zarr"},
        ],
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    loaded = fm.Recipe.load(tmp_path / "r.yaml")
    loaded.statistics()
    loader = fm.Loader(loaded.plan(), 6, workers=2)
    batch = next(iter(loader))
    loader.close()
    assert batch["action"].shape == (6, 4, 8) and batch["action_is_pad"].shape == (6, 4)
    assert np.isfinite(batch["action"]).all()
    whole = fm.open(tmp_path / "a.hdf5", episodes={"rename": {"actions": "action"}, "where": {"dones": False}})
    assert len(whole) == 21  # without the last step of each episode


def test_conditions_on_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))
    pytest.importorskip("google.protobuf")
    (tmp_path / "data").mkdir()
    rlds(tmp_path / "data")
    chosen = fm.open(tmp_path / "data", episodes={"where": {"language_instruction": "task 2 ü"}})
    assert len(chosen) == 9 and chosen[0]["n"] == 6


def test_data_that_do_not_say_their_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))
    replay_buffer(tmp_path / "c.zarr")
    windows = {"windows": {"action": [0.0, 0.2]}, "fps": 5}
    for more, unit in (({}, "hours"), ({"episodes": windows}, "samples")):
        recipe = {"unit": unit, "blend": [{"path": "c.zarr", **more}, {"path": "c.zarr", "name": "d", **more}]}
        (tmp_path / "r.yaml").write_text(json.dumps(recipe))
        with pytest.raises(
            ConfigError, match=r"steps a second they have\. Give 'rate' in the 'episodes' of this source"
        ):
            fm.Recipe.load(tmp_path / "r.yaml").plan()
    recipe = {
        "unit": "hours",
        "blend": [{"path": "c.zarr", "episodes": {**windows, "rate": rate}} for rate in (10, 30)],
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    plan = fm.Recipe.load(tmp_path / "r.yaml").plan()
    assert "1/4 : 3/4" in str(plan)  # as many hours of both
    dataset, plain = plan.sources[0], fm.open(tmp_path / "c.zarr")
    assert dataset.format == "zarr" and np.array_equal(dataset[0]["action"][1], plain[2]["action"])  # 0.2 s later
