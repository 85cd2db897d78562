"""Scan many shards in parallel, in order, reusing the index of unchanged shards.

The compiled kernel and the hash release the GIL, so threads are enough and results need no copying.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.content import hashes_of
from feedmill.formats.energon import sidecar
from feedmill.formats.energon.database import INDEX, open_index
from feedmill.formats.energon.index import read_scan
from feedmill.formats.energon.prepared import idx_name, read_info
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.offsets import load_offsets
from feedmill.formats.tar.finished import add_shard, finished_shards
from feedmill.formats.tar.scan import CONCATENATED, Unread, in_file, scan_bytes
from feedmill.formats.tar.strays import Halves, halves_error, halves_of, hidden_of, samples_of, stray_error
from feedmill.jobs.engine import Policy, Where, in_units, key_of
from feedmill.jobs.journal import Units
from feedmill.jobs.parts import kept_results
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run
from feedmill.jobs.threads import ordered_map, runs_of
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import Entry, Store, open_store
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.cache.mapped import mapped

_RUN_SIZE = 1 << 20
"""Bytes of small shards that one call scans."""


class Scanned(NamedTuple):
    """One shard: its record for the sidecar, its samples, their origin ('scanned', 'index', 'interrupted')."""

    shard: str
    record: ShardRecord
    scan: ShardScan
    origin: str


def repeated_parts(store: Store, found: Scanned) -> Iterator[DataError]:
    """Yield an error for each sample with two members of one name: readers disagree on which one to use."""
    scan = found.scan
    pairs = list(zip(scan.sample.tolist(), scan.parts, strict=True))
    if len(set(pairs)) == len(pairs):
        return
    for number, part in {pair for pair, times in Counter(pairs).items() if times > 1}:
        yield DataError(
            f"the sample has two members for the part {part!r}, and only the last is read",
            file=store.locate(found.shard),
            offset=int(scan.starts[number]),
            record=scan.keys[number],
            kind="duplicate-part",
            fix="Rename one of them, or rewrite the shard.",
        )


def remarks_of(store: Store, found: Scanned, **reported: Any) -> list[str]:
    """Return messages about what reading a shard may miss; strays that are samples to Energon are for `spoiled`.

    Args:
        reported: fields of `Unread` without a message, because a finding reports them.
    """
    unread = Unread.of(samples_of(found.scan)[0], hidden_of(found.scan))._replace(**reported)
    return [f"{store.locate(found.shard)}: {text}" for text in unread.remarks(store.url)]


FOUND: dict[str, Any] = {"trailing": 0, "halves": Halves(), "doubled": 0}
"""Fields of `Unread` that checks report as findings."""


def spoiled(store: Store, found: Scanned, *, strays: bool = True) -> Iterator[DataError]:
    """Yield the errors for members that are no data but samples to Energon, and for samples in pieces.

    Args:
        strays: whether such members count; an index for Energon may have them.
    """
    clean, others = samples_of(found.scan)
    file = store.locate(found.shard)
    if strays and clean is not found.scan:
        yield stray_error(file, store.url, others)
    halves = halves_of(clean if strays else found.scan)
    if halves.number:
        yield halves_error(file, store.url, halves)


def trailing_data(store: Store, found: Scanned) -> DataError:
    """Return the error for a shard with data after its end-of-archive marker."""
    return DataError(
        f"data follows the end-of-archive marker ({found.scan.trailing:,} bytes), where tar readers stop",
        file=store.locate(found.shard),
        offset=int(found.scan.starts[-1]),
        kind="data-after-end",
        fix=CONCATENATED,
    )


def check_names(store: Store, found: Scanned) -> None:
    """Raise `DataError` if a member's name is not valid UTF-8, which a database cannot store."""
    scan = found.scan
    try:
        "".join([*scan.keys, *set(scan.parts)]).encode()
    except UnicodeEncodeError:
        names = [f"{scan.keys[i]}.{part}" for i, part in zip(scan.sample.tolist(), scan.parts, strict=True)]
        shown = [name.encode("utf-8", "backslashreplace").decode() for name in names]
        place = next(i for i, name in enumerate(names) if shown[i] != name)
        raise DataError(
            "the member's name is not valid UTF-8",
            file=store.locate(found.shard),
            offset=int(scan.starts[scan.sample[place]]),
            record=shown[place],
            kind="bad-name",
            fix="The tar was probably written with another encoding: rename the member and rewrite the tar, for example"
            " with 'tar --format=pax' in a UTF-8 locale.",
        ) from None


