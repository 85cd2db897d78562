"""examples/mixture.py: from tags to a large run, in small."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType

import pytest

import feedmill as fm
from helpers.durations import needs

needs("torch", "sklearn")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import mixture

    return mixture


@pytest.mark.slow  # the tutorial goes the same way in the default run
def test_the_whole_way_in_small(program: ModuleType, tmp_path: Path) -> None:
    """12 runs, whose losses by source are fitted; the proposal keeps the limits, and both large runs have curves."""
    curves = program.experiment(
        tmp_path, runs=12, proxy=3000, target=12_000, size=16, layers=1, every=5, rows=4, points=3
    )
    assert {name: len(curve) for name, curve in curves.items()} == {"natural": 3, "best": 3}
    assert all(set(point) == {"tokens", "code", "prose"} for curve in curves.values() for point in curve)
    rows = list(csv.DictReader((tmp_path / "losses.csv").open()))
    assert [row["run"] for row in rows] == [f"run-{number:03}" for number in range(1, 13)]
    assert len({row["prose"] for row in rows}) == 12  # each run was trained on its own mixture
    best = fm.Recipe.load(tmp_path / "best.yaml").plan()
    assert best.names == fm.Recipe.load(tmp_path / "mix.yaml").plan().names
    assert len(list(csv.reader((tmp_path / "curves.csv").open()))) == 7
