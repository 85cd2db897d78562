"""The demo's robots: always the same, and what VLA Foundry's form needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.demo.sample_data import write_robots
from feedmill.samples.robotics.job import compute_statistics
from feedmill.storage import LocalStore
from helpers.kills import contents

pytest.importorskip("PIL")


def test_they_are_the_same_each_time_and_whole(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert write_robots(LocalStore(tmp_path / name), "r", 3, speed=0.2, seed=1) == 24
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert not fm.check(str(tmp_path / "a" / "r"), read_samples=True, progress=False).findings
    found = compute_statistics(str(tmp_path / "a" / "r"), progress=False)
    assert {one.shape for one in found.values()} == {(8, 2)}
    assert found["robot__actual__xy"].count.tolist() == [21, 21, 24, 24, 24, 21, 21, 21]
    sample = fm.open(tmp_path / "a" / "r")[1]
    assert sample["top_t0.jpg"].shape == (48, 48, 3) and np.isfinite(sample["lowdim.npz"]["robot__action__xy"]).all()
