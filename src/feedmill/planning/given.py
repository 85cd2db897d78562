"""Make a plan of a recipe, its data or its file, or of a dataset or its path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.planning.plan import Plan

if TYPE_CHECKING:
    from feedmill.planning.recipes.recipe import Recipe

Given: TypeAlias = "str | os.PathLike[str] | Dataset | Recipe | Mapping[str, Any]"
"""A recipe, its data, a dataset, or the path or URL of one of them."""
_RECIPES = (".yaml", ".yml")


def bound_plan(
    recipe: str | os.PathLike[str] | Recipe | Plan, *, trust: bool = False, proxy: str | None = None
) -> tuple[Plan, str | None]:
    """Return the plan of a recipe, and the path of the recipe if known.

    Args:
        recipe: path or URL of a recipe, a loaded recipe, or a plan, which is returned as it is.
        trust: allow the recipe to run code; see `Recipe.plan`.
        proxy: plan a proxy of the recipe instead; see `Recipe.plan`.

    Raises:
        ConfigError: `proxy` is given with a plan.
        FeedmillError: as `Recipe.load` and `Recipe.plan` do.
    """
    if isinstance(recipe, Plan):
        if proxy is not None:
            raise ConfigError(
                "a plan has no proxy", kind="bad-option", fix="Give the recipe, or plan it with proxy=...: Recipe.plan."
            )
        return recipe, None
    from feedmill.planning.recipes.recipe import Recipe

    if isinstance(recipe, Recipe):
        return recipe.plan(trust=trust, proxy=proxy), recipe.file
    return Recipe.load(recipe).plan(trust=trust, proxy=proxy), str(recipe)


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
            raise ConfigError("the path is empty", kind="bad-plan", fix="Give the path of a recipe or a dataset.")
        given = _loaded(path) if path.endswith(_RECIPES) else _opened(path)
    if isinstance(given, Dataset):
        return Plan.over(given, epochs=epochs)
    from feedmill.planning.recipes.recipe import Recipe

    if isinstance(given, Mapping):
        _refuse_weights(given)
        given = Recipe.parse(given)
    if isinstance(given, Recipe):
        if epochs is not None:
            raise ConfigError(
                f"epochs={epochs!r} has no use: a recipe has its own end",
                kind="bad-option",
                fix="Set 'epochs' or 'samples' in the recipe.",
            )
        return given.plan()
    if isinstance(given, list | tuple):
        raise ConfigError(
            f"{len(given)} datasets are not a plan",
            kind="bad-plan",
            fix="Write fm.Plan.over(datasets, weights), fm.Plan.over(datasets, epochs=1), or a recipe.",
        )
    if not hasattr(given, "length"):
        raise ConfigError(
            f"{type(given).__name__} is not a plan",
            kind="bad-plan",
            fix="Give a plan, a recipe, a dataset, or the path of one of them.",
        )
    return given


def _refuse_weights(given: Mapping[Any, Any]) -> None:
    """Raise `ConfigError` for paths with weights in the place of a recipe."""
    from feedmill.planning.recipes.schema import RecipeModel

    numbers = all(isinstance(weight, int | float) for weight in given.values())
    if given and numbers and not set(given) & set(RecipeModel.model_fields):
        path, weight = next(iter(given.items()))
        raise ConfigError(
            f"a mapping of {len(given)} paths to weights is not a recipe",
            kind="bad-recipe",
            fix=f"Write {{'blend': [{{'path': {str(path)!r}, 'weight': {weight}}}, ...]}}, or"
            " fm.Plan.over(list(paths), list(weights)).",
        )


def _loaded(path: str) -> Recipe:
    from feedmill.planning.recipes.recipe import Recipe

    return Recipe.load(path)


def _opened(path: str) -> Dataset:
    from feedmill.samples.open import open

    return open(path)
