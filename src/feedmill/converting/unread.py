"""What a conversion does not read of a source's folder: files of other kinds, shards that no index or manifest has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from feedmill.converting.plan import Loss
from feedmill.documents.kinds import LINE_SUFFIXES
from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import read_info
from feedmill.formats.leftovers import data_kind, leftovers, listed
from feedmill.formats.sniff import ENERGON, sniff
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.formats.vla.manifest import MANIFEST
from feedmill.formats.webdataset import TarDataset
from feedmill.storage import is_local_folder, open_store

COMPANIONS = ("stats.json", "preprocessing_config.yaml", "processing_metadata.json")
"""Files of VLA Foundry's robotics beside a manifest: a run needs them."""
_SCANNED = ("documents", "webdataset", "vla", "parquet")
"""Kinds of folders that are known by their data files alone, which so must be of one kind."""
_OWN: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "vla": (("tars",), (MANIFEST, *COMPANIONS)),
    "parquet": (("tables",), ()),
    "huggingface": (("tables",), (".json",)),
    "lerobot": (("tables", "media", "JSON lines"), (".json",)),
    "mds": (("MDS",), ("index.json",)),
    "img2dataset": (("tables", "tars", "text", "media"), (".json",)),
    "pbin": (("tokens",), (".json",)),
    "ds": (("tokens",), (".index", ".loss", ".metadata")),
    "megatron": (("tokens",), (".idx",)),
    "dolma": (("tokens",), (".npy", ".csv.gz")),
}
"""Kind of folder -> kinds of data that are its own, and ends of names of files beside them."""


def unread(source: str, kind: str, dataset: Dataset | None = None) -> list[Loss]:
    """The files in a source's folder that its conversion leaves out.

    Data of another kind in a folder that is known by its data alone, and shards that no manifest or index has, are
    content; everything else is only reported.

    Args:
        dataset: the source, where it is tars.
    """
    if not _is_folder(source):
        return []
    found = leftovers((entry.path for entry in open_store(source).files()), _reads(kind, dataset))
    losses = [] if kind != ENERGON else _excluded(source, dataset)
    for noun, paths in found.data.items():
        shards = noun == "tars" and isinstance(dataset, TarDataset)
        what = "tars that are not part of the dataset" if shards else noun
        fix = "Name the files or folder to convert, or move the others elsewhere."
        losses.append(Loss(listed(paths, what), content=shards or kind in _SCANNED, fix=fix, unread=True))
    if found.others:
        losses.append(Loss(f"{listed(found.others)} beside the data", unread=True))
    return losses


def _excluded(source: str, dataset: Dataset | None) -> list[Loss]:
    """Shards of the index that no split has: that is on purpose."""
    assert isinstance(dataset, TarDataset)
    shards = set(dataset.table.shards)
    out = [path for path in read_info(open_store(source)) if path not in shards]
    return [Loss(f"{listed(out, 'tars')} that the split file leaves out", unread=True)] if out else []


def _is_folder(source: str) -> bool:
    if is_local_folder(source):
        return True
    try:
        found = sniff(source)
    except FeedmillError:  # of tokens and trees of lines
        return data_kind(source) is None
    return not found.names and not (found.name and source.endswith(found.name))


def _reads(kind: str, dataset: Dataset | None) -> Callable[[str], bool]:
    """Whether a path of the folder is read, or belongs to what is."""
    if isinstance(dataset, TarDataset) and kind != "img2dataset":
        shards = set(dataset.table.shards)
        if kind == ENERGON:
            shards |= set(read_info(dataset.store))
        beside = {*COMPANIONS, dataset.manifest} if isinstance(dataset, ManifestDataset) else set()
        return lambda path: path in beside or path.removesuffix(".idx") in shards
    if kind == "documents":
        return lambda path: path.removesuffix(".idx").endswith(LINE_SUFFIXES)
    groups, ends = _OWN.get(kind, ((), ()))
    return lambda path: data_kind(path) in groups or path.endswith(ends)
