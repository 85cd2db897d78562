"""List the datasets of a metadataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedmill.errors import ConfigError
from feedmill.planning.recipes.member import aux_url
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.sources import members
from feedmill.storage import join_url


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
            raise ConfigError("a join is not a single dataset", file=recipe.where(place), kind="join")
        if member.path is not None:
            aux = {name: aux_url(recipe.base, url) for name, url in (member.aux or {}).items()}
            url = join_url(recipe.base, member.path)
            found.append(TraversedDatasetReference(url, member.split, aux, member.subflavors or {}))
    return found
