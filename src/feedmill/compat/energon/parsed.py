"""Energon's view of the text of a metadataset: its splits, with what the file says about each dataset.

`DatasetLoader.splits` (`feedmill.compat.energon.metadatasets`) returns these objects. Metadatasets that a file names
are not resolved; `traverse_metadataset` and `load_dataset(...).get_datasets` resolve them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedmill.compat.energon.epathlib import EPath
from feedmill.planning.dialects.energon import split_names
from feedmill.planning.recipes import read
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.stores import FOLDER
from feedmill.storage import join_url, split_url


@dataclass(kw_only=True)
class AuxDatasetReference:
    """Auxiliary data that is a prepared folder or JSONL file, at `path`."""

    path: EPath


@dataclass(kw_only=True)
class AuxFilesystemReference:
    """Auxiliary data that is a plain folder, at `fs_path`."""

    fs_path: EPath


@dataclass(kw_only=True)
class DatasetReference:
    """A dataset or metadataset that a metadataset names. Attributes are None if the file does not set them.

    Attributes:
        path: its path.
        aux: name -> auxiliary data.
        weight, repetitions: its number in a blend by weight, or by repetitions.
        nonmatch: in a join, what to do for a missing partner.
        subset, split_part, subflavors, dataset_config, split_config, shuffle_over_epochs_multiplier: as in the file.
    """

    path: EPath
    aux: Mapping[str, AuxDatasetReference | AuxFilesystemReference] | None = None
    subset: Any = None
    split_part: str | None = None
    subflavor: str | None = None
    subflavors: Mapping[str, Any] | None = None
    dataset_config: str | None = None
    split_config: str | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    weight: float | None = None
    repetitions: float | None = None
    nonmatch: str | None = None


@dataclass(kw_only=True)
class MetadatasetJoin:
    """A join: `join` has its datasets, as a list or by name; the other attributes are as in the file."""

    join: Any
    joiner: Mapping[str, Any] | None = None
    subset: Any = None
    split_part: str | None = None
    subflavors: Mapping[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    weight: float | None = None
    repetitions: float | None = None


@dataclass(kw_only=True)
class MetadatasetBlend:
    """A blend: its members are in `blend` (by weight), `blend_epochized` (by repetitions), or `datasets` (of V1)."""

    blend: list[Any] | None = None
    blend_epochized: list[Any] | None = None
    datasets: list[Any] | None = None
    subset: Any = None


Split = DatasetReference | MetadatasetJoin | MetadatasetBlend


def splits_of(url: str) -> dict[str, Split]:
    """Return the splits of a metadataset by name.

    Raises:
        NotFound, ConfigError: as `feedmill.Recipe.load`, for any of the splits.
    """
    document, folder = read.load_document(url), split_url(url)[0]
    found = {}
    for name in split_names(document):
        Recipe.load(url, split=name, mode="validation")  # raises the errors, with their lines
        found[name] = _entry(document.value["splits"][name], folder)
    return found


def _entry(node: Mapping[str, Any], folder: str) -> Any:
    """Return what an entry describes."""
    given = dict(node)
    if "join" in given:
        parts = given["join"]
        named = isinstance(parts, Mapping)
        made = {name: _entry(parts[name], folder) for name in parts} if named else [_entry(it, folder) for it in parts]
        return MetadatasetJoin(**{**given, "join": made})
    for kind in ("blend", "blend_epochized", "datasets"):
        if kind in given:
            return MetadatasetBlend(**{**given, kind: [_entry(it, folder) for it in given[kind]]})
    if given.get("aux"):
        given["aux"] = {name: _aux(text, folder) for name, text in given["aux"].items()}
    return DatasetReference(**{**given, "path": EPath(join_url(folder, given["path"]))})


def _aux(text: str, folder: str) -> AuxDatasetReference | AuxFilesystemReference:
    for prefix in (f"{FOLDER}://", f"{FOLDER}+"):
        if text.startswith(prefix):
            return AuxFilesystemReference(fs_path=EPath(join_url(folder, text.removeprefix(prefix))))
    return AuxDatasetReference(path=EPath(join_url(folder, text)))
