"""What may be given where a plan or a dataset is expected: datasets, recipes, and their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset

Given = str | os.PathLike[str] | Dataset | Recipe | Mapping[str, Any]
"""A recipe, its data, a dataset, or the path or URL of one of them."""
_RECIPES = (".yaml", ".yml")


def plan_of(given: Any, epochs: float | str | None = None) -> Any:
    """Return the plan of a recipe (its file, or its data) or of a dataset (or its path); other objects unchanged.

    The plan of a dataset is that of `Plan.over` without other options: shuffled by blocks, and endless without epochs.

    Args:
        given: what stands for a plan.
        epochs: passes over a dataset.

    Raises:
        ConfigError: this is something else, an empty path, or a list, of which a plan needs weights or an order.
        FeedmillError: as `Recipe.load`, `Recipe.plan` and `feedmill.open` do.
    """
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        if not path:
            raise ConfigError("the path is empty", kind="no-plan", fix="Give the path of a recipe or a dataset.")
        given = Recipe.load(path) if path.endswith(_RECIPES) else open_dataset(path)
    elif isinstance(given, Mapping):
        given = Recipe.parse(given)
    if isinstance(given, Recipe):
        if epochs is not None:
            raise ConfigError(
                f"epochs={epochs!r} has no use: a recipe has its own end",
                kind="bad-epochs",
                fix="Set 'epochs' or 'samples' in the recipe.",
            )
        return given.plan()
    if isinstance(given, Dataset):
        return Plan.over(given, epochs=epochs)
    if isinstance(given, list | tuple):
        raise ConfigError(
            f"{len(given)} datasets are not a plan",
            kind="no-plan",
            fix="Write fm.Plan.over(datasets, weights), fm.Plan.over(datasets, epochs=1), or a recipe.",
        )
    if not hasattr(given, "length"):
        raise ConfigError(
            f"{type(given).__name__} is not a plan",
            kind="no-plan",
            fix="Give a plan, a recipe, a dataset, or the path of one of them.",
        )
    return given
