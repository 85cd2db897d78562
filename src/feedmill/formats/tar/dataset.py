"""Read WebDatasets: tar shards whose consecutive members with the same base name form a sample.

Layout: any folders of ``*.tar``; a member ``a/b.c/0007.detail.json`` has the key ``a/b.c/0007`` (up to the first dot
after the last slash) and the part ``detail.json``. Members that are not regular files, have no dot, or are below
``__...__`` are skipped. Compressed tars have no random access: `unpacking` copies them first.

`TarDataset` reads samples by offset: one `pread` per sample, or one per run of adjacent samples. The offsets come from
a `ShardTable` (`tables.py`).
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Parts, Want
from feedmill.formats.costs import bad_cost
from feedmill.formats.offsets import Extents, Int64s, gather_spans, hash_words, place_of, read_record, read_scattered
from feedmill.formats.sample import Sample, Source
from feedmill.formats.tar.samples import (
    Parsed,
    parse_alike,
    parse_any,
    parse_plain,
    parse_together,
    read_piece,
    read_together,
    runs_of,
)
from feedmill.formats.tar.tables import ScannedShards, ShardTable
from feedmill.jobs.threads import ordered_map
from feedmill.kernels.files import tar
from feedmill.storage import Store

if TYPE_CHECKING:
    from feedmill.formats.mediatable import MediaTable

MOST_REMARKS = 20
"""Maximum number of messages about shards of one dataset."""


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
        paths = self.table.shards
        piece = read_piece(self.store, paths, shards, begins, ends)
        if piece is None:
            return None
        places = np.argsort(order, kind="stable")
        found = parse_alike(piece, places, self._part_names, views=self.decode is not None)
        if found is None:
            self._alike = False  # do not try again: failed attempts read each batch twice
            return None
        keys, views = found

        def source(number: int) -> Source:
            at = int(places[number])
            begin, length = int(begins[at]), int(ends[at] - begins[at])
            return self._source(paths[shards[at]], int(stored[at]), begin, length, keys[number], tuple(views))

        return Parts(keys, views, self.decode, source)

    def read_raw(self, indices: Indices) -> list[Sample]:
        order, stored, shards, begins, ends = self._sorted(indices)
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
