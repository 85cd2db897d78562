"""Megatron Energon's prepared WebDatasets: a folder of tars with ``.nv-meta``.

Layout (docs/formats/energon.md has it to the byte)::

    .nv-meta/.info.json     shard -> samples; the order numbers the shards (releases up to 6: .info.yaml)
    .nv-meta/split.yaml     split -> shard patterns; excluded shards and samples
    .nv-meta/dataset.yaml   sample type and field map (read by feedmill.samples)
    .nv-meta/index.sqlite   key -> shard, number, offset, size (since 6.0); parts (since 7.0); media metadata
    .nv-meta/index.uuid     identifies this state of the index
    .nv-meta/feedmill.offsets   Feedmill's: the offset files of all shards together
    <shard>.tar.idx         u64 little endian: offset of each sample, then the end of the last one

`PreparedShards` reads offsets from ``.tar.idx``, which every release wrote, and keys from SQLite if it exists. Opening
reads only the two small text files; an offset file is mapped when its shard is first read.

Whether a shard changed since it was indexed is detected once, when it is first read. The record that `feedmill prepare`
wrote (`sidecar`) is compared: size and the store's version, which take one
request; if the version differs, as for a copy, some blocks of its bytes. In a remote store that is one block, once for
each machine and version: one that was read ahead, or else the middle one, which takes one request. Without a record, as
with an index by Energon, the keys of a few samples are compared with the database.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.content import block_hash, block_places, content_hash, middle_hash, middle_place
from feedmill.formats.energon import sidecar
from feedmill.formats.energon.database import INDEX, MAX_SAMPLES, META, bad_index, open_index
from feedmill.formats.energon.sidecar import ShardRecord, Splits, read_splits
from feedmill.formats.energon.sidecar import read as read_records
from feedmill.formats.format import TRAIN_OR_ALL, OpenRequest
from feedmill.formats.objects import invalid_file, read_object
from feedmill.formats.offsets import Int64s, hash_words, load_offsets, maps_are_full
from feedmill.formats.sample import no_such_key, split_name
from feedmill.formats.tar.dataset import ShardTable, TarDataset, first_places
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.work_folder import has_journal
from feedmill.kernels.files import tar
from feedmill.storage import Store

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from feedmill.formats.energon.all_offsets import AllOffsets
    from feedmill.formats.energon.members import Members
    from feedmill.formats.mediatable import MediaTable


INFO, INFO_YAML = f"{META}/.info.json", f"{META}/.info.yaml"
MAX_MAPPED = 16_384
_AT_ONCE = 32
"""Number of index files that are requested at once. A dataset with at most this many loads all with the first ones."""
_AGAIN = "Run 'feedmill prepare' again."
_LOCKS = 64
_WAIT, _LONG_WAIT = 0.2, 2.0
"""Seconds to wait for blocks that are being fetched before shards are compared by requests of their own; and if no
reader waits for the comparison."""
_MOST_AHEAD = 1024
"""A dataset with more index files does not load those ahead that no step needs yet."""
UUID = sidecar.UUID

_SAMPLE = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?"
_IS_UNIQUE = "SELECT 1 FROM sqlite_master WHERE name = 'samples' AND sql LIKE '%UNIQUE%'"
_REPEATED = (
    "SELECT count(*), min(sample_key) FROM (SELECT sample_key FROM samples GROUP BY sample_key HAVING count(*) > 1)"
)
_MOST_KEYS = 5_000_000
"""More keys are not compared with each other at opening: it would take seconds."""
_HAS_PARTS = "SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'"
_PART = (  # of two parts with one name, the first
    "SELECT s.tar_file_id, p.content_byte_offset, p.content_byte_size FROM samples s"
    " JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index"
    " WHERE s.sample_key = ? AND p.part_name = ? ORDER BY p.content_byte_offset LIMIT 1"
)


def idx_name(shard: str) -> str:
    """Return the name of a shard's offset file: its last suffix replaced by ``.tar.idx``."""
    folder, slash, name = shard.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}.tar.idx"


