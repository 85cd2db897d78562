"""Write samples as tars: a prepared folder, plain tars with or without an index, or VLA Foundry's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from feedmill.converting.facts import Facts, Part, keeps_description
from feedmill.converting.fields import Taken, part_bytes, parts_of
from feedmill.converting.job import Done
from feedmill.converting.preview import Options
from feedmill.converting.units import Add, SampleTarget, Unit, Written
from feedmill.converting.values import decoded, digest, read
from feedmill.errors import DataError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import database
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.energon.write import BESIDE
from feedmill.formats.format import named
from feedmill.formats.registry import targets
from feedmill.formats.sample import Sample
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.formats.tar.tables import ScannedShards
from feedmill.formats.tar.wids import INDEX, write_wids
from feedmill.formats.vla.manifest import MANIFEST, Row, manifest_text
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.samples.description import CRUDE, describe_type
from feedmill.samples.encode import Encoder
from feedmill.storage import Store, open_store
from feedmill.storage.cache.copies import cached_copy
from feedmill.writing.commit import Media, commit
from feedmill.writing.encoding import Encoded, Encoding, Taker
from feedmill.writing.shard import Shard, ShardFile
from feedmill.writing.writer import BATCH_BYTES, BATCH_SAMPLES, Keys


@dataclass(frozen=True, slots=True)
class Tars(SampleTarget):
    """A folder of plain tars, with an index if requested.

    Attributes:
        to: name of the format.
        source, facts: the source and the facts about it.
        options: options of the conversion.
        parts: the splits of the source.
        media: whether the source's media metadata is kept.
        typed: whether the samples have typed columns.
        changed: typed columns whose values are declared to change.
    """

    to: str
    source: str
    facts: Facts
    options: Options
    parts: Sequence[Part]
    media: bool
    typed: bool
    changed: frozenset[str]

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return targets()[self.to].shards % unit.number

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`."""
        file, encode = ShardFile(store, path), Encoding(Encoder(), Taker()).of
        waiting: list[Encoded] = []
        size, before = 0, None

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            nonlocal size, before
            taken = item[1]
            if taken.key == before:
                raise DataError(
                    "the previous sample has the same key: in a tar, both would be one sample",
                    record=taken.key,
                    kind="duplicate-key",
                    fix="Rename one of them.",
                )
            parts = parts_of(taken, self.changed)
            encoded = encode(taken.key, ((name, part_bytes(name, value)) for name, value in parts.items()))
            before = taken.key
            waiting.append(encoded)
            size += encoded.size
            if len(waiting) >= BATCH_SAMPLES or size >= BATCH_BYTES:
                file.add(waiting)
                waiting.clear()
                size = 0
            return (self._digest(taken.key, parts),)

        try:
            yield add
            if waiting:
                file.add(waiting)
            extra["digest"] = file.close().record.digest
        except BaseException:
            file.abort()
            raise

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        pattern = targets()[self.to].shards.replace(".", r"\.")
        beside = targets()[self.to].beside
        return named(beside) if beside else (), re.sub(r"%0\dd", r"\\d+", pattern) + r"(\.idx)?"

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        paths = _bare(store, done)
        if self.options.wids:
            write_wids(store, paths, INDEX)
            return [*paths, INDEX]
        return paths

    def reader(self, written: Written) -> tuple[Dataset, int]:
        """Open only this output: opening the whole destination reads all its shards, in each process."""
        store = open_store(self.destination)
        return read(TarDataset(store, ScannedShards(store, [written.done.path]), name=self.destination)), 0

    def digest(self, sample: Sample) -> bytes:
        """See `SampleTarget`."""
        return self._digest(sample.key, sample)

    def _digest(self, key: str, parts: Mapping[str, Any]) -> bytes:
        return digest(key, {name: decoded(name, value) for name, value in parts.items()} if self.typed else parts)


@dataclass(frozen=True, slots=True)
class ListedTars(Tars):
    """A folder of tars with VLA Foundry's manifest, and the files that its robotics training needs."""

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        paths = _bare(store, done)
        for name in self.facts.companions:
            store.write_bytes(name, sniff(self.source).store.read(name))
        store.write_bytes(MANIFEST, manifest_text([Row(each.path, each.samples) for each in done if each.samples]))
        return [*paths, *self.facts.companions, MANIFEST]


@dataclass(frozen=True, slots=True)
class PreparedTars(Tars):
    """A prepared folder: tars and ``.nv-meta``, with the splits of the source."""

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:
        """See `Target`."""
        filled = [each for each in done if each.samples]
        media = Media(cached_copy(open_store(self.source), database.INDEX)) if self.media else None
        shards = _scanned(store, self.destination, filled)
        splits: dict[str, list[str]] = {part.split or "train": [] for part in self.parts}
        for each in filled:
            splits[units[each.number].what[0] or "train"].append(each.path)
        kept = keeps_description(self.facts, self.options)
        description = self.facts.description if kept else describe_type(CRUDE[0])  # Energon requires one
        commit(store, shards, splits, description=description, media=media)
        files = [*(each.path for each in filled), *(energon.idx_name(each.path) for each in filled)]
        return [*files, *(path for path in BESIDE if store.exists(path))]

    def reader(self, written: Written) -> tuple[Dataset, int]:
        """See `SampleTarget`."""
        return SampleTarget.reader(self, written)


def _bare(store: Store, done: Sequence[Done]) -> list[str]:
    """Delete the ``.idx`` file of each tar, which only prepared folders have, and return the paths of the tars."""
    paths = [each.path for each in done if each.samples]
    for path in paths:
        store.delete(energon.idx_name(path))
    return paths


def _scanned(store: Store, destination: str, filled: Sequence[Done]) -> list[Shard]:
    """Scan the shards for the index. Raises `DataError` if a key occurs twice."""
    keys = Keys(destination)
    shards = []
    cores = available_cores()
    scans = ordered_map(partial(scan_shard, store), (e.path for e in filled), workers=cores, in_flight=2 * cores)
    with closing(scans):
        for each, scan in zip(filled, scans, strict=True):
            if scan.problem is not None:
                raise in_file(scan.problem, store.locate(each.path))
            if len(scan.keys) != each.samples:
                raise DataError(
                    f"the shard has {len(scan.keys)} samples, but {each.samples} were written:"
                    " consecutive samples have the same key",
                    file=store.locate(each.path),
                    kind="verification-failed",
                    fix="Make keys unique within the dataset.",
                )
            shard = Shard(each.path, ShardRecord(each.size, each.version, each.samples, each.extra.get("digest")), scan)
            keys.add_shard(shard)
            shards.append(shard)
    return shards
