"""Read WebDatasets: tar shards whose consecutive members with the same base name form a sample.

Layout: any folders of ``*.tar``; a member ``a/b.c/0007.detail.json`` has the key ``a/b.c/0007`` (up to the first dot
after the last slash) and the part ``detail.json``. Members that are not regular files, have no dot, or are below
``__...__`` are skipped. Compressed tars have no random access: `opening.py` copies them first.

`TarDataset` reads samples by offset: one `pread` per sample, or one per run of adjacent samples. The offsets come from
a `ShardTable`: `ScannedShards` scans the shards at opening, `feedmill.formats.energon.prepared` reads an index.

Samples are parsed one at a time or many in one call. A plain sample has ustar headers with octal sizes and short names,
like nearly all samples. Everything else is parsed by the reference in `feedmill.kernels.files.tar`.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Parts, Want
from feedmill.formats.costs import bad_cost
from feedmill.formats.offsets import (
    Extents,
    Int64s,
    copy_fetched,
    fingerprint_of_starts,
    gather_spans,
    hash_words,
    place_of,
    read_record,
    read_remote,
    read_scattered,
)
from feedmill.formats.sample import Sample, Source, no_such_key
from feedmill.jobs.buffers import empty
from feedmill.jobs.threads import ordered_map
from feedmill.kernels.files import tar
from feedmill.kernels.files.ranges import read_all
from feedmill.kernels.files.tar_many import plain_samples
from feedmill.kernels.native import address_of, bytes_at, texts_at
from feedmill.storage import Store
from feedmill.storage.limits import max_unpacked, too_large

if TYPE_CHECKING:
    from feedmill.formats.mediatable import MediaTable
    from feedmill.formats.tar.scan import Unread


REINDEX = "The shard changed after it was indexed: run 'feedmill prepare' again."
MOST_REMARKS = 20
"""Maximum number of messages about shards of one dataset."""


class ShardTable(ABC):
    """The shards of a dataset, and the location of each sample.

    Attributes:
        store: store of the shards.
        shards: paths in the store, in the order of the dataset.
        counts: int64[shards], samples per shard.
        reindex: fix for errors about a shard that does not match the table.
        prepared: whether there is an index that may have media metadata.
        unread: shard number -> what reading the shard may miss. Empty for prepared shards: `prepare` reported it.
    """

    counts: Int64s
    reindex: str = REINDEX
    prepared: bool = False
    unread: Mapping[int, Unread] = {}

    def __init__(self, store: Store, shards: Sequence[str]) -> None:
        self.store, self.shards = store, list(shards)
        self._fingerprints: dict[int, str] = {}

    @abstractmethod
    def offsets(self, shard: int) -> Int64s:
        """Return the offset of each sample's first header, and the end of the last sample, int64[count + 1]."""

    def offsets_ahead(self, shard: int) -> Int64s:
        """Return the same to read ahead: the shard may be compared with the index later, when it is read."""
        return self.offsets(shard)

    def load(self, shards: Iterable[int], *, ahead: bool = False) -> None:  # noqa: B027 - most tables have them
        """Load the offsets of several shards at once, because each is a request to a remote store.

        Args:
            ahead: as in `offsets_ahead`.
        """

    def check_ahead(self, shards: Sequence[int], *, awaited: bool = False) -> None:  # noqa: B027 - most have no record
        """Compare shards whose bytes are being fetched with the index; reading them raises what is wrong.

        Args:
            awaited: only those for which none of these bytes can be compared, which takes requests of their own.
        """

    def load_ahead(self) -> None:  # noqa: B027 - most tables have them
        """See `Dataset.load_ahead`."""

    def copy_indices(self) -> None:  # noqa: B027 - most tables have none that are opened by path
        """See `Dataset.copy_indices`."""

    def keys(self, shard: int) -> list[str]:
        """Return the keys of a shard's samples; only tables of tars without an index of Energon's know them."""
        raise NotImplementedError

    def part_names(self, shard: int) -> frozenset[str]:  # noqa: ARG002
        """Return the names of a shard's parts, as far as such tables know them."""
        return frozenset()

    def remarks(self, folder: str) -> list[str]:
        """Return messages about samples in pieces that no shard shows by itself.

        Args:
            folder: the dataset, as the user gave it.
        """
        common, shards = self.apart()
        what = f"keys that are in several shards with different parts are read in pieces: {common:,} ({shards})."
        from feedmill.formats.tar.strays import regroup

        return [f"{what} {regroup(folder)}"] if common else []

    def apart(self) -> tuple[int, str]:
        """Return how many keys are in several shards that have no part in common, and such shards, as text."""
        shards: dict[frozenset[str], list[int]] = {}
        for number in range(len(self.shards)):
            shards.setdefault(self.part_names(number), []).append(number)
        for one, other in combinations(sorted(shards, key=sorted), 2):
            if one and other and not one & other:
                keys = [{key for number in shards[names] for key in self.keys(number)} for names in (one, other)]
                if common := len(keys[0] & keys[1]):
                    places = (
                        f"{self.shards[shards[names][0]]}: {', '.join(sorted(names)[:3])}" for names in (one, other)
                    )
                    return common, "; ".join(places)
        return 0, ""

    @abstractmethod
    def find(self, key: str) -> tuple[int, int]:
        """Return the shard number of a key, and the sample number in that shard. Raises `NotFound`."""

    def find_member(self, name: str) -> tuple[int, int, int] | None:  # noqa: ARG002
        """Return shard number, offset and size of the content that is probably the member's; None if unknown.

        The caller must compare the header before the content with the name.
        """
        return None

    def media_costs(self, by: str) -> Int64s | None:  # noqa: ARG002
        """Return the costs of all samples by their media, int64[sum of counts]; -1 if a media file's cost is unknown.

        None if the table has no media metadata. Raises `DataError`.
        """
        return None

    def media_table(self) -> MediaTable | None:
        """Return the sizes of the media of all samples; None if the table has no media metadata.

        Raises `DataError` if it is damaged.
        """
        return None

    def media_version(self) -> str | None:
        """Return a text that changes when the media metadata does; None if it has none."""
        return None

    @abstractmethod
    def fingerprint(self, first: int | None = None) -> str | None:
        """Return a short hash of shards, counts and data that changes with their content.

        Args:
            first: number of shards to cover, as if there were no others; the result is None if that cannot be
                determined. By default, all shards are covered.
        """

    def _fingerprint_of(self, starts: Sequence[Int64s]) -> str:
        """Return the same for the first shards, from the offsets of their samples and some blocks of their bytes."""
        known = self._fingerprints.get(len(starts))
        if known is None:
            shards = self.shards[: len(starts)]
            places = fingerprint_of_starts(zip(shards, starts, strict=True))
            from feedmill.formats.content import content_of_files

            known = hash_words([places, content_of_files(self.store, shards)])
            self._fingerprints[len(starts)] = known
        return known


