"""Finished tar shards as units of a journal: the record and the scanned samples of each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
import numpy as np

from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.jobs.units import Units
from feedmill.kernels.files.tar import ShardScan

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
    links: int = 0


def add_shard(units: Units, path: str, record: ShardRecord, scan: ShardScan) -> None:
    """Record a finished shard. Shards with names that are not UTF-8 are skipped, because they raise an error later."""
    starts, sample, data, sizes = (a.tobytes() for a in (scan.starts, scan.sample, scan.data, scan.sizes))
    unread = (scan.closed, scan.trailing, scan.links)
    facts = _Facts(record, scan.keys, scan.parts, starts, sample, data, sizes, *unread)
    with contextlib.suppress(UnicodeEncodeError):
        units.add(path, msgspec.msgpack.encode(facts))


def finished_shards(units: Mapping[str, bytes]) -> dict[str, tuple[ShardRecord, ShardScan]]:
    """Return record and scan of each unit that is a shard, by path."""
    found = {}
    for path, body in units.items():
        with contextlib.suppress(msgspec.MsgspecError, ValueError):  # other units: the shard is scanned again
            facts = msgspec.msgpack.decode(body, type=_Facts)
            found[path] = facts.record, _scan(facts)
    return found


def _scan(facts: _Facts) -> ShardScan:
    starts, data, sizes = (np.frombuffer(raw, np.int64) for raw in (facts.starts, facts.data, facts.sizes))
    sample = np.frombuffer(facts.sample, np.int32)
    if len(starts) != len(facts.keys) + 1 or {len(sample), len(data), len(sizes)} != {len(facts.parts)}:
        raise ValueError("columns of different lengths")
    found = (None, facts.closed, facts.trailing, facts.links)
    return ShardScan(facts.keys, starts, sample, facts.parts, data, sizes, *found)
