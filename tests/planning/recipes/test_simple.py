"""Recipes from a path and a few arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedmill.errors import ConfigError
from feedmill.planning.recipes.simple import recipe_for


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for name in ("docs", "code"):
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n' * 5)
    path = tmp_path / "mixture.yaml"
    path.write_text("splits:\n  train:\n    datasets:\n    - path: docs.jsonl\n    - path: code.jsonl\n")
    return path


def test_arguments_stand_at_the_top_of_the_recipe(mixture: Path) -> None:
    recipe = recipe_for(mixture, seed=3, shuffle="none")
    assert str(recipe).startswith("mixture.yaml: seed 3, shuffle none, blend")
    assert recipe.where(("blend", 1)) == f"{mixture}:5"
    assert recipe.plan().seed == 3
    assert recipe_for(mixture).fingerprint != recipe.fingerprint


def test_arguments_that_do_not_go_with_the_recipe_are_one_message(mixture: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{mixture}.*a blend has no 'epochs'"):
        recipe_for(mixture, epochs=1)
    with pytest.raises(ConfigError, match="input should be 'none', 'global', 'block' or 'shards', found 'all'"):
        recipe_for(mixture, shuffle="all")
