"""Energon's join index: samples of several prepared datasets with the same key.

Layout of ``<metadataset>.yaml.cache/join_index_<sha256>.bin``: 8 bytes ``JIDX0001``; one i64, the number of datasets
c; then rows of c times three i64, little endian: (shard, byte offset, byte size). The shard counts through the
dataset's own shard list of the split used, excluded shards included; ``(-1, -1, -1)`` is a missing partner. Rows
follow the first dataset's split and, within a shard, the samples.

Energon names the file by a hash of each dataset's uuid, excludes and `nonmatch`. Two joins that differ only in the
split get the same name, and with two excludes the name depends on Python's hash seed, so a file of that name may hold
the rows of another join. `own_name` also hashes the split's shard list and the sorted excludes, so each name stands for
the same rows in every process; those files are in the folder ``feedmill`` of the cache. A file under Energon's name is
read only if its rows are provably correct (`_proven`); otherwise the rows are computed from the SQLite indices. A cache
that has other joins and not this one is out of date.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon.database import INDEX, bad_index, open_index, read_only_uri
from feedmill.formats.energon.prepared import UUID, PreparedShards
from feedmill.formats.offsets import Int64s
from feedmill.formats.tar.dataset import TarDataset
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy

MAGIC = b"JIDX0001"
MISSING = -1
OWN = "feedmill/"
"""Folder of a cache with Feedmill's files."""
_FILE = re.compile(rf"(?:{OWN})?join_index_[0-9a-f]{{64}}\.bin")

ERROR, SKIP, NONE = "error", "skip", "none"
"""Handling of a missing partner: raise an error, skip the row, or leave a gap in the row."""


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One dataset of a join.

    Attributes:
        dataset: opened with the split to join.
        nonmatch: handling of keys of the first dataset that it lacks; ``error`` for the first dataset itself.
    """

    dataset: TarDataset
    nonmatch: str = ERROR

    @property
    def table(self) -> PreparedShards:
        """Return the dataset's shards."""
        assert isinstance(self.dataset.table, PreparedShards)
        return self.dataset.table

    @classmethod
    def of(cls, dataset: Dataset, nonmatch: str = ERROR) -> JoinSide:
        """Return a part. Raises `ConfigError` if the dataset has no index by key."""
        prepared = isinstance(dataset, TarDataset) and isinstance(dataset.table, PreparedShards)
        if not isinstance(dataset, TarDataset) or not prepared or not dataset.store.exists(INDEX):
            raise ConfigError(
                f"{dataset.url} cannot be joined: it has no index of its keys",
                kind="not-prepared",
                fix=f"Joins require folders of tar shards. Run 'feedmill prepare {dataset.url}' first.",
            )
        return cls(dataset, nonmatch)


@dataclass(frozen=True, slots=True)
class Join:
    """Rows of a join of c datasets.

    Attributes:
        samples: int64[n, c], the sample's number in each opened dataset, -1 if missing.
        places: int64[n, c, 3], the same rows in the file's form: (shard, byte offset, byte size).
    """

    samples: Int64s
    places: Int64s


def read_join_index(store: Store, name: str) -> Int64s:
    """Read the rows of a file, int64[n, c, 3]. Raises `NotFound`, and `DataError` if the file is invalid."""
    data = store.read(name)
    columns = int.from_bytes(data[8:16], "little", signed=True)
    if data[:8] != MAGIC or len(data) < 16 or columns < 1 or (len(data) - 16) % (24 * columns):
        raise DataError(
            f"not a complete join index ({len(data):,} bytes)",
            file=store.locate(name),
            kind="bad-index",
            fix="Delete it and run 'feedmill prepare' on the metadataset.",
        )
    return np.frombuffer(data, "<i8", offset=16).astype(np.int64).reshape(-1, columns, 3)


def write_join_index(store: Store, name: str, places: Int64s) -> None:
    """Write rows, int64[n, c, 3]. The file is published as a whole, and has 16 bytes besides."""
    head = MAGIC + places.shape[1].to_bytes(8, "little")
    store.write_bytes(name, head + np.ascontiguousarray(places, "<i8").tobytes())


def energon_name(parts: Sequence[JoinSide]) -> str:
    """Return Energon's file name for this join; if a dataset has several excludes, one of the possible names."""
    return _file_name(b"".join(_identity(part) for part in parts))


