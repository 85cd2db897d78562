"""Recipes from a path and arguments, for callers without a recipe file, and the datasets of a metadataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.dialects import TRAIN, VALIDATION, Translation
from feedmill.planning.dialects.energon import Asked
from feedmill.planning.recipes import read
from feedmill.planning.recipes.member import aux_url, bounds_of
from feedmill.planning.recipes.read import Open, members
from feedmill.planning.recipes.recipe import Recipe
from feedmill.storage import join_url, split_url

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan


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
    asked: Asked = Asked(),
) -> Recipe:
    """Return the recipe of a dataset or metadataset, with the arguments applied.

    A recipe of Feedmill's own has its own seed, shuffle and passes: these arguments do not apply to it.

    Args:
        path: a dataset, a metadataset or recipe, or a metadataset as plain data.
        split: name of a split.
        mode: ``train``; or ``validation``, which reads every sample once, in stored order.
        seed: seed of the order for training.
        shuffle: how to shuffle for training, as in a recipe; sources can override it.
        epochs: passes over the data; None for no end. Validation always has one.
        dataset_config, split_config: names of other configuration files of a prepared folder.
        asked: what is asked of the dataset, or of all datasets of a metadataset. Passes of a dataset are in `epochs`.

    Raises:
        NotFound, ConfigError: as `Recipe.load`; or an argument is not supported for this kind of data.
    """
    opening = {"dataset_config": dataset_config, "split_config": split_config}
    opening = {name: value for name, value in opening.items() if value is not None}
    if not isinstance(path, Mapping):
        url = os.fspath(path)
        url = url if "://" in url else os.path.abspath(url)
        if read.is_dataset(url):
            return _of_dataset(url, split, mode, _order(mode, seed, shuffle, epochs), opening, asked)
        recipe = Recipe._of(read.load(url, split, mode, asked=None if asked == Asked() else asked))
    else:
        here = os.path.abspath(".")
        recipe = Recipe._of(read.parse(path, here, None, split, mode, asked=None if asked == Asked() else asked))
    if opening:
        raise ConfigError(
            f"{next(iter(opening))} applies to a single prepared folder only",
            file=recipe.file,
            fix="Set it in the metadataset, in the entry of the dataset.",
        )
    own = not isinstance(recipe.marks, Translation)  # a recipe of Feedmill says its order itself
    order = {} if own else _order(mode, seed, shuffle, epochs)
    return recipe.restated(order) if order else recipe


def sources_of(
    path: str | os.PathLike[str] | Mapping[str, Any], split: str, open: Open, asked: Asked, *, trust: bool = False
) -> tuple[Plan, list[tuple[int | None, tuple[int, int] | None]]]:
    """Return the plan of a split of a metadataset, and what it says of each of its sources.

    Args:
        path: the metadataset, or its content.
        split: name of the split.
        open: opens one dataset.
        asked: what is asked of all datasets.
        trust: allow joiners to run.

    Returns:
        The plan; and for each source the passes of a loop (None for the stored order), and first and end of its subset.
    """
    recipe = recipe_for(path, split=split, asked=asked)
    plan = recipe.plan(open, trust=trust)
    passes = recipe.marks.passes if isinstance(recipe.marks, Translation) else {}
    leaves = [(place, member) for place, member in members(recipe.model) if member.path or member.join is not None]
    said: list[tuple[int | None, tuple[int, int] | None]] = []
    for (place, member), dataset in zip(leaves, plan.sources, strict=True):
        stored = member.shuffle is not None and member.shuffle.kind == "none"
        bounds = bounds_of(recipe, member, dataset) if member.ranges else None
        said.append((None if stored else passes.get(place, 1), bounds))
    return plan, said


def _order(mode: str, seed: int, shuffle: str | Mapping[str, Any] | None, epochs: int | None) -> dict[str, Any]:
    order: dict[str, Any] = {"seed": seed} if seed else {}
    if mode == VALIDATION:
        return order
    if shuffle is not None:
        order["shuffle"] = shuffle
    if epochs is not None:
        order["epochs"] = epochs
    return order


def _of_dataset(
    url: str, split: str | None, mode: str, order: Mapping[str, Any], opening: Mapping[str, Any], asked: Asked
) -> Recipe:
    folder, name = split_url(url.rstrip("/"))
    found = {
        "split": split,
        "subset": [list(bounds) for bounds in asked.ranges] or None,
        "subflavors": dict(asked.subflavors) or None,
        "shuffle": "none" if asked.passes is None and mode != VALIDATION else None,
    }
    source = {"path": name or url, **opening, **{key: value for key, value in found.items() if value is not None}}
    validation = {"shuffle": "none", "epochs": 1} if mode == VALIDATION else {}
    return Recipe.parse({"source": source, **validation, **order}, base=folder if name else "")


@dataclass(frozen=True, slots=True)
class TraversedDatasetReference:
    """One dataset of a metadataset.

    Attributes:
        path: path or URL.
        split_part: its split.
        aux: name -> path or URL of auxiliary data.
        subflavors: data attached to its samples; values of outer files override those of inner files.
    """

    path: str
    split_part: str | None
    aux: Mapping[str, str] = field(default_factory=dict)
    subflavors: Mapping[str, Any] = field(default_factory=dict)


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str = "train") -> list[TraversedDatasetReference]:
    """Return the datasets of a split, in order. Only the metadatasets themselves are opened.

    Raises:
        NotFound, ConfigError: as `Recipe.load`; also for a join, which is not a single dataset.
    """
    recipe = Recipe.load(path, split=split_part, mode="validation")
    found = []
    for place, member in members(recipe.model):
        if member.join is not None:
            raise ConfigError("a join is not a single dataset", file=recipe.where(place), kind="unsupported")
        if member.path is not None:
            aux = {name: aux_url(recipe.base, url) for name, url in (member.aux or {}).items()}
            url = join_url(recipe.base, member.path)
            found.append(TraversedDatasetReference(url, member.split, aux, member.subflavors or {}))
    return found
