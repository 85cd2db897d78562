"""Load the present shards of a prepared dataset, on which changes are based."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing, nullcontext

import numpy as np

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.energon import database, sidecar
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.index import read_scan
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.offsets import load_offsets
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy
from feedmill.writing.shard import Shard


def present_shards(store: Store, *, trust: bool = True, leave_out: Collection[str] = ()) -> list[Shard]:
    """Return the shards of a prepared folder with their samples, from the index or, if it is stale, from the tars.

    Args:
        trust: use the index. Pass False after an interrupted change, when it may be of another state.
        leave_out: shards to skip.

    Raises:
        NotFound: the folder is not prepared, or a shard is missing.
        DataError: a shard cannot be read.
    """
    info = energon.read_info(store)
    records = sidecar.read(store, older=True)  # a killed run may have made the index newer
    index = database.open_index(cached_copy(store, database.INDEX)) if store.exists(database.INDEX) else None
    out = []
    with closing(index) if index is not None else nullcontext():
        for number, shard in enumerate(info):
            if shard in leave_out:
                continue
            entry = store.stat(shard)
            old = records.get(shard)
            unchanged = old is not None and (old.size, old.version) == (entry.size, entry.version)
            scan = _from_index(store, index, number, shard) if trust and (unchanged or not records) else None
            if scan is None:
                scan = scan_shard(store, shard)
                if scan.problem is not None:
                    raise in_file(scan.problem, store.locate(shard))
            digest = old.digest if old is not None and unchanged else None
            out.append(Shard(shard, ShardRecord(entry.size, entry.version, len(scan.keys), digest), scan))
    return out


def _from_index(store: Store, index: sqlite3.Connection | None, number: int, shard: str) -> ShardScan | None:
    if index is None:
        return None
    try:
        return read_scan(index, number, np.asarray(load_offsets(store, energon.idx_name(shard), fix="")))
    except (FeedmillError, sqlite3.DatabaseError):
        return None


def need_prepared(store: Store, url: str) -> None:
    """Raise `NotFound` if the folder is not prepared."""
    if not store.exists(energon.INFO) and not store.exists(energon.INFO_YAML):
        raise NotFound(
            "no prepared dataset here",
            file=url,
            kind="not-prepared",
            fix="Run 'feedmill prepare' on the folder first, or write a new dataset.",
        )


def need_local(store: Store, url: str, verb: str) -> None:
    """Raise `ConfigError` if shards would be changed in place in an object store."""
    if not store.is_local:
        raise ConfigError(
            f"{verb} changes shards in place, which is not supported in an object store: readers could see half-changed"
            " data",
            file=url,
            kind="unsupported",
            fix="Write a new dataset with 'feedmill reshard', or work on a local copy.",
        )
