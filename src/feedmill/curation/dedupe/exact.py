"""Find exact duplicates in data larger than memory: 128-bit hashes on disk, compared range by range.

There are three steps. Each runs in several processes, and resumes if it is killed:

1. *scan*: Each file of documents is read into segments. A segment has the hashes of the keys, ordered by their first
   bits, and the spans and ids that the attribute rows need.
2. *decide*: For each range of first bits, the hashes of all segments are entered into one table in input order. A hash
   that is in the table already is a duplicate. A range has some millions of keys, for any size of data.
3. *finish*: The results of each file are put back into the order of its documents, and its attribute rows are written.

The first occurrence in input order is kept, for any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.attribute_set import digest_ids, fingerprint
from feedmill.curation.dedupe.keys import Hashes, first_seen, hash_documents, hash_parts, partition
from feedmill.curation.dedupe.options import DOCUMENTS
from feedmill.curation.dedupe.render import Rendered, render
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import Units, read_units
from feedmill.curation.dedupe.work import get_arrays, get_marker, get_slices, is_there, put, put_arrays, put_marker
from feedmill.documents.lines import read_blocks
from feedmill.formats.documents import write_lines
from feedmill.jobs.engine import Where
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run, run_largest_first
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.storage import Store
from feedmill.storage.codec import compression

_BITS = 12
PARTS = 1 << _BITS
SEGMENT, MOST_KEYS = 64 << 20, 2 << 20
"""Number of bytes of text, and of keys, at which a segment is complete."""
RANGE = 4 << 20
"""Maximum number of keys in a range, unless a single part has more."""
_AT_ONCE = 16
"""Number of files read concurrently from an object store."""
_PRELOAD = ("feedmill.curation.dedupe.keys",)
KERNELS = (*_PRELOAD, "feedmill.kernels.hashing.murmur_compiled", "feedmill.kernels.text.paragraphs_compiled")


@dataclass(frozen=True, slots=True)
class Scanned:
    """Result of scanning a file: rows, digest of the ids, number of segments, and hash of the stored bytes."""

    rows: int
    ids: str
    segments: int
    xxh3: str


def find_exact(
    tasks: Sequence[DedupeTask], place: Store, *, workers: int | None = None, progress: bool | None = None
) -> list[Finished | None]:
    """Write the attributes of all files. The result of a reference file is None. `place` is the folder of the work."""
    where = Where("reading", fingerprint([task.fingerprint for task in tasks]), place, last=False)
    preload = _PRELOAD if tasks[0].options.unit == DOCUMENTS else KERNELS
    files = [task.file.size for task in tasks]
    with Progress("reading", len(tasks), "files", progress) as bar:
        scanned = run_largest_first(scan, tasks, files, workers=workers, progress=bar, preload=preload, where=where)
    work = tasks[0].work
    segments = [
        (task.number, _segment(task, s)) for task, one in zip(tasks, scanned, strict=True) for s in range(one.segments)
    ]
    workers_of_store = _AT_ONCE if "://" in work else 0
    paths = [f"{work}/{name}" for _, name in segments]
    parts = ordered_map(_parts, paths, workers=workers_of_store, in_flight=2 * _AT_ONCE)
    starts = np.array(list(parts), np.int64).reshape(-1, PARTS + 1)
    bounds = _ranges(starts)
    cuts = starts[:, bounds]
    whole = fingerprint([task.fingerprint for task in tasks], [task.reference for task in tasks])
    kept = frozenset(task.number for task in tasks if task.reference) or frozenset(task.number for task in tasks)
    ranges = (
        _Range(work, whole, low, high, segments, cuts[:, n : n + 2], kept)
        for n, (low, high) in enumerate(pairwise(bounds))
    )
    with Progress("comparing", len(bounds) - 1, "ranges", progress) as bar:
        where = Where("comparing", whole, place, last=False)
        list(run(decide, ranges, workers=workers, progress=bar, preload=preload, where=where))
    sizes = np.diff(cuts, axis=1)
    answers = np.stack([np.cumsum(sizes, axis=0) - sizes, np.cumsum(sizes, axis=0)], axis=2)
    ends, at = [], 0
    for one in scanned:
        ends.append(_Ending(whole, bounds, answers[at : at + one.segments], one))
        at += one.segments
    with Progress("writing", len(tasks), "files", progress) as bar:
        jobs = list(zip(tasks, ends, strict=True))
        where = Where("writing", whole, place)
        return run_largest_first(finish, jobs, files, workers=workers, progress=bar, preload=preload, where=where)


def scan(task: DedupeTask) -> Scanned:
    """Read a file into segments, unless an earlier run did."""
    marker = f"{task.work}/{task.fingerprint}.json"
    found = get_marker(marker)
    if found is not None and found.get("fingerprint") == task.fingerprint:
        return Scanned(found["rows"], found["ids"], found["segments"], found["xxh3"])
    where = task.file.name
    rows, segments, digest = 0, 0, digest_ids([])
    hash_units = hash_documents if task.options.unit == DOCUMENTS else hash_parts
    segment, read = _Segment(), list[str]()
    with ExitStack() as stack:
        blocks = read_blocks(task.file, fields=task.options.fields, packed=task.input, hashed=read.append)
        for block in stack.enter_context(closing(ahead(blocks))) if task.spare else blocks:
            units = read_units(block, task.options, where, rows + 1)
            digest_ids(units.ids, digest)
            segment.add(units, hash_units(units))
            rows += len(units.ids)
            if segment.size >= SEGMENT or segment.keys >= MOST_KEYS:
                segment.write(f"{task.work}/{_segment(task, segments)}")
                segments, segment = segments + 1, _Segment()
    if segment.ids:
        segment.write(f"{task.work}/{_segment(task, segments)}")
        segments += 1
    done = Scanned(rows, digest.hexdigest(), segments, read[0])
    put_marker(marker, {"fingerprint": task.fingerprint, **asdict(done)})
    return done


def _segment(task: DedupeTask, number: int) -> str:
    """Return the name of a segment, which decides its content: a killed run on other documents may still write."""
    return f"{task.fingerprint}-{number:05d}"


@dataclass(slots=True)
class _Segment:
    """Blocks of a file, collected until they are written as a segment."""

    size: int = 0
    ids: list[bytes] = field(default_factory=list)
    arrays: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    keys: int = 0

    def add(self, units: Units, hashes: Hashes) -> None:
        """Append a block and the hashes of its keys."""
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

    def write(self, name: str) -> None:
        """Write ``<name>.keys`` (the hashes, ordered by their first bits) and ``<name>.units`` (everything else)."""
        arrays = {key: np.concatenate(values, axis=-1 if key == "bounds" else 0) for key, values in self.arrays.items()}
        hashes = arrays.pop("hashes")
        starts, order = partition(hashes, _BITS)
        with put(f"{name}.keys") as f:
            f.write(hashes[order].reshape(-1).view(np.uint8).data)
        ids = np.frombuffer(b"\n".join(self.ids) + b"\n", np.uint8)
        put_arrays(f"{name}.units", {"ids": ids, "order": order, "parts": starts, **arrays})


def _parts(segment: str) -> npt.NDArray[np.int64]:
    """Return the start of each part of a segment, int64[PARTS + 1]."""
    return get_arrays(f"{segment}.units", "parts")["parts"]


def _ranges(starts: npt.NDArray[np.int64]) -> list[int]:
    """Return the bounds of ranges of parts with up to `RANGE` keys each. They depend only on the data."""
    sizes = np.diff(starts.sum(axis=0))
    bounds, held = [0], 0
    for part, size in enumerate(sizes.tolist()):
        if held and held + size > RANGE:
            bounds.append(part)
            held = 0
        held += size
    return [*bounds, PARTS]


@dataclass(frozen=True, slots=True)
class _Range:
    """Range of keys: the parts from `low` to `high`, or the keys ``cuts[n, 0]`` to ``cuts[n, 1]`` of segment n.

    `segments` has the number of its file and the name of each.
    """

    work: str
    whole: str
    low: int
    high: int
    segments: list[tuple[int, str]]
    cuts: npt.NDArray[np.int64]
    inserted: frozenset[int]

    @property
    def path(self) -> str:
        return _found(self.work, self.whole, self.low, self.high)


def _found(work: str, whole: str, low: int, high: int) -> str:
    return f"{work}/found-{whole}-{low:04d}-{high:04d}"


def decide(task: _Range) -> None:
    """Write which keys of a range were seen before in input order: one byte per key, segment by segment."""
    if is_there(task.path):
        return
    places = [
        (f"{task.work}/{name}.keys", 2 * low, 2 * (high - low))
        for (_, name), (low, high) in zip(task.segments, task.cuts.tolist(), strict=True)
    ]
    slices = [keys.reshape(-1, 2) for keys in get_slices(places, np.uint64)]
    found = first_seen(slices, [number in task.inserted for number, _ in task.segments])
    with put(task.path) as f:
        f.write(b"".join([one.tobytes() for one in found]))


@dataclass(frozen=True, slots=True)
class _Ending:
    """Where the results of a file are.

    Attributes:
        whole: Fingerprint of the run.
        bounds: Bounds of the ranges.
        offsets: Start and end of each segment's results in each range, int64[segments, ranges, 2].
    """

    whole: str
    bounds: list[int]
    offsets: npt.NDArray[np.int64]
    scanned: Scanned


def finish(item: tuple[DedupeTask, _Ending]) -> Finished | None:
    """Write the attributes of a file, unless an earlier run did or the file is a reference."""
    task, ending = item
    if task.reference:
        return None
    store = task.file.store()
    out = task.file.attributes(task.options.name, task.options.documents_folder)
    marker = f"{task.work}/{task.number:05d}.done"
    found = get_marker(marker)
    mine = found is not None and found.pop("whole") == ending.whole
    if found is not None and mine and store.exists(out) and store.stat(out).size == found["size"]:
        return Finished(**found)
    documents = units = 0
    kind = compression(out) if task.output is None and task.input is None else task.output
    written: list[str] = []
    with write_lines(store, out, kind=task.input if kind is None else kind, hashed=written.append) as append:
        for segment in range(ending.scanned.segments):
            rendered = _rows(task, ending, segment)
            append(rendered.rows)
            documents, units = documents + rendered.documents, units + rendered.units
    scanned = ending.scanned
    done = Finished(scanned.rows, scanned.ids, documents, units, store.stat(out).size, written[0], scanned.xxh3)
    put_marker(marker, {"whole": ending.whole, **asdict(done)})
    return done


def _rows(task: DedupeTask, ending: _Ending, segment: int) -> Rendered:
    a = get_arrays(f"{task.work}/{_segment(task, segment)}.units")
    ordered = get_slices(
        [
            (_found(task.work, ending.whole, low, high), begin, end - begin)
            for (low, high), (begin, end) in zip(pairwise(ending.bounds), ending.offsets[segment].tolist(), strict=True)
        ],
        np.bool_,
    )
    found = np.empty(len(a["order"]), np.bool_)
    found[a["order"]] = np.concatenate(ordered)
    ids = a["ids"].tobytes().split(b"\n")[:-1]
    return render(ids, a["states"], a["rows"], a["starts"], a["ends"], a["bounds"], found, task.options)
