"""Measuring a plan: figures that fit together, advice that follows from them; and the verb."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError
from feedmill.loading.bench import BenchReport, Rate, advice, bench
from feedmill.planning.recipes.recipe import Recipe
from helpers.tars import make_shards


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    make_shards(tmp_path / "tars", [30, 30], parts=("json",))
    path = tmp_path / "recipe.yaml"
    path.write_text("source: {path: tars}\nepochs: 2\n")
    return path


def slow(sample: Any) -> Any:
    time.sleep(0.002)
    return {"n": 1}


def test_figures_fit_together(recipe: Path) -> None:
    said: list[str] = []
    plan = Recipe.load(recipe).plan()
    (
        plan.read(range(16)),
        plan.read_batch(range(16), "parts"),
    )  # where kernels are not compiled yet, that is no part of the work
    report = bench(plan, 4, workers=[0, 2], seconds=0.2, transform=slow, log=said.append)
    none, two = report.rates
    assert min(none.transform, two.transform) >= 8 and none.samples_per_second < 500
    assert min(report.stored_samples_per_second, report.undecoded_samples_per_second) > 0 and said == [
        "no workers",
        "2 threads",
        "without decoding",
    ]
    assert "of the work is the transform" in report.advice[0] and len(report.advice) >= 2


def test_advice_follows_from_the_figures(recipe: Path) -> None:
    plan = Recipe.load(recipe).plan()
    report = BenchReport(
        *("x", 10, 1, 4),
        [Rate(0, False, 100, 0.1, 90, 1, 5, samples=10), Rate(4, False, 90, 0.1, 80, 1, 5, samples=10)],
        *(110, 5_000),
    )
    told = advice(report, plan)
    assert (
        told[0] == "94 % of the work is reading, with what a declared sample type decodes."
        and "workers=0" in told[1]
        and "45 times" not in told[1]
    )
    assert told[2].startswith("Stored order reads 45 times as fast")


@pytest.mark.parametrize("more", ["", "batch: {bytes: 4096, max_samples: 64}\n"])
def test_a_run_after_the_end_of_the_plan_begins_again(recipe: Path, more: str) -> None:
    recipe.write_text(recipe.read_text() + more)
    report = bench(recipe, workers=[0, 1, 2], seconds=0.05)
    assert min(rate.samples_per_second for rate in report.rates) > 0
    for start, message in {120: "no batch to measure from position 120 on", 121: "expected 0 to 120"}.items():
        with pytest.raises(ConfigError, match=message):
            bench(recipe, workers=[0], start=start)


def test_no_advice_on_workers_that_were_not_tried(recipe: Path) -> None:
    assert not any("orkers" in sentence for sentence in bench(recipe, workers=[0], seconds=0.05).advice)
    report = BenchReport("x", 10, 1, 4, [Rate(n, False, 100 - n, 0.1, 90, 1, 5, samples=10) for n in (0, 1)])
    assert "Workers made nothing faster" in advice(report, Recipe.load(recipe).plan())[1]


def test_the_verb(recipe: Path, tmp_path: Path) -> None:
    arguments = ["bench", str(recipe), "--workers", "0,1", "--seconds", "0.1", "--batch-size", "8"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    data = json.loads(done.stdout)
    assert done.exit_code == 0 and [rate["workers"] for rate in data["rates"]] == [0, 1] and data["batch_size"] == 8
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and "in stored order" in shown.stdout and "1 thread" in shown.stdout
    ranks = CliRunner().invoke(app, ["bench", str(recipe), "--workers", "0", "--seconds", "0.1", "--world", "3"])
    assert "batches of 32 samples for the first of 3 ranks" in ranks.stdout and "costliest" not in ranks.stdout
    for nonsense in (["--workers", "x"], ["--workers", "²"], ["--workers", "9" * 5000], ["--seconds", "nan"]):
        assert CliRunner().invoke(app, ["bench", str(recipe), *nonsense]).exit_code == 2
    missing = CliRunner().invoke(app, ["bench", str(tmp_path / "none.yaml")])
    assert missing.exit_code == 1 and "none.yaml" in missing.stderr


def test_ranks_and_budgets(recipe: Path, tmp_path: Path) -> None:
    balanced = tmp_path / "balanced.yaml"
    balanced.write_text(recipe.read_text() + "balance: bytes\n")
    arguments = ["bench", str(balanced), "--workers", "0", "--seconds", "0.1", "--world", "3", "-b", "2"]
    data = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert data["world_size"] == 3 and data["rates"][0]["samples"] == 2 and data["rates"][0]["cost_spread"] >= 1
    assert "times the mean cost of the ranks" in CliRunner().invoke(app, arguments).stdout
    budget = tmp_path / "budget.yaml"
    budget.write_text(recipe.read_text() + "batch: {bytes: 20000}\n")
    shown = CliRunner().invoke(app, ["bench", str(budget), "--workers", "0", "--seconds", "0.1"])
    assert shown.exit_code == 0 and "samples by budget" in shown.stdout
