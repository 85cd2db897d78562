"""Exact duplicates without limits of memory: 128-bit hashes on disk, decided part by part.

Three steps, each over processes, each of which may be killed and carries on:

1. *scan*: each file of documents becomes segments: the hashes of its keys, ordered by their first bits, and beside them
   the spans and ids that the attribute rows need.
2. *decide*: for each range of first bits, the hashes of all segments in the order of the input go through one table;
   what was seen before is a duplicate. A range holds some millions of keys, whatever the size of the data.
3. *finish*: each file's answers are put back in order and its attribute rows are written.

The first occurrence in the order of the input is kept, whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.attribute_set import digest_ids, fingerprint
from feedmill.curation.dedupe.options import DedupeOptions
from feedmill.curation.dedupe.render import render
from feedmill.curation.dedupe.units import Units, read_units
from feedmill.curation.patterns import DocumentFile
from feedmill.formats.documents import read_rows, write_rows
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.kernels import murmur_compiled
from feedmill.storage import Store, open_store
from feedmill.storage.codec import compression

PARTS = 4096
_SHIFT = 64 - 12
SEGMENT = 64 << 20
"""Bytes of text in a segment."""
RANGE = 4 << 20
"""Keys that are decided at once, but for a single part that has more."""
KERNELS = ("feedmill.curation.dedupe.units", "feedmill.kernels.murmur_compiled")


@dataclass(frozen=True, slots=True)
class Task:
    """One file of documents and where its work lies. `reference`: only looked up in, not written."""

    number: int
    file: DocumentFile
    options: DedupeOptions
    work: str
    input: str | None = None
    output: str | None = None
    reference: bool = False

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.file.path, self.file.size, self.file.version, self.options.as_dict())


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a file came to: rows, the digest of its ids, and of each segment where its parts begin."""

    rows: int
    ids: str
    segments: int


@dataclass(frozen=True, slots=True)
class Finished:
    """What was written for a file."""

    rows: int
    ids: str
    documents: int
    units: int
    size: int


def find_exact(
    tasks: Sequence[Task], *, processes: int | None = None, progress: bool | None = None
) -> list[Finished | None]:
    """Write the attributes of all files; None for those that are only a reference."""
    work = open_store(tasks[0].work)
    with Progress("reading", len(tasks), "files", progress) as bar:
        scanned = list(run(scan, tasks, workers=processes, progress=bar, preload=KERNELS))
    starts = [
        _parts(work, task.number, segment)
        for task, one in zip(tasks, scanned, strict=True)
        for segment in range(one.segments)
    ]
    bounds = _ranges(starts)
    whole = fingerprint([task.fingerprint for task in tasks], [task.reference for task in tasks])
    numbers = [(task.number, s) for task, one in zip(tasks, scanned, strict=True) for s in range(one.segments)]
    kept = {task.number for task in tasks if task.reference} or {task.number for task in tasks}
    ranges = [_Range(tasks[0].work, whole, low, high, numbers, frozenset(kept)) for low, high in pairwise(bounds)]
    with Progress("comparing", len(ranges), "ranges", progress) as bar:
        list(run(decide, ranges, workers=processes, progress=bar, preload=KERNELS))
    ends, at = [], 0
    for one in scanned:
        ends.append(_Ending(whole, bounds, _offsets(starts, bounds, at, at + one.segments), one))
        at += one.segments
    with Progress("writing", len(tasks), "files", progress) as bar:
        jobs = list(zip(tasks, ends, strict=True))
        return list(run(finish, jobs, workers=processes, progress=bar, preload=KERNELS))


