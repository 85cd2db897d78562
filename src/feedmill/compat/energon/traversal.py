"""Energon's `traverse_metadataset`: the datasets of a metadataset, with paths as `EPath`."""

from __future__ import annotations

import os
from dataclasses import replace

from feedmill.compat.energon.epathlib import EPath
from feedmill.planning.recipes.simple import TraversedDatasetReference
from feedmill.planning.recipes.simple import traverse_metadataset as traverse
from feedmill.samples.stores import FOLDER

__all__ = ["traverse_metadataset"]


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str = "train") -> list[TraversedDatasetReference]:
    """Return the datasets of a split, in order. Auxiliary folders have their own path, without ``filesystem://``.

    Raises:
        NotFound, ConfigError: as `feedmill.planning.recipes.simple.traverse_metadataset`.
    """
    return [
        replace(found, path=EPath(found.path), aux={name: _folder(url) for name, url in found.aux.items()})
        for found in traverse(path, split_part=split_part)
    ]


def _folder(url: str) -> EPath:
    return EPath(url.removeprefix(f"{FOLDER}://").removeprefix(f"{FOLDER}+"))
