"""Delete samples from a prepared dataset by key.

Only the shards that contain them are rewritten: the remaining samples are copied byte for byte, and an empty shard is
removed. Excluding samples in ``split.yaml`` is cheaper; delete data that must be removed from the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.energon.write import write_idx
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.formats.tar.write import END
from feedmill.jobs.dry_run import active
from feedmill.jobs.options import verb
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.storage import open_store
from feedmill.writing.index import need_local, need_prepared
from feedmill.writing.options import Delete
from feedmill.writing.rewrite import Change, Rewrite, RewriteReport, plan_rewrite
from feedmill.writing.shard import Shard, put

_STEP = 8 << 20


@verb(Delete)
def delete(options: Delete) -> RewriteReport:
    """All other samples keep their shards and order. Deletion changes the numbers of later samples and invalidates
    plans and saved states of runs on this dataset. Joins must be prepared again. The report has the number of bytes,
    also of a dry run.

    Raises:
        NotFound: a key or the prepared dataset does not exist.
        ConfigError: no samples would be left, or the dataset is in an object store.
        StorageError: the dataset cannot be written.
    """
    url = os.fspath(options.url)
    began = time.perf_counter()
    store = open_store(url)
    need_prepared(store, url)
    need_local(store, url, "delete")
    skip = skips(on_error_policy(options.on_error))
    wanted = {options.keys} if isinstance(options.keys, str) else set(options.keys)
    report = RewriteReport(url)
    if not wanted:
        raise ConfigError("nothing to delete: no keys were given", file=url, fix="Give at least one key.")
    with Rewrite(url, "delete", {"keys": hash_words(sorted(wanted))}) as change:
        if change.swapping:
            change.finish(report)
            report.seconds = round(time.perf_counter() - began, 3)
            return report
        found = {shard.path: _places(shard, wanted) for shard in change.shards}
        found = {path: places for path, places in found.items() if len(places)}
        scans = {shard.path: shard for shard in change.shards}
        names = {scans[path].scan.keys[i] for path, places in found.items() for i in places.tolist()}
        report.missing = sorted(wanted - names)
        _check(report, url, names, skip, sum(len(shard.scan.keys) for shard in change.shards))
        removed = [path for path, places in found.items() if len(places) == len(scans[path].scan.keys)]
        changed = {path: places for path, places in found.items() if path not in set(removed)}
        report.samples, report.rewritten, report.removed = len(names), len(changed), len(removed)
        report.shards = len(change.shards) - len(removed)
        report.bytes = sum(_kept_bytes(scans[path], places) for path, places in changed.items())
        if (dry := active()) is not None:
            plan_rewrite(dry, change, {p: _kept_bytes(scans[p], places) for p, places in changed.items()}, removed)
            dry.counts |= {"samples to delete": len(names)}
            dry.skipped |= {"keys that do not exist": len(report.missing)} if report.missing else {}
        elif names:
            members = [m for path, places in found.items() for m in _members(scans[path], places)]
            made = change.make(changed, _without, workers=options.workers, progress=options.progress, label="deleting")
            paths = [shard.path for shard in change.shards if shard.path in changed]
            changes = {path: shard.path for path, shard in zip(paths, made, strict=True)}
            facts = report.as_dict()
            names_out = sorted(names)
            change.swap(changes, removed, rows_out=changed, samples_out=names_out, members_out=members, facts=facts)
    report.seconds = round(time.perf_counter() - began, 3)
    return report


def _check(report: RewriteReport, url: str, names: set[str], skip: bool, total: int) -> None:
    if report.missing and not skip:
        more = f" (and with {len(report.missing) - 1} more given keys)" if len(report.missing) > 1 else ""
        fix = "Nothing was deleted. Correct the keys, or allow missing ones (--on-error skip)."
        if not names:
            fix = (
                "None of the keys exists, and nothing was deleted. If this command ran before, even if it was killed"
                " at the very end, the samples are already deleted. Otherwise correct the keys."
            )
        raise NotFound(
            f"there is no sample with this key{more}",
            file=url,
            record=report.missing[0],
            kind="no-such-sample",
            fix=fix,
        )
    if len(names) == total:
        raise ConfigError("no samples would be left", file=url, kind="empty-result", fix="Delete the folder instead.")


def _places(shard: Shard, wanted: set[str]) -> Int64s:
    """Return the numbers of the samples in a shard that have one of the keys, int64[k]."""
    if wanted.isdisjoint(shard.scan.keys):
        return np.zeros(0, np.int64)
    return np.asarray([i for i, key in enumerate(shard.scan.keys) if key in wanted], np.int64)


def _members(shard: Shard, places: Int64s) -> list[str]:
    """Return the member names of the samples numbered `places`."""
    gone = np.isin(shard.scan.sample, places)
    owners = shard.scan.sample[gone].tolist()
    parts = (shard.scan.parts[i] for i in np.flatnonzero(gone).tolist())
    return [f"{shard.scan.keys[owner]}.{part}" for owner, part in zip(owners, parts, strict=True)]


def _kept_bytes(shard: Shard, places: Int64s) -> int:
    return shard.record.size - int(np.diff(shard.scan.starts)[places].sum())


def _without(change: Change) -> Shard:
    """Write a shard without some of its samples."""
    store = open_store(change.url)
    starts = change.shard.scan.starts
    keep = np.ones(len(starts) - 1, bool)
    keep[change.what] = False
    hashed = xxhash.xxh3_128()
    begins = [0, *starts[:-1][keep].tolist()]
    ends = [int(starts[0]), *starts[1:][keep].tolist()]
    with store.write(change.new) as out:
        for begin, end in _joined(begins, ends):
            for at in range(begin, end, _STEP):
                block = store.read(change.shard.path, at, min(_STEP, end - at))
                hashed.update(block)
                put(out, block, store.locate(change.new))
        hashed.update(END)
        put(out, END, store.locate(change.new))
    scan = scan_shard(store, change.new)
    wanted = [key for key, kept in zip(change.shard.scan.keys, keep.tolist(), strict=True) if kept]
    if scan.problem is not None or scan.keys != wanted:
        store.delete(change.new)
        where = store.locate(change.shard.path)
        raise _stale(where) if scan.problem is None else in_file(scan.problem, where)
    write_idx(store, change.new, scan.starts)
    entry = store.stat(change.new)
    return Shard(change.new, ShardRecord(entry.size, entry.version, len(scan.keys), hashed.hexdigest()), scan)


def _joined(begins: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Merge adjacent ranges."""
    out: list[tuple[int, int]] = []
    for begin, end in zip(begins, ends, strict=True):
        if out and out[-1][1] == begin:
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return out


def _stale(where: str) -> DataError:
    return DataError(
        "the index does not match the shard",
        file=where,
        kind="stale-index",
        fix="The shard changed after it was indexed: run 'feedmill prepare' again. Nothing was deleted.",
    )
