"""Find duplicates by a Bloom filter in Dolma's format.

The attributes and the filter equal those of Dolma's run with one thread, for any number of threads: threads read and
hash ahead, and the filter is queried and filled in input order.

Engines do it in stages, with the same result:

1. *scan*: Each file of documents is read into segments. Of each key, its bits in the filter are stored.
2. *fill*: One task, whose memory holds the filter, looks the keys of all files up and adds them, in input order.
3. *finish*: The attribute rows of each file are written, as in an exact run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.attribute_set import digest_ids, fingerprint
from feedmill.curation.dedupe.exact import KERNELS, render_all
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
    render,
    scan_file,
    totals,
    write_answers,
    write_names,
)
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import EMPTY_LIST, Units, read_units
from feedmill.curation.dedupe.work import get_marker, is_there, put_marker
from feedmill.curation.options import DOCUMENTS, Dedupe
from feedmill.curation.records import digest as digest_of
from feedmill.documents.lines import Block, read_blocks
from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.bloom import MOST_HASHES, BloomFilter, new_bloom, read_bloom, read_bloom_head, write_bloom
from feedmill.formats.documents import write_lines
from feedmill.jobs.engine import Policy, Where, is_alone
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run, run_largest_first
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.kernels.hashing import ahash
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.codec import compression

Ints64 = npt.NDArray[np.uint64]
Prepared = tuple[Units, Ints64 | None, Ints64]
AT_ONCE = 4 << 20
"""Number of hashes in memory per thread."""


def find_bloomed(
    tasks: Sequence[DedupeTask],
    bloom: BloomFilter,
    *,
    read_only: bool = False,
    threads: int | None = None,
    progress: bool | None = None,
) -> list[Finished]:
    """Write the attributes of all files, and fill `bloom` unless it is `read_only`."""
    count = available_cores() if threads is None else threads
    with Progress("deduplicating", sum(task.file.size for task in tasks), "B", progress) as bar:
        return [_find(task, bloom, read_only, count, bar) for task in tasks]


def mine(name: str, partitions: int, partition: int) -> bool:
    """Return whether a file belongs to this partition of the files, by Dolma's hash of its path."""
    return ahash.write_bytes(os.fsencode(name), (0, 1, 2, 3)) % partitions == partition


def _find(task: DedupeTask, bloom: BloomFilter, read_only: bool, threads: int, bar: Progress) -> Finished:
    store, options = task.file.store(), task.options
    out = task.file.attributes(options.name, options.documents_folder)
    kind = task.output
    if kind is None:
        kind = compression(out) if task.input is None else task.input
    keys = bloom.keys
    rows = documents = units = 0
    digest = digest_ids([])
    read, written = list[str](), list[str]()

    def made(lines: bytes, line: int) -> Prepared:
        found = read_units(lines, options, task.file.name, line)
        first = np.empty(len(found.firsts), np.uint64)
        if first.size * keys.shape[1] > AT_ONCE:
            return found, None, first
        return found, _positions(found, bloom, keys, slice(None), first), first

    def prepare(lines: bytes) -> Prepared | bytes:
        try:
            return made(lines, 1)
        except DataError:
            return lines  # decoded again in input order, when the number of its first line is known

    source = read_blocks(task.file, fields=options.fields, packed=task.input, advance=bar.advance, hashed=read.append)
    spare, workers = threads < available_cores(), threads - 1  # this thread queries the filter
    # Always closed, so that no thread outlives an error.
    with (
        write_lines(store, out, kind=kind, hashed=written.append, gather=True) as append,
        closing(ahead(source) if spare else source) as blocks,
        closing(ordered_map(prepare, blocks, workers=workers, in_flight=2 * threads)) as prepared,
    ):
        for block in prepared:
            found, bits, first = made(block, rows + 1) if isinstance(block, bytes) else block
            seen = _ask(found, bits, first, bloom, keys, options, read_only)
            done = render(found.ids, found.states, found.rows, found.starts, found.ends, found.bounds, seen, options)
            append(done.rows)
            digest_ids(found.ids, digest)
            rows, documents, units = rows + len(found.ids), documents + done.documents, units + done.units
    return Finished(rows, digest.hexdigest(), documents, units, store.stat(out).size, written[0], read[0])