def first_places(keys: Iterable[Iterable[str]]) -> dict[str, tuple[int, int]]:
    """Return for each key the number of its first shard, and its number there, from the keys of all shards."""
    places: dict[str, tuple[int, int]] = {}
    for shard, names in enumerate(keys):
        for number, name in enumerate(names):
            places.setdefault(name, (shard, number))
    return places


def with_remarks(unread: Iterable[Unread]) -> dict[int, Unread]:
    """Return what the shards with remarks miss, by number; given that of all shards."""
    return {number: each for number, each in enumerate(unread) if each.remarks()}


class ScannedShards(ShardTable):
    """The table of a folder without an index, created by scanning its tars at opening."""

    def __init__(self, store: Store, shards: Sequence[str]) -> None:
        super().__init__(store, shards)
        from feedmill.formats.tar.scan import Unread, in_file, scan_shard

        scans = [scan_shard(store, shard) for shard in self.shards]
        for shard, found in zip(self.shards, scans, strict=True):
            if found.problem is not None:
                raise in_file(found.problem, store.locate(shard))
        from feedmill.formats.tar.strays import samples_of

        clean = [samples_of(found) for found in scans]
        self.scans = [scan for scan, _ in clean]
        self.counts = np.asarray([len(found.keys) for found in self.scans], np.int64)
        self.unread = with_remarks(Unread.of(scan, strays) for scan, strays in clean)
        self._keys: dict[str, tuple[int, int]] | None = None

    def offsets(self, shard: int) -> Int64s:
        return self.scans[shard].starts

    def keys(self, shard: int) -> list[str]:
        return self.scans[shard].keys

    def part_names(self, shard: int) -> frozenset[str]:
        return frozenset(self.scans[shard].parts)

    def find(self, key: str) -> tuple[int, int]:
        if self._keys is None:
            self._keys = first_places(scan.keys for scan in self.scans)
        try:
            return self._keys[key]
        except KeyError:
            raise no_such_key(self.store.url, key) from None

    def fingerprint(self, first: int | None = None) -> str:
        return self._fingerprint_of([scan.starts for scan in self.scans[:first]])


