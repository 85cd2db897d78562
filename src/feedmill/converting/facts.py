"""Collect what a source has besides samples (splits, sample type, media metadata), and decide what is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from feedmill.converting.fields import is_typed
from feedmill.converting.options import Convert
from feedmill.errors import NotFound
from feedmill.formats import yamls
from feedmill.formats.arrowtypes.features import features_of, kinds_in
from feedmill.formats.base import Dataset
from feedmill.formats.energon import database
from feedmill.formats.episodes import Episodic
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.lerobot.depth import is_depth
from feedmill.formats.tables.dataset import TableDataset
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.vla import COMPANIONS
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.jobs.policy import skips
from feedmill.storage import Store, open_store
from feedmill.storage.cache.copies import cached_copy
from feedmill.writing.copying import runs_of_splits

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'media_metadata'"


class Part(NamedTuple):
    """A part of the source that is kept together: a split (None for all samples) and its number of samples."""

    split: str | None
    samples: int


class Facts(NamedTuple):
    """Facts about a source that its samples do not contain.

    Attributes:
        parts: the splits and their numbers of samples, if each sample is in exactly one split; otherwise empty.
        splits: names of all non-empty splits.
        loose: number of samples that are in no split, or in several.
        excluded: number of samples that the split file excludes.
        description: content of ``dataset.yaml``, or None.
        media: whether the index has media metadata.
        typed: whether the fields are typed columns.
        kind: format of the source.
        companions: files of VLA Foundry's robotics pipeline next to the manifest.
        classes: columns whose class names or array shapes are stored only in the table's schema.
        depths: depth maps of robots, which are written as images.
        fps: steps a second of episodes, if it is known.
    """

    parts: list[tuple[str, int]]
    splits: list[str]
    loose: int
    excluded: int
    description: dict[str, Any] | None
    media: bool
    typed: bool
    kind: str = ""
    companions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    depths: tuple[str, ...] = ()
    fps: float | None = None


def source_facts(dataset: Dataset, url: str, kind: str, split: str | None) -> Facts:
    """Return the facts about a source that was opened with this split."""
    splits = {name: count for name, count in dataset.splits.items() if count}
    loose = _loose(dataset) if splits and split is None else 0
    parts = [(split, len(dataset))] if split else list(dataset.splits.items()) if splits and not loose else []
    description, media = None, False
    if kind == "energon":
        store = open_store(url)
        description, media = _description(store), _has_media(store)
    excluded = int(described(dataset).get("excluded") or 0)
    companions = tuple(n for n in COMPANIONS if isinstance(dataset, ManifestDataset) and dataset.store.exists(n))
    typed = is_typed(dataset)
    features = dataset.features if isinstance(dataset, Episodic) else {}
    columns = with_classes(dataset), tuple(name for name, feature in features.items() if is_depth(feature))
    fps = dataset.fps if isinstance(dataset, Episodic) else None
    return Facts(parts, list(splits), loose, excluded, description, media, typed, kind, companions, *columns, fps)


def with_classes(dataset: Dataset) -> tuple[str, ...]:
    """Return the columns whose Hugging Face features add class names or array shapes to the Arrow type."""
    schema = dataset.schema if isinstance(dataset, TableDataset) else None
    features = {} if schema is None else features_of(schema, dataset.url)
    kinds = {"ClassLabel", "Array2D", "Array3D", "Array4D", "Array5D"}
    return tuple(name for name, feature in features.items() if kinds & kinds_in(feature))


def _loose(dataset: Dataset) -> int:
    """Return the number of samples that are not in exactly one split.

    For formats that know only the sizes of splits, it is the difference of the totals.
    """
    if isinstance(dataset, TarDataset | JsonlDataset):
        return sum(end - begin for begin, end, splits in runs_of_splits(dataset) if len(splits) != 1)
    return abs(len(dataset) - sum(dataset.splits.values()))


def described(dataset: Dataset) -> dict[str, Any]:
    """Return `Dataset.describe`, or an empty dictionary if a file is missing: reading it raises the error later."""
    try:
        return dataset.describe()
    except NotFound:
        return {}


def _description(store: Store) -> dict[str, Any] | None:
    path = f"{database.META}/dataset.yaml"
    if not store.exists(path):
        return None
    found = yamls.read_config(store.read_small(path), store.locate(path)).value
    return found if isinstance(found, dict) else None


def _has_media(store: Store) -> bool:
    if not store.exists(database.INDEX):
        return False
    try:
        uri = database.read_only_uri(cached_copy(store, database.INDEX))
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return connection.execute(_TABLES).fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def keeps_description(facts: Facts, options: Convert) -> bool:
    """Return whether a prepared folder keeps the sample type of the source; otherwise its samples are crude."""
    return bool(facts.description) and "sample_loader" not in (facts.description or {}) and not options.fields


def keeps_companions(keeps: Sequence[str], facts: Facts, options: Convert) -> bool:
    """Return whether the robotics files of VLA Foundry are copied: only to its own format, with complete samples."""
    return bool(facts.companions) and "companions" in keeps and not options.fields


def keeps_media(keeps: Sequence[str], facts: Facts, options: Convert) -> bool:
    """Return whether the media metadata of a prepared folder is kept: only if all samples are kept, complete."""
    whole = not options.fields and options.split is None and not facts.excluded and not skips(options.on_error)
    return facts.media and "media" in keeps and whole