def _positions(units: Units, bloom: BloomFilter, keys: Ints64, part: slice, first: Ints64) -> npt.NDArray[np.uint64]:
    firsts, counts = units.firsts[part], units.counts[part]
    bits = np.empty((len(firsts), keys.shape[1]), np.uint64)
    words = np.uint64(len(bloom.words))
    ahash.positions(units.data, units.lows, units.highs, firsts, counts, keys, words, bits, first[part])
    return bits


def _ask(
    units: Units,
    bits: npt.NDArray[np.uint64] | None,
    first: Ints64,
    bloom: BloomFilter,
    keys: Ints64,
    options: Dedupe,
    read_only: bool,
) -> npt.NDArray[np.bool_]:
    """Return whether each key is in the filter, as bool[keys]. Keys of other partitions are not looked up."""
    count = len(units.firsts)
    seen = np.zeros(count, np.bool_)
    step = count if bits is not None else max(1, AT_ONCE // keys.shape[1])
    for low in range(0, count, max(1, step)):
        part = slice(low, low + step)
        here = bits if bits is not None else _positions(units, bloom, keys, part, first)
        wanted = first[part] % np.uint64(options.partitions) == np.uint64(options.partition)
        ahash.look_up(bloom.words, here, wanted, read_only, seen[part])
        if options.partitions > 1 and options.by == DOCUMENTS:
            units.states[units.rows[part][~wanted]] = EMPTY_LIST
    return seen


PATIENCE = 3.0
"""Seconds for which a part of a job array waits for a run that publishes the filter."""


@contextlib.contextmanager
def filter_in_place(store: LocalStore, name: str, options: Dedupe) -> Iterator[None]:
    """Hold the filter's lock, after publishing the filter that a killed run had filled.

    Parts of a job array share the lock: none of them publishes a filter.
    """
    with contextlib.ExitStack() as stack:
        busy, lock = "another process is writing this filter", f"{name}.feedmill-lock"
        if not is_alone() and not store.exists(next_name(name)):
            stack.enter_context(store.lock(lock, what=busy, file=options.bloom or name, patience=PATIENCE, shared=True))
        elif not options.read_only or store.exists(next_name(name)):
            try:
                stack.enter_context(store.exclusive(lock, what=busy, file=options.bloom or name))
                complete(store, name)
            except FeedmillError:
                if not options.read_only:  # a read-only run can use the filter as it is
                    raise
        yield


def open_filter(store: Store, name: str, options: Dedupe) -> BloomFilter:
    """Read the filter, or return a new one."""
    if store.exists(name):
        return read_bloom(store, name)
    if options.read_only and not options.items:
        raise NotFound("Bloom filter not found", file=store.locate(name), fix="Check the path.")
    return new_bloom(
        size=options.bloom_size,
        items=options.items,
        false_positives=options.false_positives or 0.0,
        most=None if options.defects else MOST_HASHES,
        seed=0,
    )


def next_name(name: str) -> str:
    """Return the name of a filled filter that is not published."""
    return f"{name}.feedmill-next"


def complete(store: LocalStore, name: str, committed: bool = False) -> None:
    """Publish a filled filter if the manifest of its attributes was written, else delete it."""
    filled = next_name(name)
    if not store.exists(filled):
        if store.exists(f"{filled}.of"):
            store.delete(f"{filled}.of")  # left by a run that was killed, or could not delete it
        return
    digest = digest_of(store, filled)
    if not committed and not (store.exists(f"{filled}.of") and store.read(f"{filled}.of").decode() == digest):
        store.delete(filled)
        return
    if committed:
        store.write_bytes(f"{filled}.of", digest.encode())
    store.rename(store, filled, name)
    store.delete(f"{filled}.of")


FILLED_AT_ONCE = 2 << 20
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
    preload = (*KERNELS, "feedmill.curation.dedupe.bloomed")
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
        wanted, step = np.ones(count, np.bool_), max(1, FILLED_AT_ONCE // len(self.shape.seeds))
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
    step = max(1, FILLED_AT_ONCE // hashes)
    for name, size in zip(read_names(task.work, task.whole), sizes, strict=True):
        for low in range(0, size, step):
            stored = np.empty((min(step, size - low), hashes), shape.bits)
            read_keys(name, np.array([[low, low + len(stored)]]), stored)
            bits, seen = stored.astype(np.uint64, copy=False), np.empty(len(stored), np.bool_)
            wanted = np.ones(len(stored), np.bool_)
            ahash.look_up(bloom.words, bits, wanted, task.options.read_only, seen)
            yield seen