class TarDataset(Dataset):
    """Samples of tar shards, by offset.

    Args:
        store: the folder.
        table: shards and offsets.
        exclude: (shard path, key) of samples to skip.
        name: path or URL as the user gave it.
        base: the folder in sources of samples, if it is not `name`.
    """

    format = "webdataset"

    def __init__(
        self,
        store: Store,
        table: ShardTable,
        *,
        name: str,
        base: str | None = None,
        split: str | None = None,
        exclude: Sequence[tuple[str, str]] = (),
        splits: Mapping[str, int] | None = None,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        self.store, self.table, self.url, self.split = store, table, name, split
        self._base = name if base is None else base
        self._splits = dict(splits or {})
        self._description = dict(description or {})
        self._ends = np.cumsum(table.counts, dtype=np.int64)
        self._starts = self._ends - table.counts
        self._excluded = self._find_excluded(exclude)
        # sorted excluded numbers minus their rank, so that one searchsorted converts an index to a stored number
        self._gaps = self._excluded - np.arange(len(self._excluded))
        self._part_names: dict[bytes, str] = {}
        self._alike = True
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1] if len(self._ends) else 0) - len(self._excluded)

    def _find_excluded(self, exclude: Sequence[tuple[str, str]]) -> Int64s:
        number = {shard: i for i, shard in enumerate(self.table.shards)}
        out = []
        for shard, key in exclude:
            if shard in number:
                try:
                    found, local = self.table.find(key)
                except NotFound:
                    found, local = -1, 0
                if found != number[shard]:  # otherwise the intended sample would silently be used for training
                    raise ConfigError(
                        f"{shard}/{key} is excluded, but this shard has no such sample",
                        file=self.url,
                        kind="unknown-exclude",
                        fix="Correct the entry of 'exclude', or remove it.",
                    )
                out.append(int(self._starts[found]) + local)
        # Not `np.unique`: its first call imports numpy.ma, for a fifth of the time that opening takes.
        return np.asarray(sorted(set(out)), np.int64)

    def _stored_numbers(self, indices: Indices) -> Int64s:
        wanted = self._inside(indices)
        if len(self._gaps):
            wanted = wanted + np.searchsorted(self._gaps, wanted, side="right")
        return wanted

    def numbers(self, shards: Int64s, local: Int64s) -> Int64s:
        """Return sample numbers, int64[n], for shards and numbers in them; -1 for excluded samples and shard -1."""
        stored = self._starts[shards] + local if len(self._starts) else np.zeros_like(shards)
        rank = np.searchsorted(self._excluded, stored)
        out = np.zeros(len(stored), bool)
        if len(self._excluded):
            out = self._excluded[np.minimum(rank, len(self._excluded) - 1)] == stored
        return np.where(out | (shards < 0), -1, stored - rank)

    @property
    def row_files(self) -> Sequence[str]:
        return [self.store.locate(shard) for shard in self.table.shards]

    def stored_rows(self, indices: Indices) -> tuple[Int64s, Int64s]:
        stored = self._stored_numbers(indices)
        shards = np.searchsorted(self._ends, stored, side="right")
        return shards, stored - self._starts[shards]

    def samples_of_row(self, file: int, row: int) -> list[int]:
        if not 0 <= row < int(self.table.counts[file]):
            return []
        (found,) = self.numbers(np.asarray([file], np.int64), np.asarray([row], np.int64)).tolist()
        return [found] if found >= 0 else []

    @property
    def shard_bounds(self) -> Int64s:
        """Return the number of each shard's first sample, then the total number of samples, int64[shards + 1]."""
        return np.concatenate(([0], self._ends - np.searchsorted(self._excluded, self._ends)))

    @property
    def stored_length(self) -> int:
        return int(self._ends[-1] if len(self._ends) else 0)

    def kept_before(self, stored: int) -> int:
        return stored - int(np.searchsorted(self._excluded, stored))

    def stored_sizes(self, indices: Indices) -> Int64s:
        """Return the size of each of these samples in its tar in bytes, int64[n]."""
        order, _, _, begins, ends = self._sorted(indices)
        out = np.empty(len(order), np.int64)
        out[order] = ends - begins
        return out

    def media_table(self) -> MediaTable:
        found = self.table.media_table()
        if found is None:
            return super().media_table()
        return found.select(np.delete(np.arange(self.stored_length), self._excluded))

    def _media_advice(self) -> str:
        if self.table.prepared:
            return f"Run 'feedmill edit prepare-media {self.url} --media-by-extension'."
        return f"Run 'feedmill prepare {self.url} --media-by-extension'."

    def media_version(self) -> str | None:
        return self.table.media_version()

    def _find_costs(self, by: str) -> Int64s | None:
        if by != "bytes":
            stored = self.table.media_costs(by)
        else:
            threads = 0 if self.store.is_local else 16  # in object stores each index is a request
            shards = range(len(self.table.shards))
            sizes = ordered_map(lambda n: np.diff(self.table.offsets(n)), shards, workers=threads, in_flight=64)
            stored = np.concatenate([np.zeros(0, np.int64), *sizes])
        if stored is None:
            return None
        costs = np.delete(stored, self._excluded)
        if len(costs) and costs.min() < 0:
            number = int(np.argmax(costs < 0))
            again = f"Run 'feedmill edit prepare-media {self.url} --media-by-extension' again. Exclude what it lists."
            value, fix = (int(costs[number]), self.table.reindex) if by == "bytes" else ("not in the index", again)
            raise bad_cost(by, number, value, file=self.url, fix=fix)
        return costs

    def costs_advice(self, by: str) -> str:
        if by not in ("pixels", "frames"):
            return super().costs_advice(by)
        media = f"'feedmill edit prepare-media {self.url} --media-by-extension'"
        if self.table.prepared:
            return f"Run {media}."
        return f"Run 'feedmill prepare {self.url}' and then {media}."

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        if want != "parts":
            return super().read_batch(indices, want)
        if self.view is not None or not self._alike:
            return None
        order, stored, shards, begins, ends = self._sorted(indices)
        paths, places = self.table.shards, np.argsort(order, kind="stable")
        found = self._parts(places, shards, begins, ends, views=self.decode is not None)
        if found is None:
            return None
        keys, views = found

        def source(number: int) -> Source:
            at = int(places[number])
            begin, length = int(begins[at]), int(ends[at] - begins[at])
            return self._source(paths[shards[at]], int(stored[at]), begin, length, keys[number], tuple(views))

        return Parts(keys, views, self.decode, source)

    def _parts(
        self, places: Int64s, shards: Int64s, begins: Int64s, ends: Int64s, *, views: bool
    ) -> tuple[list[str], Mapping[str, Sequence[memoryview | bytes]]] | None:
        """Return keys and parts of samples in stored order, as `parse_alike`; `places` is the order of the result."""
        piece = read_piece(self.store, self.table.shards, shards, begins, ends) if self._alike else None
        found = None if piece is None else parse_alike(piece, places, self._part_names, views=views)
        if piece is not None and found is None:
            self._alike = False  # do not try again: failed attempts read each batch twice
        return found

    def _small(
        self, stored: Int64s, shards: Int64s, order: Int64s, begins: Int64s, ends: Int64s
    ) -> list[Sample] | None:
        """Return small samples that have the same parts, with bytes of their own for each part; None for others."""
        lengths = ends - begins
        if not self.store.is_local or lengths.sum() > SMALL * len(lengths):
            return None
        places = np.argsort(order, kind="stable")
        found = self._parts(places, shards, begins, ends, views=False)
        if found is None:
            return None
        keys, parts = found
        names, paths, same, opened = tuple(parts), self.table.shards, itertools.repeat, self._opened
        files = [paths[number] for number in shards[places].tolist()]
        numbers = (each[places].tolist() for each in (stored, begins, lengths))
        sources = map(partial, same(self._source), files, *numbers, keys, same(names))
        spans: list[dict[str, Any]] = [{} for _ in keys]
        for name, values in parts.items():  # in a third of the time of a dict from pairs
            for each, value in zip(spans, values, strict=True):
                each[name] = value
        return list(map(Sample, keys, same(b""), spans, sources, same(opened.decode), same(opened.subflavors)))

    def read_raw(self, indices: Indices) -> list[Sample]:
        order, stored, shards, begins, ends = self._sorted(indices)
        small = self._small(stored, shards, order, begins, ends)
        if small is not None:
            return small
        paths = self.table.shards
        blocks = read_together(self.store, paths, shards, begins, ends)
        if blocks is None:
            blocks = list(self._blocks(shards, begins, ends))
        parsed = parse_together(blocks, self._part_names)
        out: list[Sample] = [None] * len(stored)  # type: ignore[list-item]
        rows = zip(order.tolist(), stored.tolist(), shards.tolist(), begins.tolist(), blocks, parsed, strict=True)
        for place, number, shard, begin, block, found in rows:
            out[place] = self._sample(paths[shard], number, begin, block, found)
        return out

    def _read_one(self, index: int) -> Sample:
        if not self.store.is_local:  # what was read ahead is found in bulk
            return super()._read_one(index)
        stored = index + bisect_right(self._gaps.data, index)
        shard, local = place_of(self._ends, stored)
        path = self.table.shards[shard]
        begin, block = read_record(self.store, path, self.table.offsets(shard), local)
        return self._sample(path, stored, begin, block)

    def load_ahead(self) -> None:
        self.table.load_ahead()

    def copy_indices(self) -> None:
        self.table.copy_indices()

    def extents(self, indices: Indices) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        order, _, shards, begins, ends = self._sorted(indices, ahead=True)
        return [Extents(self.store, self.table.shards, order, shards, begins, ends, self.table.check_ahead)]

    def _sorted(self, indices: Indices, *, ahead: bool = False) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
        """Return the samples in stored order: positions in `indices`, stored numbers, shards, begins and ends.

        All are int64[n].

        Args:
            ahead: as in `ShardTable.offsets_ahead`.
        """
        wanted = self._stored_numbers(indices)
        order = np.argsort(wanted, kind="stable")
        stored = wanted[order]
        shards = np.searchsorted(self._ends, stored, side="right")
        return order, stored, shards, *self._places(stored, shards, ahead=ahead)

    def _places(self, stored: Int64s, shards: Int64s, *, ahead: bool = False) -> tuple[Int64s, Int64s]:
        """Return the offsets of samples and their ends, int64[n] both. Samples of a shard must be consecutive."""
        runs = runs_of(shards)
        numbers = shards[runs[:-1]]
        if not self.store.is_local:
            self.table.load(numbers.tolist(), ahead=ahead)
        offsets_of = self.table.offsets_ahead if ahead else self.table.offsets
        tables = [offsets_of(number) for number in numbers.tolist()]
        return gather_spans(tables, np.diff(runs), stored - self._starts[shards])

    def _blocks(self, shards: Int64s, begins: Int64s, ends: Int64s) -> Iterator[bytes]:
        """Yield the bytes of samples, shard by shard. Adjacent samples are read together."""
        paths = self.table.shards
        runs = itertools.pairwise(runs_of(shards).tolist())
        files = [(paths[shards[first]], begins[first:behind], ends[first:behind]) for first, behind in runs]
        for blocks in read_scattered(self.store, files):
            yield from blocks

    def _sample(self, path: str, stored: int, offset: int, block: bytes, parsed: Parsed | None = None) -> Sample:
        key, spans, names, content = parsed or self._parse(path, offset, block)
        source = partial(self._source, path, stored, offset, len(block), key, names)
        opened = self._opened
        return Sample(key, content, spans, source, opened.decode, opened.subflavors)

    def _parse(self, path: str, offset: int, block: bytes) -> Parsed:
        """Return key, spans of the parts, their names in stored order, and the bytes that the spans refer to."""
        parsed = parse_plain(block, self._part_names)
        if parsed is None:
            from feedmill.formats.tar.scan import in_file

            try:
                parsed = parse_any(block)
            except DataError as error:
                error.offset = (error.offset or 0) + offset
                raise in_file(error, self.store.locate(path)) from None
        if parsed is None:
            raise DataError(
                "the index does not match the shard: no sample begins at this offset",
                file=self.store.locate(path),
                offset=offset,
                kind="stale-index",
                fix=self.table.reindex,
            )
        return parsed

    def _source(self, path: str, stored: int, offset: int, length: int, key: str, names: Sequence[str]) -> Source:
        return Source(self._base, path, offset, length, stored, key, tuple(f"{key}.{name}" for name in names))

    def locate(self, index: int) -> Source:
        return self.read_raw([self._checked(index)])[0].source

    def find(self, key: str) -> int:
        shard, local = self.table.find(key)
        stored = int(self._starts[shard]) + local
        rank = int(np.searchsorted(self._excluded, stored))
        if rank < len(self._excluded) and self._excluded[rank] == stored:
            raise NotFound("the split excludes this sample", file=self.url, record=key, kind="other-split")
        return stored - rank

    def _read_key(self, key: str) -> Any:
        raw = self.read_raw([self.find(key)])
        self._compare(key, raw[0].key, raw[0].source.file, raw[0].source.offset)
        return self._viewed(raw)[0]

    def _compare(self, key: str, found: str, path: str, offset: int) -> None:
        """Raise `DataError` if another sample than the requested one was found."""
        if found != key:
            raise DataError(
                f"the index does not match the shard: expected the sample {key!r} here, found {found!r}",
                file=self.store.locate(path),
                offset=offset,
                kind="stale-index",
                fix=self.table.reindex,
            )

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of many parts by file name, including excluded samples; of two equal names, the first.

        Raises:
            NotFound: there is no such sample, or it lacks the part.
        """
        if self.store.is_local:
            return [self.get(name) for name in names]
        found = self._get_by_shard(names)  # adjacent ranges share a request
        return [self.get(name) if data is None else data for name, data in zip(names, found, strict=True)]

    def _get_by_shard(self, names: Sequence[str]) -> list[bytes | None]:
        """Read members shard by shard, adjacent ones in one request; None for members that are not in the index."""
        places: dict[int, list[tuple[int, int, int]]] = {}
        for number, name in enumerate(names):
            place = self.table.find_member(name)
            if place is not None:
                places.setdefault(place[0], []).append((place[1] - 512, place[2] + 512, number))
        out: list[bytes | None] = [None] * len(names)
        for shard, rows in places.items():
            rows.sort()
            try:
                starts, sizes = [row[0] for row in rows], [row[1] for row in rows]
                blocks = self.store.read_ranges(self.table.shards[shard], starts, sizes)
            except DataError:  # `get` reads them one by one
                continue
            for (_, size, number), block in zip(rows, blocks, strict=True):
                if _is_plain_member(block, names[number], size - 512):
                    out[number] = block[512:]
        return out

    def get(self, name: str) -> bytes:
        place = self.table.find_member(name)
        if place is not None:
            shard, data, size = place
            path = self.table.shards[shard]
            try:
                block = self.store.read(path, data - 512, size + 512)
            except DataError:  # a sparse file, or a truncated shard: reading the sample raises
                block = b""
            if _is_plain_member(block, name, size):
                return block[512:]
        key, part = tar.sample_name(name) or (name, "")
        return self._get_from_sample(name, key, part)

    def _is_there(self, name: str, shard: int, data: int, size: int) -> bool:
        try:
            return _is_plain_member(self.store.read(self.table.shards[shard], data - 512, 512), name, size)
        except DataError:
            return False

    def locate_part(self, name: str) -> Source:
        place = self.table.find_member(name)
        if place is None or not self._is_there(name, *place):
            return super().locate_part(name)
        shard, data, size = place
        key = (tar.sample_name(name) or (name, ""))[0]
        return Source(self.url, self.table.shards[shard], data, size, name, key, (name,))

    def _get_from_sample(self, name: str, key: str, part: str) -> bytes:
        """Do the same by reading the whole sample: for unusual members, and to raise precise errors."""
        shard, local = self.table.find(key)
        offsets = self.table.offsets(shard)
        begin = int(offsets[local])
        path = self.table.shards[shard]
        block = self.store.read(path, begin, int(offsets[local + 1]) - begin)
        found, spans, names, content = self._parse(path, begin, block)
        self._compare(key, found, path, begin)
        if part not in spans:
            return self._sample(path, int(self._starts[shard]) + local, begin, block).raw(part)  # raises
        if len(names) > len(spans):
            for member in tar.walk(block):
                if member.name == name and member.sparse is None:
                    return block[member.data : member.data + member.size]
        start, stop = spans[part]
        return content[start:stop]

    def fingerprint(self) -> str:
        return hash_words([self.table.fingerprint() or "", str(len(self)), self._excluded.tobytes().hex()])

    def fingerprint_of_first(self, count: int) -> str | None:
        ends = self._ends - np.searchsorted(self._excluded, self._ends)
        shards = int(np.searchsorted(ends, count))
        if count < 1 or shards == len(ends) or ends[shards] != count:
            return None  # the dataset did not grow by whole shards
        table = self.table.fingerprint(shards + 1)
        excluded = self._excluded[self._excluded < self._ends[shards]]
        return None if table is None else hash_words([table, str(count), excluded.tobytes().hex()])

    @property
    def splits(self) -> Mapping[str, int]:
        return self._splits or super().splits

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`: path, samples, shards, bytes, splits, and the description file's content."""
        shards = self.table.shards
        entries = self.store.entries(shards)  # of a bucket, a list: a request for each shard would take hours
        sizes = [(entry or self.store.stat(shard)).size for shard, entry in zip(shards, entries, strict=True)]
        remarks = [*self.about.get("remarks", ()), *self.remarks]
        return {
            "format": self.format,
            "path": self.url,
            "split": self.split,
            "samples": len(self),
            "excluded": len(self._excluded),
            "shards": len(self.table.shards),
            "bytes": sum(sizes),
            "indexed": not isinstance(self.table, ScannedShards),
            **self._description,
            **self.about,
            **({"remarks": remarks} if remarks else {}),
        }

    @property
    def remarks(self) -> list[str]:
        files = self.row_files
        out = [
            f"{files[number]}: {text}" for number, each in self.table.unread.items() for text in each.remarks(self.url)
        ]
        out += self.table.remarks(self.url)
        more = len(out) - MOST_REMARKS
        return out if more <= 0 else [*out[:MOST_REMARKS], f"{more:,} more: 'feedmill check' lists all of them"]


