"""Opening a manifest as a data set; making its index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedmill.errors import DataError, NotFound
from feedmill.formats.offsets import hash_words
from feedmill.formats.tarindex import IndexedTars, ScannedTars, encode_index, scan_shards
from feedmill.formats.vla.manifest import Row, missing_shard, read_rows, shard_path, wrong_count
from feedmill.formats.webdataset import ShardTable, TarDataset
from feedmill.storage import Entry, Store, open_store

FORMAT = "vla"
FOLDER = ".feedmill"
ENVIRONMENT = "FEEDMILL_INDEX"
"""A folder for the indices of data that cannot be written to."""


class ManifestDataset(TarDataset):
    """The samples of the shards that a manifest lists, in its order."""

    format = FORMAT

    def __init__(self, store: Store, table: ShardTable, *, name: str, manifest: str) -> None:
        super().__init__(store, table, name=name, description={"manifest": manifest})
        self.manifest = manifest

    def describe(self) -> dict[str, Any]:
        """Plain facts for `info`."""
        facts = super().describe()
        return {**facts, "indexed": isinstance(self.table, IndexedTars)}

    @property
    def splits(self) -> Mapping[str, int]:
        return {}


def open_manifest(store: Store, manifest: str, name: str, *, index: str | None = None) -> ManifestDataset:
    """The data set of a manifest.

    Args:
        store: the manifest's folder.
        index: a folder for the index instead of the data's own; made there where there is none.

    Raises:
        NotFound: there is no such manifest.
        ConfigError: a line is wrong.
        DataError: a shard is missing or damaged, or has not the samples that are said; a stale index.
    """
    rows = read_rows(store, manifest)
    entries = shard_entries(store, manifest, rows)
    folder = index or os.environ.get(ENVIRONMENT)
    place, path = index_place(store, manifest, folder)
    if folder and not _current(place, path, entries):
        write_index(store, manifest, folder)
    table: ShardTable
    if place.exists(path):
        table = IndexedTars(store, place, path)
        _check_states(table, entries)
    else:
        table = ScannedTars(store, [entry.path for entry in entries], scan_shards(store, entries))
    check_counts(store, manifest, rows, table.counts.tolist())
    return ManifestDataset(store, table, name=name, manifest=manifest)


def index_place(store: Store, manifest: str, folder: str | None) -> tuple[Store, str]:
    """The store and path of a manifest's index: beside it, or in a folder of its own under the hash of its place."""
    if folder is None:
        return store, f"{FOLDER}/{manifest}.tars"
    where = store.locate(manifest)
    absolute = where if "://" in where else os.path.abspath(where)
    return open_store(folder), f"{hash_words([absolute])[:16]}-{manifest.rpartition('/')[2]}.tars"


def write_index(
    store: Store, manifest: str, folder: str | None = None, *, advance: Callable[[int], None] = lambda _: None
) -> str:
    """Scan the shards of a manifest and write their index; gives its place. Raises as `open_manifest`."""
    rows = read_rows(store, manifest)
    entries = shard_entries(store, manifest, rows)
    scans = scan_shards(store, entries, advance=advance)
    check_counts(store, manifest, rows, [len(scan.keys) for scan in scans])
    place, path = index_place(store, manifest, folder)
    place.write_bytes(path, encode_index(entries, scans))
    return place.locate(path)


def shard_entries(store: Store, manifest: str, rows: Sequence[Row]) -> list[Entry]:
    """Size and state of each shard, by one listing. Raises `DataError` for one that is missing."""
    found: list[Entry] = []
    known = _listed(store) if len(rows) > 16 else {}
    for number, row in enumerate(rows, 1):
        path = shard_path(row.shard, f"{store.locate(manifest)}:{number}")
        entry = known.get(path)
        if entry is None:
            try:
                entry = store.stat(path)
            except NotFound:
                raise missing_shard(store, manifest, number, path) from None
        found.append(entry)
    return found


def _listed(store: Store) -> dict[str, Entry]:
    return {entry.path: entry for entry in store.files(suffixes=(".tar",))}


def check_counts(store: Store, manifest: str, rows: Sequence[Row], counts: Sequence[int]) -> None:
    """Raises `DataError` for the first line whose count is not the shard's."""
    for number, (row, found) in enumerate(zip(rows, counts, strict=True), 1):
        if row.samples != found:
            path = shard_path(row.shard, "")
            raise wrong_count(store, manifest, number, path, row.samples, found)


def _current(place: Store, path: str, entries: Sequence[Entry]) -> bool:
    if not place.exists(path):
        return False
    try:
        table = IndexedTars(place, place, path)
    except DataError:
        return False
    return table.shards == [entry.path for entry in entries] and table.states == [(e.size, e.version) for e in entries]


def _check_states(table: IndexedTars, entries: Sequence[Entry]) -> None:
    """The index is of these shards as they are now."""
    now = [(entry.path, entry.size, entry.version) for entry in entries]
    then = [(path, *state) for path, state in zip(table.shards, table.states, strict=True)]
    if now != then:
        odd = next((b for a, b in zip(then, now, strict=False) if a != b), now[-1] if now else ("?", 0, ""))
        raise DataError(
            f"the index is of other shards, or of another state of them (first {odd[0]!r})",
            file=table.path,
            kind="stale-index",
            fix="Run 'feedmill vla index' again, after 'feedmill check' where nothing should have changed.",
        )
