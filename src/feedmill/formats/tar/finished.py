"""Finished tar shards as units of a journal: the record and the scanned samples of each, and what a killed job left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import numpy as np

from feedmill.errors import NotFound
from feedmill.formats.energon.prepared import idx_name
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.tar.write import END
from feedmill.jobs.journal import Journal, Units
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import Entry, Store
from feedmill.structs import convert_as, unpack_as

SHARDS = "shards.scanned"
"""Name of the journal of shards that `prepare` has scanned, in the work folder of a dataset."""


class _Facts(msgspec.Struct, array_like=True):
    record: ShardRecord
    keys: list[str]
    parts: list[str]
    starts: bytes
    sample: bytes
    data: bytes
    sizes: bytes
    closed: bool
    trailing: int = 0
    special: int = 0
    hidden: int = 0
    turned: int = 0


def add_shard(
    units: Units, path: str, record: ShardRecord, scan: ShardScan, turned: int = 0, *, flush: bool = True
) -> None:
    """Record a finished shard; see `Units.add`.

    Shards with names that are not UTF-8 are skipped, because they raise an error later.
    """
    starts, sample, data, sizes = (a.tobytes() for a in (scan.starts, scan.sample, scan.data, scan.sizes))
    unread = (scan.closed, scan.trailing, scan.special, scan.hidden)
    facts = _Facts(record, scan.keys, scan.parts, starts, sample, data, sizes, *unread, turned)
    with contextlib.suppress(UnicodeEncodeError):
        units.add(path, msgspec.msgpack.encode(facts), flush=flush)


def finished_shards(units: Mapping[str, bytes]) -> dict[str, tuple[ShardRecord, ShardScan, int]]:
    """Return record, scan and the number of turned media of each unit that is a shard, by path."""
    finished = {}
    for path, body in units.items():
        with contextlib.suppress(msgspec.MsgspecError, ValueError):  # other units: the shard is scanned again
            facts = unpack_as(body, _Facts)
            finished[path] = facts.record, _scan(facts), facts.turned
    return finished


def _scan(facts: _Facts) -> ShardScan:
    starts, data, sizes = (np.frombuffer(raw, np.int64) for raw in (facts.starts, facts.data, facts.sizes))
    sample = np.frombuffer(facts.sample, np.int32)
    if len(starts) != len(facts.keys) + 1 or {len(sample), len(data), len(sizes)} != {len(facts.parts)}:
        raise ValueError("columns of different lengths")
    found = (None, facts.closed, facts.trailing, facts.special, facts.hidden)
    return ShardScan(facts.keys, starts, sample, facts.parts, data, sizes, *found)


class _Layout(msgspec.Struct):
    pattern: str
    first: int


class _Identity(msgspec.Struct):
    layout: _Layout


class _Job(msgspec.Struct):
    """The fields of `job.json` that decide which shards it writes."""

    identity: _Identity
    first: int | None = None
    units: int | None = None
    staged: bool = False

    def names(self) -> Iterator[str]:
        """Return the paths of its shards, without end if it does not know how many it writes."""
        layout = self.identity.layout
        first = layout.first if self.first is None else self.first
        layout.pattern % first  # raises for an invalid pattern
        return (layout.pattern % n for n in (count(first) if self.units is None else range(first, first + self.units)))


def left_shards(store: Store, job: Mapping[str, Any]) -> list[str]:
    """Return the shards that an unfinished job wrote into a dataset, also those of which only the offset file exists.

    A tar that others put there is none of them: the path of a shard of the job is in its journal, or it is one of the
    job's names and the shard ends where its offset file says, because a shard is published after its offset file, or
    one of both is empty, as after a loss of power.

    Args:
        job: the unfinished job; see `feedmill.jobs.journal`.
    """
    try:
        left = convert_as(job, _Job)
        names = left.names()
    except (msgspec.ValidationError, TypeError, ValueError):
        return []  # it rewrites shards, or writes something else
    if left.staged:
        return []
    recorded = Journal(store).units.read()
    there: dict[str, Entry] = {}
    with contextlib.suppress(NotFound):  # the folder has no files yet
        there = {entry.path: entry for entry in store.files(suffixes=(".tar", ".tar.idx"))}
    out = []
    for path in names:
        tar, idx = there.get(path), there.get(idx_name(path))
        if tar is None and idx is None:
            if left.units is not None:
                continue  # it is still to be written, or has no samples
            break  # a job that does not know how many shards it writes, writes them one after another
        lost = tar is not None and (not tar.size or (idx is not None and not idx.size))  # its bytes, with the power
        if tar is None or lost or path in recorded or _fits(store, tar, idx):
            out.append(path)
    return out


def _fits(store: Store, tar: Entry, idx: Entry | None) -> bool:
    """Return whether a shard ends where its offset file says, as the shards that Feedmill writes do."""
    if idx is None or idx.size < 8:
        return False
    return int.from_bytes(store.read(idx.path, idx.size - 8, 8), "little") + len(END) == tar.size