def _is_plain_member(block: bytes, name: str, size: int) -> bool:
    """Return whether the block begins with a plain header with this name and size."""
    return (
        block.startswith(name.encode("utf-8", "surrogateescape") + b"\0")
        and block[124:135] == b"%011o" % size
        and block[156] == 0x30
        and not block[345]
    )


Parsed = tuple[str, dict[str, tuple[int, int]], Sequence[str], bytes]
"""Key, spans of the parts, their names in stored order, and the bytes that the spans refer to."""

SMALL = 1 << 15
"""Bytes of samples, in the mean, up to which all of their parts are copied: that takes less than to find one later."""
FEW = 8
"""Fewer samples than this are read and parsed one by one."""
_MEMBERS = 1 << 16
"""Maximum number of members that are parsed together; samples after them are parsed one by one."""


def read_together(
    store: Store, paths: Sequence[str], shards: Int64s, begins: Int64s, ends: Int64s
) -> list[bytes] | None:
    """Read samples of several shards in one call, each into its own memory.

    Args:
        paths: paths of all shards.
        shards, begins, ends: int64[n], the shard of each sample and its byte range; samples of a shard are consecutive.

    Returns:
        The bytes of each sample; None if reading together is not possible or not faster.
    """
    lengths = ends - begins
    files = _open(store, paths, shards, lengths)
    if files is None:
        return None
    try:
        blocks = bytes_at(np.zeros(len(lengths), np.int64), lengths)
    except (MemoryError, OverflowError):  # a corrupt index may request too much memory
        return None
    return blocks if files.read(begins, lengths, _addresses(blocks)) else None


