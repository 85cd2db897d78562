"""What a conversion does not read of a source's folder: files of other kinds, shards that no index or manifest has."""

from __future__ import annotations

from collections.abc import Callable

from feedmill.converting.lines import SUFFIXES as LINES
from feedmill.converting.plan import Loss
from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON
from feedmill.formats.energon.prepared import read_info
from feedmill.formats.leftovers import data_kind, leftovers, listed
from feedmill.formats.registry import by_name
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.vla import COMPANIONS
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.storage import is_local_folder, open_store


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
    losses = [] if kind != ENERGON.name else _excluded(source, dataset)
    for noun, paths in found.data.items():
        shards = noun == "tars" and isinstance(dataset, TarDataset)
        what = "tars that are not part of the dataset" if shards else noun
        fix = "Name the files or folder to convert, or move the others elsewhere."
        losses.append(Loss(listed(paths, what), content=shards or by_name()[kind].scanned, fix=fix, unread=True))
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
        if kind == ENERGON.name:
            shards |= set(read_info(dataset.store))
        beside = {*COMPANIONS, dataset.manifest} if isinstance(dataset, ManifestDataset) else set()
        return lambda path: path in beside or path.removesuffix(".idx") in shards
    if kind == "documents":
        return lambda path: path.removesuffix(".idx").endswith(LINES)
    groups, ends = by_name()[kind].data, by_name()[kind].beside
    return lambda path: data_kind(path) in groups or path.endswith(ends)