def scan(task: Task) -> Scanned:
    """Read a file into segments; nothing where an earlier run did."""
    work = open_store(task.work)
    marker = f"{task.number:05d}.json"
    if work.exists(marker):
        found = orjson.loads(work.read(marker))
        if found.get("fingerprint") == task.fingerprint:
            return Scanned(found["rows"], found["ids"], found["segments"])
    store, where = task.file.store(), task.file.name
    rows, segments, digest = 0, 0, digest_ids([])
    segment = _Segment()
    for block in read_rows(store, task.file.path, kind=task.input):
        units = read_units(block, task.options, where, rows + 1)
        digest_ids(units.ids, digest)
        segment.add(units)
        rows += len(block)
        if segment.size >= SEGMENT:
            segment.write(work, f"{task.number:05d}-{segments:05d}")
            segments, segment = segments + 1, _Segment()
    if segment.ids:
        segment.write(work, f"{task.number:05d}-{segments:05d}")
        segments += 1
    done = {"fingerprint": task.fingerprint, "rows": rows, "ids": digest.hexdigest(), "segments": segments}
    work.write_bytes(marker, orjson.dumps(done))
    return Scanned(rows, digest.hexdigest(), segments)


@dataclass(slots=True)
class _Segment:
    """Blocks of a file, gathered."""

    size: int = 0
    ids: list[bytes] = field(default_factory=list)
    arrays: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    keys: int = 0

    def add(self, units: Units) -> None:
        hashes = np.empty((len(units.firsts), 2), np.uint64)
        murmur_compiled.hash_keys(units.data, units.lows, units.highs, units.firsts, units.counts, hashes)
        parts: dict[str, npt.NDArray[Any]] = {
            "hashes": hashes,
            "states": units.states,
            "rows": (units.rows + len(self.ids)).astype(np.int32),
            "starts": units.starts.astype(np.int32),
            "ends": units.ends.astype(np.int32),
            "bounds": units.bounds + self.keys,
        }
        for name, values in parts.items():
            self.arrays.setdefault(name, []).append(values)
        self.ids += units.ids
        self.keys += len(hashes)
        self.size += len(units.data)

    def write(self, work: Store, name: str) -> None:
        arrays = {key: np.concatenate(values, axis=-1 if key == "bounds" else 0) for key, values in self.arrays.items()}
        hashes = arrays.pop("hashes")
        starts, order = np.empty(PARTS + 1, np.int64), np.empty(len(hashes), np.uint32)
        murmur_compiled.partition(hashes, _SHIFT, starts, order)
        with work.write(f"{name}.keys") as f:
            f.write(hashes[order].data if len(hashes) else b"")
        ids = np.frombuffer(b"\n".join(self.ids) + b"\n", np.uint8)
        with work.build(f"{name}.npz") as path, open(path, "wb") as f:
            np.savez(f, ids=ids, order=order, parts=starts, **arrays)  # type: ignore[arg-type]


def _parts(work: Store, number: int, segment: int) -> npt.NDArray[np.int64]:
    """int64[PARTS + 1]: where each part of a segment begins."""
    with work.local_copy(f"{number:05d}-{segment:05d}.npz") as path, np.load(path, allow_pickle=False) as arrays:
        parts: npt.NDArray[np.int64] = arrays["parts"]
        return parts


def _ranges(starts: list[npt.NDArray[np.int64]]) -> list[int]:
    """Bounds of ranges of parts of some millions of keys each; they depend on the data only."""
    sizes = np.diff(np.sum(starts, axis=0)) if starts else np.zeros(PARTS, np.int64)
    bounds, held = [0], 0
    for part, size in enumerate(sizes.tolist()):
        if held and held + size > RANGE:
            bounds.append(part)
            held = 0
        held += size
    return [*bounds, PARTS]


@dataclass(frozen=True, slots=True)
class _Range:
    work: str
    whole: str
    low: int
    high: int
    segments: list[tuple[int, int]]
    inserted: frozenset[int]

    @property
    def name(self) -> str:
        return f"found-{self.whole}-{self.low:04d}-{self.high:04d}"