def parse_together(blocks: Sequence[bytes], known: dict[bytes, str]) -> Iterator[Parsed | None]:
    """Parse samples in one call, and yield the content of each; None for samples that are not plain.

    Args:
        blocks: the samples. Fewer than `FEW` are left to `parse_plain`.
        known: cache of part names, which is filled.
    """
    if len(blocks) < FEW:
        yield from itertools.repeat(None, len(blocks))
        return
    members, firsts, keys, alike = _scanned(_addresses(blocks), np.asarray([len(block) for block in blocks], np.int64))
    spans = list(zip(members[:, 2].tolist(), members[:, 3].tolist(), strict=True))
    first = 0
    names: tuple[str, ...] = ()
    for block, behind, key, same in zip(blocks, firsts[1:].tolist(), keys.tolist(), alike.tolist(), strict=True):
        if key < 0:
            yield None
        else:
            if not same:
                names = tuple([_name(block[a:b], known) for a, b in members[first:behind, :2].tolist()])
            text = block[:key].decode("utf-8", "surrogateescape")
            yield text, dict(zip(names, spans[first:behind], strict=True)), names, block
        first = behind


class SampleBytes(NamedTuple):
    """The bytes of consecutive samples, uint8, and the begin and end of each sample in them, int64[n].

    The memory is reused when it is no longer referenced.
    """

    buffer: npt.NDArray[np.uint8]
    begins: Int64s
    ends: Int64s


