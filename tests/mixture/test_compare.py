"""Recipes side by side: shares, repeats and distances as their plans have them, and datasets opened once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.samples import open as open_module
from helpers.mixture_data import TOKENS, recipe_file


def test_shares_repeats_and_distances_are_those_of_the_plans(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    other = tmp_path / "other.yaml"
    other.write_text("blend: [{path: data/web.pbin, weight: 3}, {path: data/code.pbin, weight: 1, name: python}]")
    report = fm.mixture.compare([recipe, other], tokens=40_000)
    assert report.sources == [*TOKENS, "python"] and report.unit == "tokens"
    first, second = report.recipes
    plan = fm.Recipe.load(recipe).plan()
    drawn = {one.name: one.repeats for one in plan.report(first["samples"]).sources}
    assert {name: first["repeats"][name] for name in TOKENS} == drawn and first["repeats"]["python"] is None
    assert second["shares"] == {"web": 0.75, "code": None, "math": None, "wiki": None, "python": 0.25}
    assert first["distance"] == 0 and second["distance"] == pytest.approx(0.75)


def test_sources_beyond_their_limits_are_named(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, unit="samples")
    recipe.write_text(recipe.read_text().replace("wiki.pbin", "wiki.pbin\n  max_repeats: 2"))
    fm.mixture.propose(recipe, tmp_path / "swarm", count=3, target=900)
    words = ["mixture", "compare", str(tmp_path / "swarm"), str(recipe), "--samples", "600"]
    assert CliRunner().invoke(app, words).exit_code == 0
    done = CliRunner().invoke(app, [*words, "--max-repeats", "0.5"])
    assert done.exit_code == 1 and "beyond the limit: recipe repeats wiki 1.50 times, at most 0.5" in done.output
    data = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert [row["name"] for row in data["recipes"]] == ["run-001", "run-002", "run-003", "recipe"]
    assert [row["at_most"]["wiki"] for row in data["recipes"]] == [2] * 4


def test_datasets_are_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_file(tmp_path)
    fm.mixture.propose(recipe, tmp_path / "swarm", count=30)
    opened: list[str] = []
    inner = open_module.open

    def counting(path: Any, **options: Any) -> Any:
        opened.append(str(path))
        return inner(path, **options)

    monkeypatch.setattr(open_module, "open", counting)
    report = fm.mixture.compare([tmp_path / "swarm"], tokens=10**5)
    assert len(report.recipes) == 30 and len(opened) <= 2 * len(TOKENS)
    assert (
        "30 recipes"
        in CliRunner().invoke(app, ["mixture", "compare", str(tmp_path / "swarm"), "--tokens", "9k"]).output
    )


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    with pytest.raises(fm.ConfigError, match="nothing to be compared with"):
        fm.mixture.compare([recipe], tokens=5)
    with pytest.raises(fm.ConfigError, match="Pass one of --samples and --tokens"):
        fm.mixture.compare([recipe, recipe], tokens=5, samples=5)
    with pytest.raises(fm.ConfigError, match="no end"):
        fm.mixture.compare([recipe, recipe])
