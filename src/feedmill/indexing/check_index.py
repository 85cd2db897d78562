"""Compare the index of a prepared dataset with its shards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.energon import all_offsets, database, sidecar
from feedmill.formats.energon import prepared as energon
from feedmill.formats.offsets import Int64s, load_offsets
from feedmill.indexing.scanning import Scanned
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy

if TYPE_CHECKING:
    from feedmill.indexing.report import CheckReport

AGAIN = "Run 'feedmill prepare' again to index the data as it is now."


class PreparedIndex:
    """Index of a prepared folder, to compare with its shards."""

    def __init__(self, store: Store, report: CheckReport) -> None:
        self.store = store
        self.counts: dict[str, int] = {}
        self.connection: sqlite3.Connection | None = None
        self.records = sidecar.read(store)
        try:
            self.counts = energon.read_info(store)
            if store.exists(database.INDEX):
                self.connection = database.open_index(cached_copy(store, database.INDEX))
                self._check_database(report)
            self._check_all_offsets(report)
        except FeedmillError as error:
            report.findings.append(error)
        self.numbers = {shard: number for number, shard in enumerate(self.counts)}
        self.has_parts = self.connection is not None and bool(
            self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone()
        )

    def _check_all_offsets(self, report: CheckReport) -> None:
        where, fault = (
            self.store.locate(all_offsets.PATH),
            all_offsets.fault_of(self.store, sidecar.read_uuid(self.store)),
        )
        if fault == "damaged":
            what = "the file with the offsets of all shards is damaged"
            report.findings.append(DataError(what, file=where, kind="bad-index", fix=AGAIN))
        elif fault == "stale":
            report.notes.append(f"{where}: it belongs to an older index, so loaders ignore it. {AGAIN}")

    def _check_database(self, report: CheckReport) -> None:
        assert self.connection is not None
        try:
            status = self.connection.execute("PRAGMA quick_check").fetchone()[0]
        except sqlite3.DatabaseError as error:
            status = str(error)
        if status != "ok":
            where = self.store.locate(database.INDEX)
            report.findings.append(
                DataError(f"the database is damaged ({status})", file=where, kind="bad-index", fix=AGAIN)
            )
            self.connection.close()
            self.connection = None  # its rows are unreliable, so they are not compared

    def compare(self, found: Scanned) -> Iterator[DataError]:
        """Yield the differences between the index and a shard."""
        record = self.records.get(found.shard)
        if record is not None and record.size != found.record.size:
            yield self._stale(found.shard, f"it had {record.size} bytes when indexed, now {found.record.size}")
        elif record is not None and record.digest not in (None, found.record.digest):
            yield self._stale(
                found.shard, "its content changed since it was indexed (the hash differs)", "hash-mismatch"
            )
        yield from self._compare_offsets(found)
        if self.connection is not None:
            try:
                yield from self._compare_rows(found)
            except sqlite3.DatabaseError as error:  # e.g. a text that is not UTF-8, which quick_check accepts
                yield self._stale(found.shard, f"its rows in the database cannot be read ({error})", "bad-index")

    def _compare_offsets(self, found: Scanned) -> Iterator[DataError]:
        path = energon.idx_name(found.shard)
        try:
            offsets: Int64s = load_offsets(self.store, path, fix=AGAIN)
        except FeedmillError as error:
            yield DataError(error.what, file=self.store.locate(path), kind="bad-index", fix=AGAIN)
            return
        if len(found.scan.keys) != self.counts[found.shard] or len(offsets) != len(found.scan.starts):
            expected = f"{self.counts[found.shard]} in .info.json and {len(offsets) - 1} in {path}"
            yield self._stale(found.shard, f"it has {len(found.scan.keys)} samples, but the index has {expected}")
        elif not np.array_equal(offsets[1:], found.scan.starts[1:]):  # readers may assume 0 for the first
            wrong = int(np.flatnonzero(offsets[1:] != found.scan.starts[1:])[0]) + 1
            yield self._stale(
                found.shard, f"entry {wrong} of {path} is {offsets[wrong]}, in the shard {found.scan.starts[wrong]}"
            )

    def _compare_rows(self, found: Scanned) -> Iterator[DataError]:
        assert self.connection is not None
        number = self.numbers[found.shard]
        sql = "SELECT sample_key, byte_offset FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
        rows = self.connection.execute(sql, (number,)).fetchall()
        if rows != list(zip(found.scan.keys, found.scan.starts[:-1].tolist(), strict=True)):
            yield self._stale(found.shard, f"its {len(rows)} rows in the database do not match its samples")
        elif self.has_parts:
            sql = (
                "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
                " WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset"
            )
            scan = found.scan
            parts = list(zip(scan.sample.tolist(), scan.parts, scan.data.tolist(), scan.sizes.tolist(), strict=True))
            if self.connection.execute(sql, (number,)).fetchall() != parts:
                yield self._stale(found.shard, "its parts in the database do not match those in the shard")

    def _stale(self, shard: str, what: str, kind: str = "stale-index") -> DataError:
        return DataError(what, file=self.store.locate(shard), kind=kind, fix=AGAIN)
