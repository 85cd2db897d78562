"""Open tars without an Energon index: a folder, one tar, or a list of tars."""

from __future__ import annotations

from feedmill.formats.format import Wanted
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.index import plain_shards


def open_found(wanted: Wanted) -> TarDataset:
    """Open the given tars, or all tars of the folder."""
    store = wanted.store
    shards = [wanted.name] if wanted.name else list(wanted.names)
    table = plain_shards(store, shards or [entry.path for entry in store.files(suffixes=(".tar",))])
    dataset = TarDataset(store, table, name=wanted.url, base=store.url if wanted.names else None)
    return dataset.opened_as(about={"remarks": list(wanted.remarks)}) if wanted.remarks else dataset
