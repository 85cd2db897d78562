"""Open a manifest of VLA Foundry as a dataset."""

from __future__ import annotations

from collections.abc import Sequence

from feedmill.formats.format import OpenRequest
from feedmill.formats.tar.dataset import ShardTable, TarDataset
from feedmill.formats.tar.index import indexed_shards
from feedmill.formats.vla.manifest import Row, missing_shard, read_rows, shard_path, wrong_count
from feedmill.storage import Entry, Store

FORMAT = "vla"


class ManifestDataset(TarDataset):
    """The samples of the shards that a manifest lists, in its order."""

    format = FORMAT

    def __init__(self, store: Store, table: ShardTable, *, name: str, manifest: str) -> None:
        super().__init__(store, table, name=name, description={"manifest": manifest})
        self.manifest = manifest


def open_manifest(store: Store, manifest: str, name: str) -> ManifestDataset:
    """Open the dataset of a manifest. Its index is stored as for all plain tars (`feedmill.formats.tar.index`).

    Args:
        store: the manifest's folder.
        manifest: name of the manifest in the folder.
        name: name of the dataset, its URL.

    Raises:
        NotFound: the manifest does not exist.
        ConfigError: a line is invalid.
        DataError: a shard is missing or corrupt, or its number of samples differs from the manifest.
    """
    rows = read_rows(store, manifest)
    table = indexed_shards(store, shard_entries(store, manifest, rows))
    check_counts(store, manifest, rows, table.counts.tolist())
    return ManifestDataset(store, table, name=name, manifest=manifest)


def shard_entries(store: Store, manifest: str, rows: Sequence[Row]) -> list[Entry]:
    """Return path, size and version of each shard. Raises `DataError` if a shard is missing."""
    paths = [shard_path(row.shard, f"{store.locate(manifest)}:{number}") for number, row in enumerate(rows, 1)]
    listed: list[Entry] = []
    for number, (path, entry) in enumerate(zip(paths, store.entries(paths), strict=True), 1):
        if entry is None:
            raise missing_shard(store, manifest, number, path)
        listed.append(entry)
    return listed


def check_counts(store: Store, manifest: str, rows: Sequence[Row], counts: Sequence[int]) -> None:
    """Raise `DataError` for the first line whose count differs from the shard's."""
    for number, (row, found) in enumerate(zip(rows, counts, strict=True), 1):
        if row.samples != found:
            path = shard_path(row.shard, "")
            raise wrong_count(store, manifest, number, path, row.samples, found)


def open_found(wanted: OpenRequest) -> ManifestDataset:
    """Open a recognized manifest, see `open_manifest`."""
    return open_manifest(wanted.store, wanted.name, wanted.url)
