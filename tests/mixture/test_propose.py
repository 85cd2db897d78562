"""Swarms: within their limits, the same each time, whole after a kill, and readable as recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.mixture.swarm import read_swarm
from feedmill.storage import local
from helpers.mixture_data import TOKENS, recipe_file

STAGES: list[dict[str, Any]] = [
    {"tokens": 60_000, "weights": {"web": 0.7, "code": 0.2, "math": 0.1}},
    {"tokens": 20_000, "ramp": "linear", "weights": {"web": 0.4, "code": 0.2, "wiki": 0.4}},
    {"weights": {"web": 0.4, "code": 0.2, "math": 0.4}},
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("stages", [None, STAGES], ids=["one stage", "stages"])
@pytest.mark.parametrize("repeats", [1.2, 2, 4])
def test_no_mixture_breaks_a_limit(tmp_path: Path, stages: Any, repeats: float) -> None:
    """As the plans of the recipes count it: within the one sample by which a blend may be off, in each stage."""
    recipe = recipe_file(tmp_path, **({"stages": stages} if stages else {}))
    target = 100_000
    limits = {"max_repeats": repeats, "min_share": ["0.01"], "max_share": ["web=0.8"], "target": target}
    report = fm.mixture.propose(recipe, tmp_path / "swarm", count=12, **limits)
    swarm = read_swarm(tmp_path / "swarm")
    assert swarm.weights.shape == (12, len(stages or [1]), 4) and len({row.tobytes() for row in swarm.weights}) == 12
    assert swarm.weights.min() >= 0.01 and swarm.weights[..., 0].max() <= 0.8
    assert report.clipped > 6 if repeats == 1.2 else report.redrawn, report
    for run in swarm.runs:
        plan = fm.Recipe.load(swarm.path(run)).plan()
        for source in plan.report(target // 40).sources:  # samples have 40 tokens
            assert source.drawn * 40 <= repeats * TOKENS[source.name] + 40 * len(stages or [1]), (run, source)


def test_the_recipes_differ_in_their_weights_alone(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    fm.mixture.propose(recipe, tmp_path / "other/swarm", count=3)
    base = fm.Recipe.load(recipe).plan()
    swarm = read_swarm(tmp_path / "other/swarm")
    assert Path(swarm.recipe) == recipe
    for run, weights in zip(swarm.runs, swarm.weights, strict=True):
        plan = fm.Recipe.load(swarm.path(run)).plan()
        assert plan.names == base.names and plan.seed == base.seed
        assert [one.url for one in plan.sources] == [one.url for one in base.sources]
        assert [float(one.asked) for one in plan.report(0).sources] != [0.25] * 4
        drawn = np.array(plan.drawn(2000)) / 2000
        assert np.abs(drawn - weights[0]).max() < 1e-3


def test_the_same_options_give_the_same_files_and_more_mixtures_begin_with_them(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    for name, options in {"a": {}, "b": {}, "more": {"count": 9}, "other": {"seed": -1}}.items():
        fm.mixture.propose(recipe, tmp_path / name, **{"count": 4, **options})
    found = {name: contents(tmp_path / name) for name in ("a", "b", "more", "other")}
    assert found["a"] == found["b"] and found["a"]["run-001.yaml"] != found["other"]["run-001.yaml"]
    assert all(found["more"][f"run-00{n}.yaml"] == found["a"][f"run-00{n}.yaml"] for n in (1, 2, 3, 4))


@pytest.mark.parametrize("files", range(6))
def test_a_killed_run_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    recipe = recipe_file(tmp_path)
    whole = tmp_path / "whole"
    fm.mixture.propose(recipe, whole, count=4)
    left = [files]

    def stop(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        replace(*arguments)

    replace = local.replace
    with monkeypatch.context() as patch:
        patch.setattr(local, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            fm.mixture.propose(recipe, tmp_path / "swarm", count=4)
    assert len(contents(tmp_path / "swarm") if files else {}) == files
    with pytest.raises(fm.NotFound, match="no complete swarm"):
        read_swarm(tmp_path / "swarm")
    if files:
        with pytest.raises(fm.ConfigError, match=r"another recipe or of other options|something else"):
            fm.mixture.propose(recipe, tmp_path / "swarm", count=4, seed=1)
    assert fm.mixture.propose(recipe, tmp_path / "swarm", count=4).written == 6 - files
    assert contents(tmp_path / "swarm") == contents(whole)


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    (tmp_path / "swarm").mkdir()
    (tmp_path / "swarm/notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(fm.ConfigError, match=r"something else: notes.txt"):
            fm.mixture.propose(recipe, tmp_path / "swarm", count=2, overwrite=overwrite)
    (tmp_path / "swarm/notes.txt").unlink()
    fm.mixture.propose(recipe, tmp_path / "swarm", count=5)
    (tmp_path / "swarm/losses.csv").write_text("run,loss")
    with pytest.raises(fm.ConfigError, match="--overwrite"):
        fm.mixture.propose(recipe, tmp_path / "swarm", count=2)
    fm.mixture.propose(recipe, tmp_path / "swarm", count=2, overwrite=True)
    names = {"losses.csv", "mixtures.csv", "run-001.yaml", "run-002.yaml", "swarm.json"}
    assert contents(tmp_path / "swarm").keys() == names
    assert fm.mixture.propose(recipe, tmp_path / "swarm", count=2).written == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_repeats": 2}, "size of the target run is unknown. Pass --target N: its size in tokens"),
        ({"max_repeats": 1, "target": 10**6}, r"add up to 9.2000% of 1,000,000 .*--target of at most 92,000"),
        ({"min_share": ["0.3"]}, "smallest shares add up to 120"),
        ({"min_share": ["wiki=0.3"], "max_repeats": 1, "target": 40_000}, "'wiki' is 30.0000%, the largest 10.0000%"),
        ({"max_share": ["0.2"]}, "largest shares add up to 80"),
        ({"max_share": ["wikki=0.2"]}, "Did you mean 'wiki'?"),
        ({"max_share": ["2"]}, "not a share"),
        ({"max_share": ["x"]}, "not a number"),
        ({"max_share": ["0.25"]}, "too few mixtures: 1 different"),
        ({"concentration": "5,1"}, "two of them in order"),
        ({"concentration": "a"}, "--concentration is 'a'"),
        ({"temperature": float("nan")}, "temperature=nan is not a number"),
        ({"max_repeats": 0, "target": 5}, "--max-repeats is 0"),
        ({"target": 0}, "target=0 is below 1"),
        ({"count": 0}, "count=0 is below 1"),
    ],
)
def test_limits_that_no_mixture_keeps_are_errors_with_the_arithmetic(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    recipe = recipe_file(tmp_path)
    with pytest.raises(fm.ConfigError, match=words):
        fm.mixture.propose(recipe, tmp_path / "swarm", **{"count": 4, **options})
    assert not (tmp_path / "swarm").exists()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"blend": [{"path": "data/web.pbin"}]}, "at least 2 sources"),
        ({"unit": "samples", "order": "nanoset"}, "order 'nanoset'"),
        ({"unit": "hours"}, "no robot episodes"),
        ({"stages": [{"samples": 5, "weights": dict.fromkeys(TOKENS, 1)}, {"weights": {"web": 1}}]}, "no length in"),
        ({"stages": [{"tokens": 10**7, "weights": dict.fromkeys(TOKENS, 1)}, {"weights": {"web": 1}}]}, "run ends"),
    ],
)
def test_recipes_without_mixtures_are_errors(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    recipe = recipe_file(tmp_path, **keys)
    with pytest.raises(fm.ConfigError, match=words):
        fm.mixture.propose(recipe, tmp_path / "swarm", count=2, max_repeats=3, target=1000)


def test_limits_of_the_recipe_and_its_length_are_used(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, unit="samples", samples=2000)
    data = yaml.safe_load(recipe.read_text())
    data["blend"][3]["max_repeats"] = 2
    recipe.write_text(yaml.safe_dump(data))
    report = fm.mixture.propose(recipe, tmp_path / "swarm", count=20)
    wiki = report.sources[3]
    assert report.target == 2000 and wiki["most_share"] == 0.1 and 1 < wiki["most_repeats"] <= 2
    facts = json.loads((tmp_path / "swarm/swarm.json").read_text())
    assert [one["max_repeats"] for one in facts["sources"]] == [None, None, None, 2]


def test_mixtures_around_the_recipes_own_weights(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, stages=STAGES)
    report = fm.mixture.propose(recipe, tmp_path / "s", count=40, around="recipe", concentration=(200, 200))
    weights = read_swarm(tmp_path / "s").weights
    own = np.array([[0.7, 0.2, 0.1, 0], [0.4, 0.2, 0, 0.4], [0.4, 0.2, 0.4, 0]])
    assert np.abs(weights.mean(axis=0) - own).max() < 0.03 and report.redrawn < 40


def test_small_sources_keep_their_resolution(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, {"web": 400_000, "rare": 40})
    fm.mixture.propose(recipe, tmp_path / "swarm", count=16, concentration=50)
    weights = read_swarm(tmp_path / "swarm").weights
    assert (weights[..., 1] % 1e-4 > 1e-9).any()


def test_the_command_line_shows_the_sources(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    words = ["mixture", "propose", str(recipe), "-o", str(tmp_path / "swarm"), "-n", "4", "--target", "100k"]
    done = CliRunner().invoke(app, [*words, "--max-repeats", "2", "--seed", "5"])
    assert done.exit_code == 0, done.output
    assert "4 mixtures of" in done.output and "for a run of 100,000 tokens" in done.output
    assert "drawn again" in done.output and "wiki" in done.output
    data = json.loads(CliRunner().invoke(app, [*words, "--max-repeats", "2", "--seed", "5", "--json"]).output)
    assert data["runs"] == 4 and data["written"] == 0 and data["sources"][3]["most_share"] == pytest.approx(0.08)


@pytest.mark.parametrize("staged", [False, True])
def test_cells_are_sources(tmp_path: Path, staged: bool) -> None:
    """By their names, with weights in the recipes of the runs, and limits on each cell."""
    topics = ["web"] * 60 + ["code"] * 30 + ["math"] * 10
    lines = [json.dumps({"id": f"d{n}", "text": "x", "topic": topic}) for n, topic in enumerate(topics)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    recipe = tmp_path / "recipe.yaml"
    data: dict[str, Any] = {"blend": {"cells": {"of": "docs.jsonl", "by": ["topic"]}, "max_repeats": 3}}
    if staged:
        weights = {"topic=web": 0.5, "topic=code": 0.3, "topic=math": 0.2}
        data["stages"] = [{"samples": 60, "weights": weights}, {"weights": weights}]
    recipe.write_text(yaml.safe_dump(data))
    fm.mixture.cells(recipe, progress=False)
    report = fm.mixture.propose(recipe, tmp_path / "deep/swarm", count=6, target=100, around="recipe")
    swarm = read_swarm(tmp_path / "deep/swarm")
    assert {one["name"]: one["at_hand"] for one in report.sources} == {
        "docs[topic=code]": 30,
        "docs[topic=math]": 10,
        "docs[topic=web]": 60,
    }
    assert all(one["most_repeats"] <= 3 for one in report.sources)
    for run, weights in zip(swarm.runs, swarm.weights, strict=True):
        plan = fm.Recipe.load(swarm.path(run)).plan()
        parts = np.array([0.6, 0.4]) if staged else np.ones(1)
        assert plan.names == list(swarm.names)
        assert np.abs(np.array(plan.drawn(100)) - 100 * parts @ weights).max() <= 2