def read_info(store: Store) -> dict[str, int]:
    """Return shard -> number of samples, by shard number.

    Raises:
        NotFound: the folder is not prepared.
        DataError: the file is invalid.
    """
    try:
        path, content = INFO, read_object(store, INFO, kind="bad-index", fix=_AGAIN)
    except NotFound:
        path, content = INFO_YAML, _read_old_info(store)
    counts = content.get("shard_counts") if isinstance(content, dict) else None
    if not isinstance(counts, dict) or not all(type(n) is int and 0 <= n < MAX_SAMPLES for n in counts.values()):
        why = "'shard_counts' must map shard paths to numbers of samples"
        raise invalid_file(store, path, why, kind="bad-index", fix=_AGAIN)
    return counts


def _read_old_info(store: Store) -> Any:
    try:
        text = store.read_small(INFO_YAML)
    except NotFound:
        raise NotFound(
            "the folder is not prepared: it has no .nv-meta/.info.json",
            file=store.url,
            kind="not-prepared",
            fix="Run 'feedmill prepare' on it.",
        ) from None
    from feedmill.formats import yamls

    return yamls.read_yaml(text, store.locate(INFO_YAML)).value


class PreparedShards(ShardTable):
    """Shards of a prepared folder, in the order of a split.

    Attributes:
        listed: the split's shards, including excluded ones; shard numbers of join indices refer to this list.
        excludes: excluded shards, and samples as ``shard/key``.
    """

    prepared = True

    def __init__(
        self, store: Store, info: Mapping[str, int], shards: Sequence[str], splits: Splits | None, split: str | None
    ) -> None:
        super().__init__(store, shards)
        splits = splits or Splits()
        self.listed = list(shards) if split is None else splits.parts[split]
        self.excludes = [*splits.shards_out, *(f"{shard}/{key}" for shard, key in splits.samples_out)]
        self._number = {shard: i for i, shard in enumerate(info)}
        self._place = {self._number[shard]: i for i, shard in enumerate(self.shards)}
        self._names = list(info)
        self._all_counts = np.asarray(list(info.values()), np.int64)
        self.counts = np.asarray([info[shard] for shard in self.shards], np.int64)
        self._offsets: dict[int, Int64s] = {}
        self._loading: dict[int, threading.Lock] = {}
        self._compared: set[int] = set()
        self._together: AllOffsets | None = None
        self._guard = ShardGuard(store, sidecar.read(store))
        if not store.is_local:
            from feedmill.formats.energon.all_offsets import AllOffsets

            self._together = AllOffsets(store, self._all_counts, sidecar.read_uuid(store))
        self._local = threading.local()
        self._keys: dict[str, tuple[int, int]] | None = None
        self._members: Members | None = None
        self._looked_for_members = False

    def _lock(self, shard: int) -> threading.Lock:
        number = shard % _LOCKS
        return self._loading.get(number) or self._loading.setdefault(number, threading.Lock())

    def offsets(self, shard: int) -> Int64s:
        offsets = self.offsets_ahead(shard)
        if shard not in self._compared:
            self._compare(shard)
        return offsets

    def offsets_ahead(self, shard: int) -> Int64s:
        found = self._offsets.get(shard)
        return self._kept_offsets(shard) if found is None else found

    def _kept_offsets(self, shard: int) -> Int64s:
        with self._lock(shard):  # another thread may be loading them ahead
            if (known := self._offsets.get(shard)) is not None:
                return known
            # The system limits how many files a process may map and open, and other datasets have some of them.
            if len(self._offsets) >= MAX_MAPPED or (self.store.is_local and maps_are_full()):
                self._offsets = {}
            offsets = self._load_offsets(shard)
            if not (self.store.is_local and maps_are_full()):
                self._offsets[shard] = offsets
            return offsets

    def load(self, shards: Iterable[int], *, ahead: bool = False) -> None:
        known = self._offsets if ahead else self._compared
        missing = [shard for shard in shards if shard not in known]
        if not missing:
            return
        if ahead and len(self.shards) <= _AT_ONCE:  # later steps need the others, and now they take no longer
            missing = [shard for shard in range(len(self.shards)) if shard not in known]
        if not ahead:
            self._guard.gather([self.shards[shard] for shard in missing], _WAIT)
        if self._together is not None and (ahead or len(missing) > 1) and self._together.is_usable():
            self._load_together(missing)
        if not ahead:
            missing = self._compare_gathered(missing)
        if len(missing) > 1:
            get = self.offsets_ahead if ahead else self.offsets
            for _ in ordered_map(get, missing, workers=min(_AT_ONCE, len(missing)), in_flight=2 * _AT_ONCE):
                pass

    def _compare_gathered(self, shards: Sequence[int]) -> list[int]:
        """Compare the shards for which that takes no request; return the others."""
        others = []
        for shard in shards:
            if self._guard.has_block(self.shards[shard]):
                self.offsets(shard)
            else:
                others.append(shard)
        if len(others) < len(shards):
            with contextlib.suppress(RuntimeError):  # the interpreter exits
                from feedmill.storage.fetching.fetch import fetcher

                fetcher().run(0, self._guard.keep)  # a batch may be waiting for this
        return others

    def check_ahead(self, shards: Sequence[int], *, awaited: bool = False) -> None:
        missing = [shard for shard in shards if shard not in self._compared]
        if awaited:
            names = set(self._guard.without_block([self.shards[shard] for shard in missing]))
            alone = [shard for shard in missing if self.shards[shard] in names]
            self.load(alone)
            for shard in alone:
                self.offsets(shard)
            return
        self._guard.gather([self.shards[shard] for shard in missing], _LONG_WAIT)
        from feedmill.storage.fetching.fetch import ending

        for shard in self._compare_gathered(missing):
            if ending():
                return
            self.offsets(shard)

    def _load_together(self, shards: Sequence[int]) -> None:
        """Load offsets from the file with those of all shards."""
        assert self._together is not None
        missing = [shard for shard in shards if shard not in self._offsets]
        if len(self._offsets) + len(missing) > MAX_MAPPED:
            self._offsets = {}
        numbers = [self._number[self.shards[shard]] for shard in missing]
        self._offsets.update(zip(missing, self._together.get(numbers), strict=True))

    def load_ahead(self) -> None:
        shards = range(len(self.shards))
        from feedmill.storage.fetching.fetch import ending

        for begin in shards[::_AT_ONCE] if len(shards) <= _MOST_AHEAD else ():
            if ending():
                return
            self.load(shards[begin : begin + _AT_ONCE], ahead=True)

    def _load_offsets(self, shard: int) -> Int64s:
        path = idx_name(self.shards[shard])
        again = f"Run 'feedmill prepare --tar-index-only {self.store.url}'."
        try:
            offsets = load_offsets(self.store, path, fix=again)
        except NotFound:
            where, changed = self.store.locate(path), self._guard.changed(self.shards[shard])
            error = changed or NotFound("the shard's index is missing", file=where, kind="not-prepared", fix=again)
            raise error from None
        if len(offsets) != self.counts[shard] + 1:
            raise self._guard.changed(self.shards[shard]) or DataError(
                f"the index has {len(offsets) - 1} samples, but .info.json has {self.counts[shard]}",
                file=self.store.locate(path),
                kind="bad-index",
                fix=again,
            )
        return offsets

    def _compare(self, shard: int) -> None:
        """Compare a shard with the index, once. Raises `DataError` if it is another one."""
        path, offsets = self.shards[shard], self.offsets_ahead(shard)
        with self._lock(shard):  # another thread may be comparing it
            if shard not in self._compared:
                if not self._guard.knows(path):
                    self._guard.compare_keys(path, offsets, lambda key, local: self._has_key(key, shard, local))
                self._compared.add(shard)

    def _has_key(self, key: str, shard: int, local: int) -> bool:
        """Return whether the database has this key at this place; True if it is not available."""
        connection = self._connection() if self.store.is_local else None
        if connection is None:
            return True
        import sqlite3

        try:
            rows = connection.execute(_SAMPLE, (key,)).fetchall()
        except (sqlite3.DatabaseError, UnicodeEncodeError):
            return True  # looking up a key reports this
        return (self._number[self.shards[shard]], local) in rows

    def media_costs(self, by: str) -> Int64s | None:
        from feedmill.formats.energon.costs import media_costs

        found = media_costs(self.store, self._all_counts, by)
        return None if found is None else found[self._of_split()]

    def media_table(self) -> MediaTable | None:
        from feedmill.formats.energon.costs import media_table

        found = media_table(self.store, self._all_counts)
        return None if found is None else found.select(self._of_split())

    def media_version(self) -> str | None:
        if not self.store.exists(INDEX):
            return None
        entry = self.store.stat(INDEX)
        return f"{entry.size} {entry.version}"

    def _of_split(self) -> Int64s:
        """Return the numbers of these shards' samples among those of all shards, int64[n]."""
        ends = np.cumsum(self._all_counts)
        numbers = [self._number[shard] for shard in self.shards]
        return np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(ends[n] - self._all_counts[n], ends[n]) for n in numbers)]
        )

    def file_ids(self) -> list[int]:
        """Return the numbers that the database gives these shards."""
        return list(self._place)

    def numbers(self, file_ids: Int64s) -> Int64s:
        """Return shard numbers for numbers of the database, int64[n]; -1 for shards of other splits."""
        known = np.full(len(self._names) + 1, -1, np.int64)  # the last entry is for -1: no shard
        known[list(self._place)] = list(self._place.values())
        if len(file_ids) and not -1 <= file_ids.min() <= file_ids.max() < len(self._names):
            raise bad_index(self.store.locate(INDEX), f"it has shards beyond the {len(self._names)} of .info.json")
        return known[file_ids]

    def find_member(self, name: str) -> tuple[int, int, int] | None:
        if not self._looked_for_members:
            self._members, self._looked_for_members = self._open_members(), True
        row = None if self._members is None else self._members.find(name)
        if row is None:
            row = self._find_in_database(name)
        if row is None or row[0] not in self._place:
            return None
        return self._place[row[0]], row[1], row[2]

    def _open_members(self) -> Members | None:
        """Return Feedmill's index of names; None if there is none for this state of the dataset."""
        from feedmill.formats.energon import members as energon_members

        if not (self.store.exists(energon_members.PATH) and self.store.exists(UUID)):
            return None
        from feedmill.formats.energon.members import Members
        from feedmill.storage.cache.copies import cached_copy

        try:
            return Members(cached_copy(self.store, energon_members.PATH), sidecar.read_uuid(self.store))
        except (OSError, ValueError):
            return None  # the database has the same information

    def copy_indices(self) -> None:
        from feedmill.formats.energon import members as energon_members
        from feedmill.storage.cache.copies import held_copy

        for path in (INDEX, energon_members.PATH):
            if self.store.exists(path):
                held_copy(self.store, path, kind="index").close()
        if self._together is not None:
            self._together.fetch()
        if not self.store.is_local and len(self.shards) <= _MOST_AHEAD:
            self.load(range(len(self.shards)))  # compares the shards with the index before hours of fetching

    def _find_in_database(self, name: str) -> tuple[int, int, int] | None:
        try:
            cursor = self._local.part_cursor
        except AttributeError:
            cursor = self._local.part_cursor = self._new_part_cursor()
        import sqlite3

        try:
            row: tuple[int, int, int] | None = cursor and cursor.execute(_PART, split_name(name)).fetchone()
        except sqlite3.DatabaseError as error:
            raise bad_index(self.store.locate(INDEX), str(error)) from None
        return row

    def _new_part_cursor(self) -> sqlite3.Cursor | None:
        """Return a cursor for this thread; None if the index has no parts (releases before 7.0)."""
        connection = self._connection()
        known = connection and connection.execute(_HAS_PARTS).fetchone()
        return connection.cursor() if connection and known else None

    def find(self, key: str) -> tuple[int, int]:
        connection = self._connection()
        if connection is None:
            return self._find_without_index(key)
        import sqlite3

        try:
            row = connection.execute(_SAMPLE, (key,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise bad_index(self.store.locate(INDEX), str(error)) from None
        if row is None:
            raise no_such_key(self.store.url, key)
        place = self._place.get(row[0])
        count = self.counts[place] if place is not None else MAX_SAMPLES
        if not (type(row[0]) is type(row[1]) is int and 0 <= row[0] < len(self._names) and 0 <= row[1] < count):
            raise bad_index(self.store.locate(INDEX), f"it has {key!r:.80} as sample {row[1]} of shard {row[0]}")
        if place is None:
            name = self._names[row[0]]
            raise NotFound(
                f"the sample is in {name}, which is not part of this split",
                file=self.store.url,
                record=key,
                kind="other-split",
                fix="Open the dataset without a split to reach all samples.",
            )
        return place, row[1]

    def _connection(self) -> sqlite3.Connection | None:
        """Return this thread's read-only connection; None if the index has no keys (releases before 6.0)."""
        if not hasattr(self._local, "connection"):
            exists = self.store.exists(INDEX)
            from feedmill.storage.cache.copies import cached_copy

            self._local.connection = open_index(cached_copy(self.store, INDEX)) if exists else None
        connection: sqlite3.Connection | None = self._local.connection
        return connection

    def _find_without_index(self, key: str) -> tuple[int, int]:
        if self._keys is None:
            from feedmill.formats.tar.scan import scan_shard

            self._keys = first_places(scan_shard(self.store, shard).keys for shard in self.shards)
        if key not in self._keys:
            raise no_such_key(self.store.url, key)
        return self._keys[key]

    def remarks(self, folder: str) -> list[str]:
        """See `ShardTable`. Releases of Energon before 7.3 index keys that repeat, which one scan finds."""
        if self._guard.records or not self.store.is_local or sum(self.counts.tolist()) > _MOST_KEYS:
            return []
        import sqlite3

        try:
            connection = self._connection()
            if connection is None or connection.execute(_IS_UNIQUE).fetchone() is not None:
                return []
            count, key = connection.execute(_REPEATED).fetchone()
        except (sqlite3.DatabaseError, DataError):
            return []  # looking up a key reports this
        what = f"keys that occur several times, as those of samples in pieces: {count:,} (such as {key!r:.80})."
        return [f"{what} 'feedmill check {folder}' names the cause"] if count else []

    def fingerprint(self, first: int | None = None) -> str:
        known, shards = self._guard.records, self.shards[:first]
        digests = [known[shard].digest if shard in known else None for shard in shards]
        if None not in digests:
            return hash_words([f"{s} {n} {d}" for s, n, d in zip(shards, self.counts.tolist(), digests, strict=False)])
        word = self._fingerprints.get(len(shards))
        if word is None:
            counts = [f"{s} {n}" for s, n in zip(shards, self.counts.tolist(), strict=False)]
            from feedmill.formats.content import content_of_files

            word = self._fingerprints[len(shards)] = hash_words([*counts, content_of_files(self.store, shards)])
        return word


def open_prepared(store: Store, name: str, *, split: str | None = None, split_config: str | None = None) -> TarDataset:
    """Open a prepared folder, or one split of it.

    Args:
        store: the folder.
        name: the path as the user gave it.
        split: a name from the split file, or `TRAIN_OR_ALL`; None opens all shards except excluded ones.
        split_config: name of another split file in ``.nv-meta``.

    Raises:
        NotFound: the folder is not prepared, or there is no such split.
        DataError, ConfigError: the index or the split file is invalid.
    """
    info = read_info(store)
    splits = read_splits(store, split_config) or Splits()
    if split == TRAIN_OR_ALL:
        split = "train" if "train" in splits.parts else None
    samples_out = Counter(shard for shard, _ in set(splits.samples_out))
    counts = {
        part: sum(info[shard] - samples_out[shard] for shard in splits.shards(part) if shard in info)
        for part in splits.parts
    }
    if split is None:
        shards = [shard for shard in info if shard not in splits.shards_out]
    elif split in splits.parts:
        shards = splits.shards(split)
    else:
        raise NotFound(
            f"there is no split {split!r}",
            file=name,
            kind="no-such-split",
            fix=f"The dataset has: {', '.join(splits.parts) or 'no splits'}.",
        )
    missing = [shard for shard in shards if shard not in info]
    if missing:
        raise ConfigError(
            f"the split {split!r} names {missing[0]!r}, which is not in the index",
            file=store.locate(f"{META}/{split_config or 'split.yaml'}"),
            kind="unknown-shard",
            fix="Correct the pattern, or run 'feedmill prepare' to index new shards.",
        )
    described = {part: {"samples": counts[part], "shards": len(splits.shards(part))} for part in splits.parts}
    try:
        return TarDataset(
            store,
            PreparedShards(store, info, shards, splits, split),
            name=name,
            split=split,
            exclude=splits.samples_out,
            splits=counts,
            description={"splits": described},
        )
    except ConfigError as error:
        if error.kind == "unknown-exclude":
            error.file = store.locate(f"{META}/{split_config or 'split.yaml'}")
        raise


def open_found(wanted: OpenRequest) -> TarDataset:
    """See `open_prepared`."""
    return open_prepared(wanted.store, wanted.url, split=wanted.split, split_config=wanted.split_config)


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
