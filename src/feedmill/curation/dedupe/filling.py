"""Find duplicates by a Bloom filter in stages, for engines. The result equals that of `curation.dedupe.bloomed`.

1. *scan*: Each file of documents is read into segments. Of each key, its bits in the filter are stored.
2. *fill*: One task, whose memory holds the filter, looks the keys of all files up and adds them, in input order.
3. *finish*: The attribute rows of each file are written, as in an exact run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.blocks import Block
from feedmill.curation.dedupe.exact import KERNELS, render_all
from feedmill.curation.dedupe.filters import open_filter
from feedmill.curation.dedupe.segments import (
    Answers,
    Bools,
    Ints,
    Keys,
    Part,
    Scanned,
    found_name,
    part_of_units,
    read_keys,
    read_names,
    scan_file,
    totals,
    write_answers,
    write_names,
)
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import EMPTY_LIST, Units
from feedmill.curation.dedupe.work import get_marker, is_there, put_marker
from feedmill.curation.options import DOCUMENTS, Dedupe
from feedmill.formats.bloom import BloomFilter, read_bloom_head, write_bloom
from feedmill.jobs.engine import Policy, Where
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run, run_largest_first
from feedmill.kernels.hashing import ahash
from feedmill.storage import LocalStore, Store, open_store

AT_ONCE = 2 << 20
"""Number of bits of keys in memory."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings of the bits of a key: the seeds of the filter, uint64[k, 4], and its number of words."""

    seeds: npt.NDArray[np.uint64]
    words: int

    @property
    def bits(self) -> np.dtype[np.unsignedinteger]:
        """Type of a stored bit: the number of bits of most filters has 32 bits."""
        return np.dtype(np.uint32 if self.words <= 1 << 27 else np.uint64)

    @property
    def fingerprint(self) -> str:
        """Identifies the shape."""
        return fingerprint(self.seeds.tolist(), self.words)


class Filled(NamedTuple):
    """Results of a run: those of the files, hashes per key, fill of the filter, and its path in the work folder."""

    files: list[Finished]
    hashes: int
    fill: float
    path: str


def find_by_stages(
    tasks: Sequence[DedupeTask],
    place: Store,
    store: LocalStore,
    name: str,
    digest: str | None,
    *,
    workers: int | None = None,
    progress: bool | None = None,
) -> Filled:
    """Write the attributes of all files, and the filled filter to the work folder.

    Args:
        place: Folder of the work.
        store, name: Where the filter is.
        digest: Hash of the filter; None if it does not exist.
    """
    options = tasks[0].options
    shape = _shape(store, name, options)
    prints = [_name(task, shape) for task in tasks]
    files = [task.file.size for task in tasks]
    preload = (*KERNELS, "feedmill.curation.dedupe.filling")
    with Progress.of_files("reading", files, progress) as bar:
        where = Where("reading", fingerprint(prints), place, last=False)
        scanned = run_largest_first(
            scan, tasks, files, workers=workers, progress=bar, preload=preload, where=where, policy=Policy(shared=shape)
        )
    whole = fingerprint(prints, digest, options.read_only)
    write_names(tasks[0].work, whole, prints)
    task = FillTask(tasks[0].work, whole, len(tasks), store.root, name, options)
    with Progress("filling", 1, "filters", progress) as bar:
        where = Where("filling", whole, place, last=False)
        (fill,) = run(fill_filter, [task], workers=workers, progress=bar, preload=preload, where=where)
    answers = Answers(task.work, whole, 1, (0, 1))
    done = render_all(tasks, scanned, answers, place, preload, workers, progress)
    return Filled([one for one in done if one is not None], len(shape.seeds), fill, task.path)


def _shape(store: Store, name: str, options: Dedupe) -> Shape:
    if store.exists(name):
        return Shape(*read_bloom_head(store, name))
    bloom = open_filter(store, name, options)  # its words take no memory until they are filled
    return Shape(bloom.seeds, len(bloom.words))


def scan(shape: Shape, task: DedupeTask) -> Scanned:
    """Read a file into segments, unless an earlier run did."""
    return scan_file(task, _name(task, shape), _Bits(shape, task.options))