def read_piece(store: Store, paths: Sequence[str], shards: Int64s, begins: Int64s, ends: Int64s) -> SampleBytes | None:
    """Read samples of any size into one buffer. Arguments and None: as for `read_together`."""
    lengths = ends - begins
    files = _open(store, paths, shards, lengths)
    if files is None:
        return None
    try:
        buffer = empty((sum(lengths.tolist()),), np.uint8)
    except (MemoryError, ValueError):  # as above
        return None
    behind = np.cumsum(lengths)
    return SampleBytes(buffer, behind - lengths, behind) if files.fill(begins, lengths, buffer) else None


def parse_alike(
    piece: SampleBytes, order: Int64s, known: dict[bytes, str], *, views: bool = True
) -> tuple[list[str], Mapping[str, Sequence[memoryview | bytes]]] | None:
    """Return keys of samples, and their parts by name; None unless all are plain with the same parts.

    Args:
        order: int64[n], the order of the samples in the result.
        known: as for `parse_together`.
        views: return views of the parts, and not their bytes.
    """
    begins = piece.begins + address_of(piece.buffer)
    members, firsts, keys, alike = _scanned(begins, piece.ends - piece.begins)
    if keys.min() < 0 or not alike[1:].all():
        return None
    view = piece.buffer.data
    names = [_name(bytes(view[a:b]), known) for a, b in members[: firsts[1], :2].tolist()]
    if len(set(names)) < len(names):
        return None
    first = address_of(piece.buffer)
    begins = piece.begins[order]
    texts = texts_at(begins + first, keys[order])
    spans = (members.reshape(len(order), len(names), 4)[order, :, 2:] + begins[:, None, None]).transpose(1, 2, 0)
    parts: dict[str, Sequence[memoryview | bytes]] = {}
    for name, (starts, ends) in zip(names, spans, strict=True):
        if views:
            parts[name] = list(map(view.__getitem__, map(slice, starts.tolist(), ends.tolist())))
        else:
            parts[name] = bytes_at(starts + first, ends - starts)
    return texts, parts


