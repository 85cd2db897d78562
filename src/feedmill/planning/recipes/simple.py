"""Build recipes from a path and arguments, for callers without a recipe file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.planning.dialects import TRAIN, VALIDATION
from feedmill.planning.recipes import read
from feedmill.planning.recipes.recipe import Recipe
from feedmill.storage import split_url


def recipe_for(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    split: str | None = None,
    mode: str = TRAIN,
    seed: int = 0,
    shuffle: str | Mapping[str, Any] | None = None,
    epochs: int | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
) -> Recipe:
    """Return the recipe of a dataset or metadataset, with the arguments applied.

    Args:
        path: a dataset, a metadataset or recipe, or a metadataset as plain data.
        split: name of a split.
        mode: ``train``; or ``validation``, which reads every sample once, in stored order.
        seed: seed of the order for training.
        shuffle: how to shuffle for training, as in a recipe; sources can override it.
        epochs: passes over the data; None for no end. Validation always has one.
        dataset_config, split_config: names of other configuration files of a prepared folder.

    Raises:
        NotFound, ConfigError: as `Recipe.load`; or an argument is not supported for this kind of data.
    """
    opening = {"dataset_config": dataset_config, "split_config": split_config}
    opening = {name: value for name, value in opening.items() if value is not None}
    if not isinstance(path, Mapping):
        url = os.fspath(path)
        url = url if "://" in url else os.path.abspath(url)
        if read.is_dataset(url):
            return _of_dataset(url, split, mode, _order(mode, seed, shuffle, epochs), opening)
        recipe = Recipe.load(url, split=split, mode=mode)
    else:
        recipe = Recipe.parse(path, split=split, mode=mode)
    if opening:
        raise ConfigError(
            f"{next(iter(opening))} applies to a single prepared folder only",
            file=recipe.file,
            fix="Set it in the metadataset, in the entry of the dataset.",
        )
    order = _order(mode, seed, shuffle, epochs)
    return recipe.restated(order) if order else recipe


def _order(mode: str, seed: int, shuffle: str | Mapping[str, Any] | None, epochs: int | None) -> dict[str, Any]:
    order: dict[str, Any] = {"seed": seed} if seed else {}
    if mode == VALIDATION:
        return order
    if shuffle is not None:
        order["shuffle"] = shuffle
    if epochs is not None:
        order["epochs"] = epochs
    return order


def _of_dataset(url: str, split: str | None, mode: str, order: Mapping[str, Any], opening: Mapping[str, Any]) -> Recipe:
    folder, name = split_url(url.rstrip("/"))
    source = {"path": name or url, **opening, **({} if split is None else {"split": split})}
    validation = {"shuffle": "none", "epochs": 1} if mode == VALIDATION else {}
    return Recipe.parse({"source": source, **validation, **order}, base=folder if name else "")