def _name(task: DedupeTask, shape: Shape) -> str:
    return fingerprint(task.fingerprint, shape.fingerprint)


@dataclass(slots=True)
class _Bits(Keys):
    """Bits of the keys of this partition, in the order of the documents."""

    shape: Shape
    options: Dedupe
    wanted: list[Bools] = field(default_factory=list)

    def part(self, task: DedupeTask, item: Block) -> Part:
        return part_of_units(task, item, self.read)

    def read(self, units: Units) -> tuple[bytes, Bools]:
        keys = BloomFilter(self.shape.seeds, np.empty(0, np.uint32)).keys
        count, words = len(units.firsts), np.uint64(self.shape.words)
        wanted, step = np.ones(count, np.bool_), max(1, AT_ONCE // len(self.shape.seeds))
        stored = []
        for low in range(0, count, step):
            part = slice(low, low + step)
            firsts, counts = units.firsts[part], units.counts[part]
            bits, first = np.empty((len(firsts), len(self.shape.seeds)), np.uint64), np.empty(len(firsts), np.uint64)
            ahash.positions(units.data, units.lows, units.highs, firsts, counts, keys, words, bits, first)
            wanted[part] = first % np.uint64(self.options.partitions) == np.uint64(self.options.partition)
            stored.append(np.ascontiguousarray(bits[wanted[part]], self.shape.bits).tobytes())
        if self.options.partitions > 1 and self.options.by == DOCUMENTS:
            units.states[units.rows[~wanted]] = EMPTY_LIST
        return b"".join(stored), wanted

    def add(self, found: tuple[bytes, Bools], out: BinaryIO) -> None:
        out.write(found[0])
        self.wanted.append(found[1])

    def close(self, out: BinaryIO) -> tuple[Ints, npt.NDArray[np.uint32]]:  # noqa: ARG002 - all is written
        order = np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *self.wanted])).astype(np.uint32)
        self.wanted = []
        return np.array([0, len(order)], np.int64), order


@dataclass(frozen=True, slots=True)
class FillTask:
    """All keys of a run, and the filter: its folder and name."""

    work: str
    whole: str
    files: int
    folder: str
    name: str
    options: Dedupe

    def __str__(self) -> str:
        return f"the filter {self.folder}/{self.name}"

    @property
    def path(self) -> str:
        """Path of the filled filter."""
        return f"{self.work}/filter-{self.whole}"


def fill_filter(task: FillTask) -> float:
    """Write which keys were in the filter before, and the filled filter, unless an earlier run did. Return its fill."""
    marker, answers = f"{task.path}.json", found_name(task.work, task.whole, 0, 1)
    finished = get_marker(marker)
    if finished is not None and is_there(answers) and is_there(task.path):
        return float(finished["fill"])
    bloom = open_filter(open_store(task.folder), task.name, task.options)
    shape = Shape(bloom.seeds, len(bloom.words))
    sizes = [int(totals(name, 1)[1]) for name in read_names(task.work, task.whole)]
    write_answers(answers, sizes, _asked(task, bloom, shape, sizes))
    work, _, name = task.path.rpartition("/")
    write_bloom(open_store(work), name, bloom)
    put_marker(marker, {"fill": bloom.fill})
    return bloom.fill


def _asked(task: FillTask, bloom: BloomFilter, shape: Shape, sizes: Sequence[int]) -> Iterator[Bools]:
    hashes = len(shape.seeds)
    step = max(1, AT_ONCE // hashes)
    for name, size in zip(read_names(task.work, task.whole), sizes, strict=True):
        for low in range(0, size, step):
            stored = np.empty((min(step, size - low), hashes), shape.bits)
            read_keys(name, np.array([[low, low + len(stored)]]), stored)
            bits, seen = stored.astype(np.uint64, copy=False), np.empty(len(stored), np.bool_)
            wanted = np.ones(len(stored), np.bool_)
            ahash.look_up(bloom.words, bits, wanted, task.options.read_only, seen)
            yield seen