def own_name(parts: Sequence[JoinSide]) -> str:
    """Return Feedmill's file name, which is unique for these rows."""
    shards = (f"\0shards={len(part.table.listed)}\0" + "\0".join(part.table.listed) for part in parts)
    listed = "".join(shards).encode("utf-8", "surrogateescape")
    return OWN + _file_name(b"feedmill" + b"".join(_identity(part) for part in parts) + listed)


def _identity(part: JoinSide) -> bytes:
    store, excludes = part.dataset.store, sorted(part.table.excludes)
    uuid = store.read(UUID) if store.exists(UUID) else b""
    words = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in excludes)
    return b"\0uuid=" + uuid + b"\0excludes=" + words + b"\0nonmatch=" + part.nonmatch.encode() + b"\0"


def _file_name(words: bytes) -> str:
    return f"join_index_{hashlib.sha256(words).hexdigest()}.bin"


def joined_samples(parts: Sequence[JoinSide], cache: Store | None = None) -> Int64s:
    """Return the rows of a join, int64[n, c], from a prepared file or computed: sample numbers, -1 if missing.

    Args:
        parts: the datasets, each opened with its split.
        cache: the folder of prepared rows.

    Raises:
        ConfigError: no key is in all datasets, or a required key is missing.
        DataError: a prepared file is corrupt, or other joins are prepared, but not this one.
    """
    if cache is not None:
        own, theirs = own_name(parts), energon_name(parts)
        if cache.exists(own):
            return samples_at(parts, read_join_index(cache, own), cache.locate(own))
        if cache.exists(theirs):
            proven = _proven(parts, read_join_index(cache, theirs), cache.locate(theirs))
            if proven is not None:
                return proven
        elif all(len(part.table.excludes) < 2 for part in parts) and join_files(cache):
            raise _stale(cache.url, "other joins are prepared there, but not this one")
    return compute(parts).samples


def join_files(cache: Store) -> list[str]:
    """Return the paths of the prepared joins of a cache. Raises `StorageError`."""
    try:
        return [entry.path for entry in cache.files(suffixes=(".bin",)) if _FILE.fullmatch(entry.path)]
    except NotFound:
        return []


def compute(parts: Sequence[JoinSide]) -> Join:
    """Return the rows from the SQLite indices: inner for ``skip``, left for ``error`` and ``none``.

    Raises:
        ConfigError: no row is left, or a key is missing where `nonmatch` is ``error``.
    """
    first = parts[0]
    columns = [_columns(first, first), *(_columns(first, part) for part in parts[1:])]
    samples = np.stack([numbers for numbers, _ in columns], axis=1)
    places = np.stack([places for _, places in columns], axis=1)
    keep = samples[:, 0] != MISSING
    for column, part in enumerate(parts[1:], 1):
        lost = keep & (samples[:, column] == MISSING)
        if part.nonmatch == SKIP:
            keep &= ~lost
        elif part.nonmatch == ERROR and lost.any():
            raise _missing(first, part, samples[lost, 0])
    if not keep.any():
        raise _nothing(parts)
    order = np.argsort(samples[keep, 0], kind="stable")  # the split may list its shards in another order
    return Join(samples[keep][order], places[keep][order])


def _columns(first: JoinSide, part: JoinSide) -> tuple[Int64s, Int64s]:
    """Return the partner's number and place for each sample of the first dataset, in the order of its index."""
    connection = open_index(cached_copy(first.dataset.store, INDEX))
    partner = cached_copy(part.dataset.store, INDEX)
    try:
        with closing(connection):
            connection.execute("ATTACH ? AS partner", (read_only_uri(partner),))
            rows = connection.execute(
                "SELECT coalesce(r.tar_file_id, -1), coalesce(r.sample_index, -1), coalesce(r.byte_offset, -1),"
                " coalesce(r.byte_size, -1) FROM main.samples AS l LEFT JOIN partner.samples AS r"
                " ON r.sample_key = l.sample_key WHERE l.tar_file_id IN (SELECT value FROM json_each(?))"
                " ORDER BY l.tar_file_id, l.sample_index",
                (orjson.dumps(first.table.file_ids()),),
            )
            found = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 4)
    except (sqlite3.DatabaseError, TypeError, ValueError) as error:  # SQLite allows text in integer columns
        raise bad_index(f"{partner} or {first.dataset.store.locate(INDEX)}", str(error)) from None
    ids = np.asarray(first.table.file_ids(), np.int64)
    if len(found) != first.table.counts[first.table.numbers(ids)].sum():
        raise bad_index(first.dataset.store.locate(INDEX), "it has other numbers of samples than .info.json")
    shards = part.table.numbers(found[:, 0])
    there, local = shards >= 0, found[:, 1]
    if ((local < 0) | (local >= np.append(part.table.counts, 0)[shards]))[there].any():
        raise bad_index(part.dataset.store.locate(INDEX), "it has samples that .info.json does not count")
    samples = part.dataset.numbers(shards, found[:, 1])
    listed = {shard: place for place, shard in enumerate(part.table.listed)}
    order = np.array([listed[shard] for shard in part.table.shards] or [MISSING], np.int64)
    places = np.stack([order[shards], found[:, 2], found[:, 3]], axis=1)
    places[samples == MISSING] = MISSING
    return samples, places


