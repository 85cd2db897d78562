"""Recipes that name each other twice at every level, and patterns of millions of names, are refused soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.tar.names import MAX_EXPANSION, expand
from feedmill.planning.recipes.recipe import Recipe


def test_recipes_that_double_at_every_level_are_refused(tmp_path: Path) -> None:
    for level in range(30):
        blend = f"[{{recipe: {level + 1}.yaml, weight: 1}}, {{recipe: {level + 1}.yaml, weight: 2}}]"
        (tmp_path / f"{level}.yaml").write_text(f"blend: {blend}\n")
    (tmp_path / "30.yaml").write_text("source: x.jsonl\n")
    with pytest.raises(ConfigError, match="more than 1,000 times") as error:
        Recipe.load(tmp_path / "0.yaml")
    assert error.value.kind == "bad-recipe"

    def files(recipe: Recipe) -> int:
        return 1 + sum(map(files, recipe.nested.values()))

    assert files(Recipe.load(tmp_path / "24.yaml")) == 2**7 - 1


def test_metadatasets_that_double_at_every_level_are_refused(tmp_path: Path) -> None:
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    for level in range(30):
        entry = f"{{weight: 1, path: ./{level + 1}.yaml}}"
        (tmp_path / f"{level}.yaml").write_text(f"{head}    blend: [{entry}, {entry}]\n")
    (tmp_path / "30.yaml").write_text(f"{head}    path: ./x\n")
    with pytest.raises(ConfigError, match="more than 1,000 times"):
        Recipe.load(tmp_path / "0.yaml")


def test_patterns_of_millions_of_names_are_refused(tmp_path: Path) -> None:
    assert MAX_EXPANSION == 1_000_000
    (tmp_path / "r.yaml").write_text('source: "{0..9999999}"\n')
    with pytest.raises(FeedmillError, match="more than 1,000,000 names"):
        Recipe.load(tmp_path / "r.yaml").plan()
    with pytest.raises(ConfigError, match="more than 1,000,000 names"):
        expand("{0..999}" * 3)