def decide(task: _Range) -> None:
    """Which keys of a range were seen before, in the order of the input: a byte each, segment by segment."""
    work = open_store(task.work)
    if work.exists(task.name):
        return
    slices = []
    for number, segment in task.segments:
        starts = _parts(work, number, segment)
        low, high = int(starts[task.low]), int(starts[task.high])
        slices.append(np.zeros((0, 2), np.uint64))
        if high > low:
            with work.local_copy(f"{number:05d}-{segment:05d}.keys") as path:
                slices[-1] = np.fromfile(path, np.uint64, 2 * (high - low), offset=16 * low).reshape(-1, 2)
    inserted = sum(len(s) for s, (number, _) in zip(slices, task.segments, strict=True) if number in task.inserted)
    table = np.zeros((1 << max(4, (2 * inserted).bit_length()), 2), np.uint64)
    with work.write(task.name) as f:
        for keys, (number, _) in zip(slices, task.segments, strict=True):
            found = np.empty(len(keys), np.bool_)
            murmur_compiled.first_seen(keys, table, number in task.inserted, found)
            f.write(found.tobytes())


@dataclass(frozen=True, slots=True)
class _Ending:
    """Of a file: the digest of the run, the ranges, and where in each range each of its segments lies."""

    whole: str
    bounds: list[int]
    offsets: npt.NDArray[np.int64]
    scanned: Scanned


def _offsets(starts: list[npt.NDArray[np.int64]], bounds: list[int], low: int, high: int) -> npt.NDArray[np.int64]:
    """int64[segments, ranges, 2]: begin and end of the answers of each segment from `low` to `high`."""
    if not starts:
        return np.zeros((0, len(bounds) - 1, 2), np.int64)
    sizes = np.array([np.diff(one[bounds]) for one in starts])
    ends = np.cumsum(sizes, axis=0)
    return np.stack([ends - sizes, ends], axis=2)[low:high]


def finish(item: tuple[Task, _Ending]) -> Finished | None:
    """Write the attributes of a file; nothing where an earlier run did, or for a reference."""
    task, ending = item
    if task.reference:
        return None
    work, store = open_store(task.work), task.file.store()
    out = task.file.attributes(task.options.name, task.options.documents_folder)
    marker = f"{task.number:05d}.done"
    if work.exists(marker):
        found = orjson.loads(work.read(marker))
        if found.pop("whole") == ending.whole and store.exists(out) and store.stat(out).size == found["size"]:
            return Finished(**found)
    documents = units = 0
    kind = compression(task.file.path) if task.output is None and task.input is None else task.output
    with write_rows(store, out, kind=task.input if kind is None else kind) as append:
        for segment in range(ending.scanned.segments):
            rows, of_documents, of_units = _rows(work, task, ending, segment)
            append(rows)
            documents, units = documents + of_documents, units + of_units
    done = Finished(ending.scanned.rows, ending.scanned.ids, documents, units, store.stat(out).size)
    fields = {name: getattr(done, name) for name in Finished.__slots__}
    work.write_bytes(marker, orjson.dumps({"whole": ending.whole, **fields}))
    return done


def _rows(work: Store, task: Task, ending: _Ending, segment: int) -> tuple[list[bytes], int, int]:
    with work.local_copy(f"{task.number:05d}-{segment:05d}.npz") as path, np.load(path, allow_pickle=False) as arrays:
        a = {name: arrays[name] for name in arrays.files}
    ordered = []
    for (low, high), (begin, end) in zip(pairwise(ending.bounds), ending.offsets[segment].tolist(), strict=True):
        with work.local_copy(_Range(task.work, ending.whole, low, high, [], frozenset()).name) as path:
            ordered.append(np.fromfile(path, np.bool_, end - begin, offset=begin))
    found = np.empty(len(a["order"]), np.bool_)
    found[a["order"]] = np.concatenate(ordered)
    ids = a["ids"].tobytes().split(b"\n")[:-1]
    done = render(ids, a["states"], a["rows"], a["starts"], a["ends"], a["bounds"], found, task.options)
    return done.rows, done.documents, done.units
