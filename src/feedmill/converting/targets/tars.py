"""Write samples as tars: a prepared folder, plain tars with or without an index, or VLA Foundry's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from feedmill.converting.facts import Facts, Part, keeps_description
from feedmill.converting.fields import Taken, part_bytes, parts_of
from feedmill.converting.job import Done
from feedmill.converting.options import Convert
from feedmill.converting.targets.shards import NumberedShards
from feedmill.converting.units import Add, SampleTarget, Unit, Written
from feedmill.converting.values import decoded, digest, read
from feedmill.errors import DataError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import database
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.write import BESIDE
from feedmill.formats.format import named
from feedmill.formats.registry import targets
from feedmill.formats.sample import Sample
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import ScannedShards, TarDataset
from feedmill.formats.tar.wids import INDEX, write_wids
from feedmill.formats.vla.manifest import MANIFEST, Row, manifest_text
from feedmill.samples.description import CRUDE, describe_type
from feedmill.samples.encode import Encoder
from feedmill.storage import Store, open_store
from feedmill.storage.cache.copies import cached_copy
from feedmill.writing.encoding import Encoding, Taker
from feedmill.writing.index import Media, commit
from feedmill.writing.shard import ShardFile
from feedmill.writing.write import Keys


@dataclass(frozen=True, slots=True)
class Tars(NumberedShards):
    """A folder of plain tars, with an index if requested.

    Attributes:
        source, facts: the source and the facts about it.
        options: options of the conversion.
        parts: the splits of the source.
        media: whether the source's media metadata is kept.
        typed: whether the samples have typed columns.
        changed: typed columns whose values are declared to change.
    """

    source: str
    facts: Facts
    options: Convert
    parts: Sequence[Part]
    media: bool
    typed: bool
    changed: frozenset[str]
    indexed: ClassVar[bool] = False

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`."""
        encode, before = Encoding(Encoder(), Taker()).of, None

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            nonlocal before
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
            hashed = self._digest(taken.key, parts)
            before = taken.key
            file.add(encoded)
            return (hashed,)

        with ShardFile(store, path) as file:
            yield add
        if self.indexed:
            extra["tar"] = file.shard

    def beside(self) -> Sequence[str]:
        """See `NumberedShards`."""
        beside = targets()[self.to].beside
        return named(beside) if beside else ()

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

    indexed: ClassVar[bool] = True

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:
        """See `Target`."""
        filled = [each for each in done if each.samples]
        media = Media(cached_copy(open_store(self.source), database.INDEX)) if self.media else None
        shards = [each.shard for each in filled]
        Keys(self.destination, shards)  # raises for a key that occurs twice
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