def scan_one(store: Store, entry: Entry, *, digest: bool, blocks: bool = False) -> Scanned:
    """Scan and hash one shard; see `scan_all`. Problems are returned with the file named, never raised."""
    words = None
    try:
        with mapped(store, entry.path) as data:
            view = memoryview(data)  # type: ignore[arg-type]
            hashed = str(xxhash.xxh3_128_hexdigest(view)) if digest else None
            if blocks and len(view) == entry.size:  # else it was replaced meanwhile
                words = hashes_of(partial(_slices, view), len(view))
            scan = scan_bytes(data)
    except FeedmillError as error:
        problem = DataError(error.what, kind=error.kind, fix=error.fix)
        none = np.zeros(0, np.int64)
        scan, hashed = ShardScan([], np.zeros(1, np.int64), none.astype(np.int32), [], none, none, problem), None
    if scan.problem is None and not scan.keys:
        scan.problem = DataError(
            "the shard has no samples: no regular file has a dot in its name",
            kind="no-samples",
            fix="Remove it, or skip it with --exclude.",
        )
    if scan.problem is not None:
        in_file(scan.problem, store.locate(entry.path))
    record = ShardRecord(entry.size, entry.version, len(scan.keys), hashed, *(words or ()))
    return Scanned(entry.path, record, scan, "scanned")


