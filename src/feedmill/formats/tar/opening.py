"""Open tars without an Energon index: a folder, one tar, or a list of tars. Compressed ones are unpacked first."""

from __future__ import annotations

from collections.abc import Sequence

from feedmill.formats.format import OpenRequest
from feedmill.formats.tar import COMPRESSED
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.index import plain_shards
from feedmill.formats.unpacked import unpacked_files
from feedmill.storage import Store


def open_found(wanted: OpenRequest) -> TarDataset:
    """Open the given tars, or all tars of the folder. Compressed ones are unpacked into the cache folder."""
    store = wanted.store
    shards = [wanted.name] if wanted.name else list(wanted.names)
    shards = shards or [entry.path for entry in store.files(suffixes=(".tar",))]
    if shards and all(shard.endswith(COMPRESSED) for shard in shards):
        return CompressedTars(store, shards, name=wanted.url)
    dataset = TarDataset(store, plain_shards(store, shards), name=wanted.url, base=store.url if wanted.names else None)
    return dataset.opened_as(about={"remarks": list(wanted.remarks)}) if wanted.remarks else dataset


class CompressedTars(TarDataset):
    """The samples of compressed tars, read from unpacked copies.

    Args:
        origin: the folder of the compressed tars.
        packed: their paths in it.
        name: path or URL as the user gave it.
    """

    def __init__(self, origin: Store, packed: Sequence[str], *, name: str) -> None:
        store, shards = unpacked_files(origin, packed)
        table = plain_shards(store, shards)
        super().__init__(store, table, name=name, base=store.url, description={"unpacked": store.url})
        self.origin, self.packed = origin, list(packed)

    @property
    def row_files(self) -> Sequence[str]:
        return [self.origin.locate(shard) for shard in self.packed]