def runs_of(shards: Int64s) -> Int64s:
    """Return where the samples of each shard begin, int64[runs], and the number of samples."""
    changes = np.flatnonzero(shards[1:] != shards[:-1]) + 1
    return np.concatenate((_FIRST, changes, (len(shards),))) if len(shards) else _FIRST


_FIRST = np.zeros(1, np.int64)


class _Files(NamedTuple):
    """Open files, and the file descriptor of each range to read, int64[n]."""

    files: Sequence[Any]
    fds: Int64s

    def read(self, offsets: Int64s, lengths: Int64s, addresses: Int64s) -> bool:
        """Read all ranges, int64[n], to their addresses. Return whether this succeeded."""
        return bool(read_all(self.fds, np.ascontiguousarray(offsets), lengths, addresses) == len(self.fds))

    def fill(self, offsets: Int64s, lengths: Int64s, buffer: npt.NDArray[np.uint8]) -> bool:
        """Read all ranges consecutively into a buffer. Return whether this succeeded."""
        return self.read(offsets, lengths, np.cumsum(lengths) - lengths + address_of(buffer))


class _Remote(NamedTuple):
    """Files of a store that is not local, and the number of each range's file in `paths`, int64[n]."""

    store: Store
    paths: Sequence[str]
    numbers: Int64s

    def read(self, offsets: Int64s, lengths: Int64s, addresses: Int64s) -> bool:
        """Copy all ranges, int64[n], to their addresses. Return whether all of them were read ahead."""
        return copy_fetched(self.store, self.paths, self.numbers, offsets, lengths, addresses)

    def fill(self, offsets: Int64s, lengths: Int64s, buffer: npt.NDArray[np.uint8]) -> bool:
        """Read all ranges consecutively into a buffer. Raises `DataError` and `StorageError`."""
        read_remote(self.store, self.paths, self.numbers, offsets, lengths, buffer)
        return True


