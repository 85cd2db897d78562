"""Scanning many shards: on all cores, in order, with what is already known taken over.

The compiled kernel and the hash run without the GIL, so threads are enough, and their results need no copying.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import NamedTuple

import numpy as np

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.energon import sidecar
from feedmill.formats.energon.database import INDEX, open_index
from feedmill.formats.energon.index import read_scan
from feedmill.formats.energon.prepared import idx_name, read_info
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.offsets import load_offsets
from feedmill.formats.tar.finished import add_shard, finished_shards
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.units import Units
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import Entry, Store
from feedmill.storage.cache import cached_copy

COMPILED_FROM = 48 << 20
"""Bytes of shards from which loading the compiled kernel (a quarter of a second) pays."""


class Scanned(NamedTuple):
    """One shard: its record for the sidecar, its samples, their origin ('scanned', 'index', 'interrupted')."""

    shard: str
    record: ShardRecord
    scan: ShardScan
    origin: str


def shard_digest(store: Store, shard: str) -> str:
    """xxh3-128 of a whole shard, hexadecimal."""
    import xxhash

    with store.local_copy(shard) as local:
        if not local.stat().st_size:
            return str(xxhash.xxh3_128_hexdigest(b""))
        return str(xxhash.xxh3_128_hexdigest(memoryview(np.memmap(local, np.uint8, "r"))))  # type: ignore[arg-type]


def repeated_parts(store: Store, found: Scanned) -> Iterator[DataError]:
    """Yield samples with two members of one name: readers disagree on which of them counts."""
    scan = found.scan
    for number, part in {
        pair for pair, times in Counter(zip(scan.sample.tolist(), scan.parts, strict=True)).items() if times > 1
    }:
        yield DataError(
            f"the sample has two members for the part {part!r}, and only the last is read",
            file=store.locate(found.shard),
            offset=int(scan.starts[number]),
            record=scan.keys[number],
            kind="duplicate-part",
            fix="Rename one of them, or write the shard again.",
        )


def check_names(store: Store, found: Scanned) -> None:
    """Refuse names that a database cannot hold. Raises `DataError`."""
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
            kind="name-not-utf8",
            fix="The tar was probably written with another encoding: rename the member and write the tar again, for"
            " example with 'tar --format=pax' under a UTF-8 locale.",
        ) from None


def load_kernel() -> None:
    """Load the compiled scan, by using it once on an empty archive."""
    from feedmill.kernels.files.tar import scan

    scan(np.zeros(1024, np.uint8), compiled=True)


def scan_one(store: Store, entry: Entry, *, digest: bool, compiled: bool) -> Scanned:
    """Scan and hash one shard. Problems are in the result, with the file named, never raised."""
    try:
        hashed = shard_digest(store, entry.path) if digest else None  # first: it runs while the kernel is loaded
        scan = scan_shard(store, entry.path, compiled=compiled)
    except FeedmillError as error:
        problem = DataError(error.what, kind=error.kind, fix=error.fix)
        none = np.zeros(0, np.int64)
        scan, hashed = ShardScan([], np.zeros(1, np.int64), none.astype(np.int32), [], none, none, problem), None
    if scan.problem is None and not scan.keys:
        scan.problem = DataError(
            "the shard holds no sample (no regular file with a dot in its name)",
            kind="no-samples",
            fix="Remove it, or leave it out with --exclude.",
        )
    if scan.problem is not None:
        in_file(scan.problem, store.locate(entry.path))
    return Scanned(entry.path, ShardRecord(entry.size, entry.version, len(scan.keys), hashed), scan, "scanned")


def scan_all(
    store: Store,
    entries: Sequence[Entry],
    *,
    workers: int | None = None,
    digest: bool = True,
    rescan: bool = False,
    units: Units | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Scanned]:
    """Yield every shard's samples, in the order of `entries`.

    Args:
        workers: threads; by default four a core.
        digest: hash each shard.
        rescan: read every tar again, whatever the present index says.
        units: where finished scans are noted, and found again after a kill.
        advance: called with the bytes of each finished shard.
    """
    known = {} if rescan else _Known.load(store, digest)
    noted = {} if units is None or rescan else finished_shards(units.read())
    compiled = sum(entry.size for entry in entries) >= COMPILED_FROM
    threads = workers or 4 * available_cores()  # they wait for storage more than they compute
    if compiled:
        Thread(target=load_kernel, name="feedmill-load", daemon=True).start()

    def work(entry: Entry) -> Scanned:
        record = ShardRecord(entry.size, entry.version, -1)
        if entry.path in noted and _same(noted[entry.path][0], record, digest):
            return Scanned(entry.path, *noted[entry.path], "interrupted")
        if isinstance(known, _Known) and _same(known.records.get(entry.path), record, digest):
            taken = known.take(entry.path)
            if taken is not None:
                return Scanned(entry.path, known.records[entry.path], taken, "index")
        return scan_one(store, entry, digest=digest, compiled=compiled)

    for found in ordered_map(work, entries, workers=threads, in_flight=2 * threads):
        yield _noted(found, units, advance)


def _noted(found: Scanned, units: Units | None, advance: Callable[[int], None]) -> Scanned:
    if units is not None and found.origin == "scanned" and found.scan.problem is None:
        add_shard(units, found.shard, found.record, found.scan)
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
        """Return the present index; an empty mapping where there is none that can be trusted."""
        records = sidecar.read(store)
        if not records or not store.exists(INDEX):
            return {}
        try:
            return cls(store, records, {shard: i for i, shard in enumerate(read_info(store))})
        except FeedmillError:
            return {}

    def take(self, shard: str) -> ShardScan | None:
        """Return the scan of an unchanged shard; None if the index is not in step with the sidecar."""
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
            return None  # damaged: the shard itself says what it holds
        finally:
            connection.close()
        return scan if scan is not None and len(scan.keys) == self.records[shard].samples else None
