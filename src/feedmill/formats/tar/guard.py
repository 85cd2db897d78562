"""Detect whether a shard changed since it was indexed, once, when the shard is first read.

The record that `feedmill prepare` wrote (`sidecar`) is compared: size and the store's version, which take one
request; if the version differs, as for a copy, some blocks of its bytes. In a remote store that is one block, once for
each machine and version: one that was read ahead, or else the middle one, which takes one request. Without a record, as
with an index by Energon, the keys of a few samples are compared with the database.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

import xxhash

from feedmill.errors import DataError, NotFound
from feedmill.formats.content import block_hash, block_places, content_hash, middle_hash, middle_place
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.energon.sidecar import read as read_records
from feedmill.formats.offsets import Int64s
from feedmill.jobs.unit_files import has_journal
from feedmill.kernels.files import tar
from feedmill.storage import Store

if TYPE_CHECKING:
    from pathlib import Path

FIX = (
    "Restore the shard that was indexed; or, if you want to use this one, run 'feedmill prepare' again."
    " 'feedmill check' compares all shards."
)
_HEAD = 64 << 10
"""Number of bytes of a sample that are read to find its key."""


class ShardGuard:
    """Comparison of shards with the state in which they were indexed.

    Args:
        records: their records in the sidecar, by path.
    """

    def __init__(self, store: Store, records: Mapping[str, ShardRecord]) -> None:
        self.store, self.records = store, records
        self._seen = _Seen(store)
        self._cache = None
        if not store.is_local:
            from feedmill.storage.cache.settings import data_cache

            self._cache = data_cache()  # that of the recipe: shards are compared later
        self._fetched: dict[str, tuple[int, str, str]] = {}  # offset of a block, its hash in the record, and now

    def gather(self, shards: Sequence[str], seconds: float) -> None:
        """Look up which shards have a block that was read ahead, and request the entries of the others together.

        Args:
            seconds: how long to wait for blocks that are being fetched.
        """
        others = []
        until = time.monotonic() + seconds
        for shard in shards:
            record = self.records.get(shard)
            at, length = block_places(0 if record is None else record.size)
            blocks = None if record is None else record.blocks
            block = (
                None
                if blocks is None
                else self.store.any_fetched(shard, at, length, max(0.0, until - time.monotonic()))
            )
            if blocks is None or block is None:
                others.append(shard)
            else:
                number, data = block
                self._fetched[shard] = at[number], blocks[8 * number : 8 * number + 8], block_hash(data)
        if self._fetched:
            self._seen.look()
        if len(others) > 1:
            self.store.entries(others)

    def without_block(self, shards: Sequence[str]) -> list[str]:
        """Return the shards of which no block that could be compared was read ahead or is being fetched."""
        found = []
        for shard in shards:
            record = self.records.get(shard)
            if record is not None and not self.store.holds_any(shard, *block_places(record.size)):
                found.append(shard)
        return found

    def has_block(self, shard: str) -> bool:
        """Return whether `gather` found a block of a shard."""
        return shard in self._fetched

    def keep(self) -> None:
        """Let other processes know which shards were compared by blocks that `gather` found."""
        self._seen.flush()

    def knows(self, shard: str) -> bool:
        """Return whether the record identifies the shard. Raises `DataError` if the shard changed.

        `keep` must be called after a shard for which `has_block` holds.
        """
        record = self.records.get(shard)
        if record is None:
            return False
        try:
            entry = self.store.entries([shard])[0] or self.store.stat(shard)
        except NotFound:
            error = self.changed(shard)
            if error is None:
                raise
            raise error from None
        if entry.size != record.size:
            raise self._another(shard, f"expected {record.size:,} bytes, found {entry.size:,}")
        if entry.version == record.version:
            return True
        local = self.store.is_local
        expected, read = (record.word, content_hash) if local else (record.middle, middle_hash)
        if expected is None:
            return False
        block = None if local else self._fetched.pop(shard, None)
        if block is None:
            self._seen.look()
        if self._seen.has(shard, entry.version, expected):
            return True
        if block is not None:
            at, known, now = block
            if now != known:
                raise self._another(shard, f"expected content of hash {known} at byte {at:,}, found {now}")
            self._seen.add(shard, entry.version, expected)
            return True
        begin, length = middle_place(entry.size)
        from feedmill.storage.cache.mapped import through_cache
        from feedmill.storage.cache.settings import using_cache

        with using_cache(self._cache), through_cache(self.store, shard, begin, begin + length):
            found = read(self.store, shard, entry.size)
        if found != expected:
            raise self._another(shard, f"expected content of hash {expected[:8]}, found {found[:8]}")
        self._seen.add(shard, entry.version, expected)
        self._seen.flush()
        return True

    def compare_keys(self, shard: str, offsets: Int64s, has_key: Callable[[str, int], bool]) -> None:
        """Compare the keys of the first, a middle and the last sample with the index.

        Args:
            offsets: int64[n + 1], offsets of the samples.
            has_key: returns whether the index has a key for a sample number of the shard.

        Raises:
            DataError: a key differs.
        """
        count = len(offsets) - 1
        for local in sorted({0, count // 2, count - 1}) if count else ():
            begin = 0 if not local else int(offsets[local])
            try:
                key = _first_key(self.store.read(shard, begin, min(_HEAD, int(offsets[local + 1]) - begin)))
            except DataError:
                return  # reading the sample raises the error
            if key is not None and not has_key(key, local):
                raise self._another(shard, f"the index does not have {key!r:.80} as its sample {local}")

    def _another(self, shard: str, what: str) -> DataError:
        return self.changed(shard) or DataError(
            f"this is not the shard that was indexed: {what}",
            file=self.store.locate(shard),
            kind="stale-index",
            fix=FIX,
        )

    def changed(self, shard: str) -> DataError | None:
        """Return the error for a shard that a verb such as `delete` is changing, or has changed; None if none has.

        The index of an opened dataset is that of the time before, so preparing again would be wrong advice.
        """
        if has_journal(self.store):
            from feedmill.jobs.journal import Journal

            journal = Journal(self.store)
            if journal.job is not None:
                return journal.interrupted()
        if read_records(self.store).get(shard) == self.records.get(shard):
            return None
        return DataError(
            "the dataset was changed by Feedmill after it was opened here, and its index with it",
            file=self.store.locate(shard),
            kind="changed",
            fix="Open it again. If samples were deleted, the numbers of later samples are others, and states of earlier"
            " runs do not fit.",
        )


class _Seen:
    """Cache of remote shards whose bytes were compared on this machine, which takes a request per shard.

    It is stored in ``shards/`` in the cache folder, one file per dataset. If that is not writable, nothing is cached.
    """

    def __init__(self, store: Store) -> None:
        self._remote = not store.is_local
        self._url = store.url
        self._known: set[bytes] = set()
        self._read = 0  # bytes of the file: this process and others append to it
        self._new: list[bytes] = []  # lines that are not in the file yet
        self._lock = threading.Lock()

    def _line(self, shard: str, version: str, content_hash: str) -> bytes:
        name = f"{shard}\0{version}\0{content_hash}".encode("utf-8", "surrogateescape")
        return str(xxhash.xxh3_128_hexdigest(name)).encode()

    def _file(self) -> Path:
        name = xxhash.xxh3_128_hexdigest(self._url.encode("utf-8", "surrogateescape"))
        from feedmill.storage.folders import cache_folder

        return cache_folder() / "shards" / str(name)

    def has(self, shard: str, version: str, content_hash: str) -> bool:
        """Return whether this version of a shard was compared, as far as is known since the last `look`."""
        return self._remote and self._line(shard, version, content_hash) in self._known

    def look(self) -> None:
        """Read the lines that were appended since the last call; all of them if the file was evicted meanwhile."""
        if self._remote:
            with contextlib.suppress(OSError), self._lock:
                self._read_new()

    def _read_new(self) -> None:
        with self._file().open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            if not self._read:
                os.utime(f.fileno())  # its last use: files of the cache folder are evicted
            if size < self._read:
                self._read = 0
            f.seek(self._read)
            lines = f.read(size - self._read)
        whole = lines.rfind(b"\n") + 1
        self._known.update(lines[:whole].split(b"\n"))
        self._read += whole

    def _opened(self) -> BinaryIO:
        """Open the file for appending, which several processes may do: each line is one write."""
        file = self._file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return file.open("ab")

    def add(self, shard: str, version: str, content_hash: str) -> None:
        """Record that this version of a shard was compared; other processes see it after `flush`."""
        if self._remote:
            line = self._line(shard, version, content_hash)
            with self._lock:
                self._known.add(line)
                self._new.append(line + b"\n")

    def flush(self) -> None:
        """Write what was recorded, all of it at once: each system call may wait for other threads' interpreter."""
        with self._lock:
            lines, self._new = self._new, []
        if lines:
            with contextlib.suppress(OSError), self._opened() as f:
                f.write(b"".join(lines))


def _first_key(block: bytes) -> str | None:
    """Return the key of the sample at the beginning of the block.

    None if its first member is not plain and does not end in the block.
    """
    try:
        names = [member.name for member in tar.walk(block) if member.regular]
    except DataError:
        if block[156:157] != b"0" or block[345:346] != b"\0":
            return None
        names = [block[:100].split(b"\0")[0].decode("utf-8", "surrogateescape")]
    found = next((found for name in names if (found := tar.sample_name(name)) is not None), None)
    return None if found is None else found[0]
