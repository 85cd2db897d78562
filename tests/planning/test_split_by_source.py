"""A plan for validation, taken apart into its sources."""

from __future__ import annotations

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.planning.plan import split_by_source
from feedmill.planning.recipes.recipe import Recipe
from helpers.digests import GOLDEN

META = GOLDEN / "metadatasets"


@pytest.mark.parametrize("name", ["v1.yaml", "blend.yaml", "nested.yaml", "epochs.yaml"])
def test_parts_are_the_whole_in_order(name: str) -> None:
    whole = Recipe.load(META / name, split="train", mode="validation").plan()
    parts = split_by_source(whole)
    located = whole.locate(np.arange(whole.length or 0))
    assert [number for part, number in parts for _ in range(len(part))] == located.source.tolist()
    keys = [sample.__key__ for part, _ in parts for sample in part.read(range(len(part)))]
    assert keys == [sample.__key__ for sample in whole.read(range(len(whole)))]


def test_mixtures_and_endless_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="endless"):
        split_by_source(Recipe.load(META / "blend.yaml", split="train").plan())
    recipe = Recipe.parse({"blend": [{"path": "dsA"}, {"path": "dsB"}], "samples": 20}, base=META)
    with pytest.raises(ConfigError, match="mixes its sources"):
        split_by_source(recipe.plan())
    row = {"concat": [{"path": "dsA"}, {"path": "dsB"}], "shuffle": "global", "epochs": 1}
    with pytest.raises(ConfigError, match="mixes its sources"):
        split_by_source(Recipe.parse(row, base=META).plan())
