"""What is known about a source beside its samples, and what of it the destination has no place for."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, NamedTuple

import msgspec

from feedmill.converting.columns import mds_columns, parquet_columns
from feedmill.converting.plan import Loss, Options, named
from feedmill.converting.survey import COUNTS, Survey, kinds, names
from feedmill.errors import ConfigError, NotFound
from feedmill.formats import yamls
from feedmill.formats.base import Dataset
from feedmill.formats.energon import database
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.rows import RowsDataset
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.vla import COMPANIONS
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.jobs.policy import RAISE
from feedmill.storage import Store, open_store
from feedmill.storage.cache import cached_copy
from feedmill.writing.copying import runs_of_splits

KEEP_SPLITS = ("webdataset", "jsonl")
"""Targets that have splits, of samples that are in one each."""
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'media_metadata'"


class Facts(NamedTuple):
    """About a source.

    Attributes:
        parts: its splits and their samples, where together they are all of it, each sample once; else none.
        splits: names of all its splits.
        loose: samples that are in no split, or in several.
        excluded: samples that its split file leaves out.
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
    """What is known about a source, opened with this split."""
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
    """How many samples are not in exactly one split; where only the counts of splits are known, by these."""
    if isinstance(dataset, TarDataset | JsonlDataset):
        return sum(end - begin for begin, end, splits in runs_of_splits(dataset) if len(splits) != 1)
    return abs(len(dataset) - sum(dataset.splits.values()))


def described(dataset: Dataset) -> dict[str, Any]:
    """What a dataset says of itself; nothing where a file of it is gone, which reading will tell."""
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


def losses_of(to: str, facts: Facts, found: Survey, options: Options) -> tuple[dict[str, str], list[Loss]]:
    """The columns of formats that have some, and what will not be there."""
    columns: dict[str, str] = {}
    losses: list[Loss] = []
    if to == "mds":
        columns, losses = mds_columns(found)
    elif to == "parquet":
        columns, losses = parquet_columns(found)
    elif to == "jsonl":
        losses = _binary(found)
    elif facts.typed:
        losses = [Loss("types of columns: a part's suffix says how it is read")]
    if facts.classes:
        losses.append(Loss(f"names of classes and shapes of arrays of {named(facts.classes)}"))
    return columns, [*losses, *_about(to, facts, options)]


def is_keyed(found: Survey) -> bool:
    """Whether lines of JSON have keys: all of them do, unless no sample has any part but ``json``."""
    return set(names(found)) != {"json"}


def _about(to: str, facts: Facts, options: Options) -> list[Loss]:
    """What the metadata says about samples."""
    out = []
    several = len(facts.splits) > 1 or facts.loose
    if several and options.split is None and (to not in KEEP_SPLITS or not facts.parts):
        loose = f" ({facts.loose} samples are in none of them, or in several)" if facts.loose else ""
        out.append(Loss(f"the splits {named(facts.splits)}: all samples stand together{loose}; take one with --split"))
    if facts.excluded:
        out.append(Loss(f"{facts.excluded} samples that the split file excludes"))
    if facts.media and not keeps_media(to, facts, options):
        out.append(Loss("media metadata: collect it again with 'feedmill prepare-media'"))
    if facts.description is not None and set(facts.description) - {"__module__", "__class__"}:  # else it is crude
        if to != "webdataset":
            out.append(Loss("the sample type, field map and subflavors of dataset.yaml"))
        elif options.fields:
            out.append(Loss("the sample type and field map: they may name parts that are left out"))
        elif "sample_loader" in facts.description:
            out.append(Loss("the sample's own code (sample_loader.py): copy it into .nv-meta"))
    if facts.companions and not keeps_companions(to, facts, options):
        out.append(
            Loss(f"{', '.join(facts.companions)}: a run of VLA Foundry's robotics needs them beside its manifest")
        )
    if facts.kind == "lerobot":
        out.append(Loss("what meta/ says: frames per second, the robot's type, names of joints, statistics, tasks"))
        if to == "vla":
            out.append(
                Loss(
                    "VLA Foundry's robotics: a sample is one frame, its windows (lowdim.npz) are made by its own tools"
                )
            )
    return out


def keeps_description(facts: Facts, options: Options) -> bool:
    """Whether a prepared folder says of its samples what the source does; else they are crude."""
    return bool(facts.description) and "sample_loader" not in (facts.description or {}) and not options.fields


def keeps_companions(to: str, facts: Facts, options: Options) -> bool:
    """Whether the files of VLA Foundry's robotics go along: to its own format, where samples stay whole."""
    return bool(facts.companions) and to == "vla" and not options.fields


def keeps_media(to: str, facts: Facts, options: Options) -> bool:
    """Whether the media metadata of a prepared folder goes along: where its samples do, all of them and whole."""
    whole = not options.fields and options.split is None and not facts.excluded and options.on_error == RAISE
    return facts.media and to == "webdataset" and whole


def _binary(found: Survey) -> list[Loss]:
    binary = binary_parts(found)
    if not binary:
        single = not is_keyed(found) and found[COUNTS]["keyed"]
        return [Loss("keys: samples of nothing but a part json are lines, and numbered")] if single else []
    if set(binary) == set(names(found)):
        raise ConfigError(
            f"all parts are bytes ({named(binary)}), and JSON has no place for them: nothing would be left",
            kind="no-parts",
            fix="Convert to another format, or take other --fields.",
        )
    fix = "Take the parts of text with --fields, or convert to another format: JSON has no place for bytes."
    return [Loss(f"the bytes of {named(binary)}", content=True, fix=fix)]


def binary_parts(found: Survey) -> list[str]:
    """The parts that hold bytes, and not only text."""
    return [n for n in names(found) if kinds(found, n)[0] & {"bytes", "jpeg", "png"}]