def _open(store: Store, paths: Sequence[str], shards: Int64s, lengths: Int64s) -> _Files | _Remote | None:
    """Open the files of the ranges; None if the samples are not read together."""
    if len(shards) < FEW or (lengths < 512).any():
        return None
    if not store.is_local:
        return _Remote(store, paths, shards)
    runs = runs_of(shards)
    files = store.descriptors([paths[number] for number in shards[runs[:-1]].tolist()])
    if files is None:
        return None
    return _Files(files, np.repeat(np.asarray([file.fd for file in files], np.int64), np.diff(runs)))


_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, [ctypes.py_object]


_HEAD = bytes.__basicsize__ - 1
"""Bytes of an object of bytes before its content."""


def _addresses(blocks: Sequence[bytes]) -> Int64s:
    """Return where the content of each block begins in memory, int64[n]."""
    if _address(blocks[0]) == id(blocks[0]) + _HEAD:  # as in every CPython
        return np.fromiter(map(id, blocks), np.int64, len(blocks)) + _HEAD
    return np.fromiter(map(_address, blocks), np.int64, len(blocks))


def _scanned(addresses: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return what `plain_samples` fills: members, firsts, keys, alike."""
    count = len(lengths)
    members = np.empty((min(int(lengths.sum()) // 512, _MEMBERS), 4), np.int64)
    firsts, keys, alike = np.empty(count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    header = np.empty(512, np.uint8)
    plain_samples(addresses, lengths, header, address_of(header), members, firsts, keys, alike)
    return members[: firsts[-1]], firsts, keys, alike


def _name(tail: bytes, known: dict[bytes, str]) -> str:
    return known.get(tail) or known.setdefault(tail, tail.decode("utf-8", "surrogateescape"))


def parse_plain(block: bytes, known: dict[bytes, str]) -> Parsed | None:
    """Return key and part spans of a sample with only plain headers; None for any other sample.

    This is the inner loop of all tar reading, so it checks only what is necessary.
    """
    key, prefix = None, b""
    spans: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    at, end = 0, len(block)
    while at < end:
        if block[at + 156 : at + 157] != b"0" or block[at + 345 : at + 346] != b"\0":
            return None
        stop = block.find(b"\0", at, at + 100)
        name = block[at : stop if stop >= 0 else at + 100]
        try:
            size = int(block[at + 124 : at + 135], 8)
        except ValueError:
            return None
        data = at + 512
        at = data + (size + 511 & -512)
        if at > end or size < 0:
            return None
        if key is None:
            text = name.decode("utf-8", "surrogateescape")
            found = tar.sample_name(text)
            if found is None:
                continue
            key, part = found
            prefix = key.encode("utf-8", "surrogateescape") + b"."
        elif name.startswith(prefix) and b"/" not in (tail := name[len(prefix) :]):
            part = _name(tail, known)
        else:
            return None
        spans[part] = (data, data + size)
        names.append(part)
    return None if key is None else (key, spans, names, block)


def parse_any(block: bytes) -> Parsed | None:
    """Do the same with the reference parser, for long names, PAX headers, sparse files and skipped members.

    Strays are skipped, unless the sample begins with one: then they are samples of an index by Energon.
    """
    key: str | None = None
    strays = False
    spans: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    limit = max_unpacked(len(block))
    size, expanded = len(block), [block]  # expanded contents are appended to the block
    from feedmill.formats.tar.strays import is_stray

    for member in tar.walk(block):
        found = tar.sample_name(member.name) if member.regular else None
        if found is None:
            continue
        if key is None:
            key, strays = found[0], is_stray(member.name)
        elif found[0] != key:
            if not strays and is_stray(member.name):
                continue
            raise DataError(
                f"another sample, {found[0]!r}, begins inside this one",
                offset=member.start,
                kind="stale-index",
                fix=REINDEX,
            )
        if member.sparse is None:
            spans[found[1]] = (member.data, member.data + member.size)
        else:
            size += member.size
            if size - len(block) > limit:
                raise too_large(limit, record=member.name, offset=member.start)
            expanded.append(tar.expand(block, member))
            spans[found[1]] = (size - member.size, size)
        names.append(found[1])
    content = block if len(expanded) == 1 else b"".join(expanded)
    return None if key is None else (key, spans, names, content)
