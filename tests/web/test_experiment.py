"""The Mixture view of a recipe that a fit proposed, and of a run of a swarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.mixture.swarm import read_swarm
from feedmill.web.mixture import experiment
from helpers.mixture_data import TOKENS, recipe_file

SLOTS = {name: number + 1 for number, name in enumerate(TOKENS)}


def report(folder: Path, **changes: Any) -> Path:
    """A fit's report beside a recipe, as `mixture fit` writes it; without fitting, which takes seconds."""
    runs = [{"run": f"run-00{n}", "loss": 3 + n / 10, "law": 3.02 + n / 10} for n in range(1, 4)]
    source = {"natural": 0.25, "share": 0.25, "lowest": 0.0, "highest": 0.9, "repeats": 2.0, "max_repeats": 4}
    model = {"held_out_error": 0.02, "interval": [0.01, 0.03], "rank_correlation": 1.0, "explained": 0.9}
    data = {
        "kind": "feedmill fit",
        "version": 1,
        "swarm": "swarm",
        "losses": "losses.csv",
        "metrics": {"loss": 1.0},
        "unit": "tokens",
        "target": 1000,
        "runs": 3,
        "chosen": "law",
        "predicted": 3.0,
        "interval": [2.9, 3.1],
        "natural": 3.2,
        "best_run": {"run": "run-001", "loss": 3.1},
        "left_out": {},
        "notes": ["a note"],
        "models": {"law": model, "trees": {"left_out": "too few"}},
        "sources": [{"name": name, **source} for name in TOKENS],
        "points": runs,
        **changes,
    }
    (folder / "best.json").write_text(json.dumps(data))
    path = folder / "best.yaml"
    path.write_text((folder / "recipe.yaml").read_text())
    return path


def test_a_fit_and_its_swarm_are_shown(tmp_path: Path) -> None:
    fm.mixture.propose(recipe_file(tmp_path), tmp_path / "swarm", count=3)
    found = experiment(str(report(tmp_path)), SLOTS)
    assert found and found["problem"] is None and found["swarm"]["runs"] == 3
    assert [point["run"] for point in found["scatter"]["points"]] == ["run-001", "run-002", "run-003"]
    assert all(0 <= point["x"] <= 300 and 0 <= point["y"] <= 300 for point in found["scatter"]["points"])
    assert [row["name"] for row in found["strips"]["rows"]] == list(TOKENS)
    assert [row["slot"] for row in found["strips"]["rows"]] == [1, 2, 3, 4]
    weights = read_swarm(tmp_path / "swarm").weights[:, 0]
    top = max(weights.max(), 0.25)
    assert len(found["strips"]["rows"][0]["runs"]) == len({round(value / top * 1000, 1) for value in weights[:, 0]})


def test_a_run_of_a_swarm_is_shown_without_a_fit_and_other_recipes_have_nothing(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    fm.mixture.propose(recipe, tmp_path / "swarm", count=2)
    found = experiment(str(tmp_path / "swarm/run-002.yaml"), SLOTS)
    assert found and found["fit"] is None and found["run"] == "run-002" and found["strips"]["own"] == "this run"
    assert experiment(str(recipe), SLOTS) is None
    (tmp_path / "recipe.json").write_text("{}")
    assert experiment(str(recipe), SLOTS) is None


@pytest.mark.parametrize(
    "changes",
    [{"points": []}, {"interval": [1]}, {"sources": [{}]}, {"predicted": "x"}, {"models": 3}, {"sources": []}],
)
def test_a_damaged_report_is_a_note_on_the_page(tmp_path: Path, changes: dict[str, Any]) -> None:
    fm.mixture.propose(recipe_file(tmp_path), tmp_path / "swarm", count=2)
    found = experiment(str(report(tmp_path, **changes)), SLOTS)
    assert found and "fit" in found["problem"] and found["fit"] is None


def test_the_folder_of_a_swarm_names_its_recipes(tmp_path: Path) -> None:
    fm.mixture.propose(recipe_file(tmp_path), tmp_path / "swarm", count=2)
    with pytest.raises(ConfigError, match=r"this is a swarm of mixtures.*run-001\.yaml"):
        fm.report([tmp_path / "swarm"], tmp_path / "swarm.html")