def _slices(view: memoryview, offsets: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
    return [view[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]


def scan_all(
    store: Store,
    entries: Sequence[Entry],
    *,
    workers: int | None = None,
    digest: bool = True,
    blocks: bool = False,
    rescan: bool = False,
    index: bool = True,
    units: Units | None = None,
    place: Store | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Scanned]:
    """Yield the scan of every shard, in the order of `entries`.

    Args:
        workers: number of threads; by default four per core.
        digest: hash each shard.
        blocks: hash a sample of each shard, too, while it is at hand; see `ContentHashes`.
        rescan: read every tar again, instead of reusing the present index and finished scans of an earlier run.
        index: reuse the present index.
        units: journal of finished scans; a retry after a kill reuses them.
        place: folder of the work, which all nodes of an engine reach.
        advance: called with the size in bytes of each finished shard.
    """
    known = {} if rescan or not index else _Known.load(store, digest)
    noted = {} if units is None or rescan else finished_shards(units.read())
    threads = workers or 4 * available_cores()  # storage is the bottleneck

    def finished(entry: Entry) -> Scanned | None:
        record = ShardRecord(entry.size, entry.version, -1)
        if entry.path in noted and _same(noted[entry.path][0], record, digest):
            return Scanned(entry.path, *noted[entry.path][:2], "interrupted")
        if isinstance(known, _Known) and _same(known.records.get(entry.path), record, digest):
            taken = known.take(entry.path)
            if taken is not None:
                return Scanned(entry.path, known.records[entry.path], taken, "index")
        return None

    def work(run: Sequence[Entry]) -> list[Scanned]:
        return [finished(entry) or scan_one(store, entry, digest=digest, blocks=blocks) for entry in run]

    if in_units():
        found_before = list(map(finished, entries))
        shared = _Shared(store.url, digest, blocks)
        yield from _scan_on_engine(shared, entries, found_before, units, place, workers, advance)
        return
    for scans in ordered_map(work, _small_together(entries, threads), workers=threads, in_flight=2 * threads):
        for number, scan in enumerate(scans, 1):
            yield _noted(scan, units, advance, flush=number == len(scans))


def _small_together(entries: Sequence[Entry], threads: int) -> Iterator[Sequence[Entry]]:
    """Yield runs of shards that one call scans: large ones alone, many small ones together."""
    for many in runs_of(entries, threads):
        few: list[Entry] = []
        size = 0
        for entry in many:
            if few and size + entry.size > _RUN_SIZE:
                yield few
                few, size = [], 0
            few.append(entry)
            size += entry.size
        yield few


def checked(
    store: Store, entries: Sequence[Entry], workers: int | None, advance: Callable[[int], None]
) -> Iterator[Scanned]:
    """Yield the scan of every shard as it is now, for a report; see `scan_all`."""
    key = key_of(store.url, *(f"{entry.path} {entry.size} {entry.version}" for entry in entries))
    with kept_results("check", key) as work:
        units, place = (None, None) if work is None else (work.units, work.scratch)
        yield from scan_all(store, entries, workers=workers, index=False, units=units, place=place, advance=advance)


class _Shared(NamedTuple):
    """What every unit needs: the store, and the options of `scan_one`."""

    url: str
    digest: bool
    blocks: bool


def _scan_on_engine(
    shared: _Shared,
    entries: Sequence[Entry],
    finished: Sequence[Scanned | None],
    units: Units | None,
    place: Store | None,
    workers: int | None,
    advance: Callable[[int], None],
) -> Iterator[Scanned]:
    def record(found: Scanned) -> None:
        _noted(found, units, lambda _: None)

    todo = [number for number, found in enumerate(finished) if found is None]
    key = key_of(*(f"{entry.path} {entry.size} {entry.version}" for entry in entries))
    where = Where("scanning", key, place, numbers=todo, record=record, lasting=units is not None)
    items = [entries[number] for number in todo]
    results = run(_scan_unit, items, workers=workers, preload=(__name__,), policy=Policy(shared=shared), where=where)
    with closing(results):
        for found in finished:
            yield _noted(next(results) if found is None else found, units, advance)


def _scan_unit(shared: _Shared, entry: Entry) -> Scanned:
    return scan_one(open_store(shared.url), entry, digest=shared.digest, blocks=shared.blocks)


def _noted(found: Scanned, units: Units | None, advance: Callable[[int], None], *, flush: bool = True) -> Scanned:
    if units is not None and found.origin == "scanned" and found.scan.problem is None:
        add_shard(units, found.shard, found.record, found.scan, flush=flush)
    advance(found.record.size)
    return found


def _same(old: ShardRecord | None, now: ShardRecord, digest: bool) -> bool:
    return (
        old is not None
        and (old.size, old.version) == (now.size, now.version)
        and (old.digest is not None or not digest)
    )


class _Known:
    """The present index, as a source of scans of unchanged shards."""

    def __init__(self, store: Store, records: dict[str, ShardRecord], numbers: dict[str, int]) -> None:
        self.store, self.records, self.numbers = store, records, numbers
        self._index = cached_copy(store, INDEX)

    @classmethod
    def load(cls, store: Store, digest: bool) -> _Known | dict[str, ShardRecord]:  # noqa: ARG003
        """Return the present index, or an empty mapping if there is none or it cannot be read."""
        records = sidecar.read(store)
        if not records or not store.exists(INDEX):
            return {}
        try:
            return cls(store, records, {shard: i for i, shard in enumerate(read_info(store))})
        except FeedmillError:
            return {}

    def take(self, shard: str) -> ShardScan | None:
        """Return the scan of an unchanged shard; None if the index does not match the sidecar."""
        number = self.numbers.get(shard)
        if number is None:
            return None
        try:
            starts = load_offsets(self.store, idx_name(shard), fix="")
            connection = open_index(self._index)
        except FeedmillError:
            return None
        try:
            scan = read_scan(connection, number, starts)
        except sqlite3.DatabaseError:
            return None  # damaged: the shard is scanned instead
        finally:
            connection.close()
        return scan if scan is not None and len(scan.keys) == self.records[shard].samples else None
