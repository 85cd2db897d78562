"""Open tars without an Energon index: a folder, one tar, or a list of tars."""

from __future__ import annotations

from feedmill.formats.format import Wanted
from feedmill.formats.tar import COMPRESSED
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.index import plain_shards
from feedmill.formats.tar.unpacking import CompressedTars


def open_found(wanted: Wanted) -> TarDataset:
    """Open the given tars, or all tars of the folder. Compressed ones are unpacked into the cache folder."""
    store = wanted.store
    shards = [wanted.name] if wanted.name else list(wanted.names)
    shards = shards or [entry.path for entry in store.files(suffixes=(".tar",))]
    if shards and all(shard.endswith(COMPRESSED) for shard in shards):
        return CompressedTars(store, shards, name=wanted.url)
    dataset = TarDataset(store, plain_shards(store, shards), name=wanted.url, base=store.url if wanted.names else None)
    return dataset.opened_as(about={"remarks": list(wanted.remarks)}) if wanted.remarks else dataset