def samples_at(parts: Sequence[JoinSide], places: Int64s, where: str) -> Int64s:
    """Convert rows of a file, int64[n, c, 3], to sample numbers, int64[n, c]. Raises `DataError` for stale rows."""
    if places.shape[1] != len(parts):
        raise _stale(where, f"expected {len(parts)} datasets, found {places.shape[1]}")
    return np.stack([_column(part, places[:, i], where) for i, part in enumerate(parts)], axis=1)


def _column(part: JoinSide, places: Int64s, where: str) -> Int64s:
    samples = np.full(len(places), MISSING, np.int64)
    number = {shard: i for i, shard in enumerate(part.table.shards)}
    for place in np.unique(places[:, 0]).tolist():
        if place == MISSING:
            continue
        rows = np.flatnonzero(places[:, 0] == place)
        name = part.table.listed[place] if 0 <= place < len(part.table.listed) else None
        if name not in number:
            raise _stale(where, f"shard {place} of {part.dataset.url} is not in this split")
        shard = number[name]
        starts, wanted = part.table.offsets(shard)[:-1], places[rows, 1]
        local = np.minimum(np.searchsorted(starts, wanted), len(starts) - 1)
        if not len(starts) or (starts[local] != wanted).any():
            raise _stale(where, f"no sample of {part.dataset.url}/{name} begins at one of its offsets")
        samples[rows] = part.dataset.numbers(np.full(len(rows), shard), local)
        if (samples[rows] == MISSING).any():
            raise _stale(where, f"it has samples of {part.dataset.url} that the split excludes")
    return samples


def _proven(parts: Sequence[JoinSide], places: Int64s, where: str) -> Int64s | None:
    """Return the rows of a file under Energon's name, or None if they may belong to another split.

    A left join has one row for each sample of the first dataset, in order, which can be checked without the keys. The
    rows of an inner join cannot be checked this way.
    """
    if any(part.nonmatch == SKIP for part in parts[1:]):
        return None
    try:
        samples = samples_at(parts, places, where)
    except DataError:
        return None
    whole = np.array_equal(samples[:, 0], np.arange(len(parts[0].dataset)))
    gaps = any((samples[:, i] == MISSING).any() for i, part in enumerate(parts) if part.nonmatch == ERROR)
    return samples if whole and not gaps else None


def _stale(where: str, what: str) -> DataError:
    return DataError(
        f"the join index is out of date: {what}",
        file=where,
        kind="stale-index",
        fix="Run 'feedmill prepare' on the metadataset again.",
    )


def _missing(first: JoinSide, part: JoinSide, samples: Int64s) -> ConfigError:
    key = first.dataset.locate(int(samples[0])).key
    more = f", and {len(samples) - 1:,} more" if len(samples) > 1 else ""
    elsewhere = ""
    try:
        part.table.find(key)
    except NotFound as error:
        elsewhere = f"; {error.what}" if error.kind == "other-split" else ""
    return ConfigError(
        f"missing key in a join: {_named(first)} has the key {key!r}{more}, {_named(part)} does not{elsewhere}",
        kind="no-such-sample",
        fix="Add the samples, or set 'nonmatch: skip' (skip such rows) or 'nonmatch: none' (leave a gap).",
    )


def _nothing(parts: Sequence[JoinSide]) -> ConfigError:
    return ConfigError(
        f"the join has no rows: no key of {_named(parts[0])} is in {' and in '.join(map(_named, parts[1:]))}",
        kind="empty-source",
        fix="Join splits that contain the same keys; a join does not combine samples of different splits.",
    )


def _named(part: JoinSide) -> str:
    return f"{part.dataset.url} ({part.dataset.split})" if part.dataset.split else part.dataset.url
