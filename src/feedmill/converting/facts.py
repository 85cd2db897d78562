"""Facts about a source beside its samples: splits, sample type, media metadata; and which of them go along."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgspec

from feedmill.converting.preview import Options
from feedmill.errors import NotFound
from feedmill.formats import yamls
from feedmill.formats.base import Dataset
from feedmill.formats.energon import database
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.rows import RowsDataset
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.vla import COMPANIONS
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.jobs.policy import skips
from feedmill.storage import Store, open_store
from feedmill.storage.cache import cached_copy
from feedmill.writing.copying import runs_of_splits

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'media_metadata'"


class Part(NamedTuple):
    """A part of the source that is kept together: a split (None for everything) and its samples."""

    split: str | None
    samples: int


class Facts(NamedTuple):
    """About a source.

    Attributes:
        parts: its splits and their samples, where together they are all of it, each sample once; else none.
        splits: names of all its splits.
        loose: samples that are in no split, or in several.
        excluded: samples that its split file skips.
        description: content of ``dataset.yaml``, or None.
        media: whether its index has media metadata.
        typed: whether its parts are columns with types.
        kind: its format.
        companions: files of VLA Foundry's robotics beside its manifest.
        classes: columns whose names of classes or shapes of arrays only the table's schema has.
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


def source_facts(dataset: Dataset, url: str, kind: str, split: str | None) -> Facts:
    """Return what is known about a source, opened with this split."""
    splits = {name: count for name, count in dataset.splits.items() if count}
    loose = _loose(dataset) if splits and split is None else 0
    parts = [(split, len(dataset))] if split else list(dataset.splits.items()) if splits and not loose else []
    description, media = None, False
    if kind == "energon":
        store = open_store(url)
        description, media = _description(store), _has_media(store)
    excluded = int(described(dataset).get("excluded") or 0)
    companions = tuple(n for n in COMPANIONS if isinstance(dataset, ManifestDataset) and dataset.store.exists(n))
    typed = isinstance(dataset, RowsDataset)
    return Facts(parts, list(splits), loose, excluded, description, media, typed, kind, companions, _in_schema(dataset))


def _in_schema(dataset: Dataset) -> tuple[str, ...]:
    """Columns of Hugging Face with more than a type of Arrow: names of classes, shapes of arrays."""
    metadata = getattr(getattr(dataset, "schema", None), "metadata", None) or {}
    try:
        features = msgspec.json.decode(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        items = features.items()
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return ()
    kinds = ("ClassLabel", "Array2D", "Array3D", "Array4D", "Array5D")
    return tuple(name for name, feature in items if isinstance(feature, dict) and feature.get("_type") in kinds)


def _loose(dataset: Dataset) -> int:
    """Return how many samples are not in exactly one split; where only the counts of splits are known, by these."""
    if isinstance(dataset, TarDataset | JsonlDataset):
        return sum(end - begin for begin, end, splits in runs_of_splits(dataset) if len(splits) != 1)
    return abs(len(dataset) - sum(dataset.splits.values()))


def described(dataset: Dataset) -> dict[str, Any]:
    """Return what a dataset says of itself; nothing if a file of it is missing, which reading will tell."""
    try:
        return dataset.describe()
    except NotFound:
        return {}


def _description(store: Store) -> dict[str, Any] | None:
    path = f"{database.META}/dataset.yaml"
    if not store.exists(path):
        return None
    found = yamls.read_config(store.read(path), store.locate(path)).value
    return found if isinstance(found, dict) else None


def _has_media(store: Store) -> bool:
    if not store.exists(database.INDEX):
        return False
    try:
        with closing(sqlite3.connect(f"file:{cached_copy(store, database.INDEX)}?mode=ro", uri=True)) as connection:
            return connection.execute(_TABLES).fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def keeps_description(facts: Facts, options: Options) -> bool:
    """Return whether a prepared folder says of its samples what the source does; else they are crude."""
    return bool(facts.description) and "sample_loader" not in (facts.description or {}) and not options.fields


def keeps_companions(keeps: Sequence[str], facts: Facts, options: Options) -> bool:
    """Return whether the files of VLA Foundry's robotics go along: to its own format, where samples stay whole."""
    return bool(facts.companions) and "companions" in keeps and not options.fields


def keeps_media(keeps: Sequence[str], facts: Facts, options: Options) -> bool:
    """Whether the media metadata of a prepared folder goes along: where its samples do, all of them and whole."""
    whole = not options.fields and options.split is None and not facts.excluded and not skips(options.on_error)
    return facts.media and "media" in keeps and whole
