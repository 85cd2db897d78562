"""Files of documents as segments in the work folder: read once, and rendered when it is known which keys were seen.

For each file, the work folder has files named by the fingerprint F of what is stored of it, so that a killed run on
other documents leaves nothing that could be taken for it:

    F.keys       the hash of each key, or its bits in a filter, in the order of the segments
    F.parts      int64[segments + 1, parts + 1]: the first key of each part in each segment, and of the next segment;
                 then the number of keys of all parts before each part
    F-s.units    ids, spans and keys of the units of segment s, and ``order``: the key of each entry of F.keys
    F.json       marker of a complete file

and for a run the fingerprints of its files in order, ``files-RUN``, and for each range of parts one file with
``starts`` int64[files + 1], then one byte for each key: whether it was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.attribute_set import digest_ids
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import NO_KEY, Units, read_units
from feedmill.curation.dedupe.work import get_arrays, get_marker, get_slices, put, put_arrays, put_marker, size_of
from feedmill.curation.options import SUBSTRINGS, Dedupe
from feedmill.documents.lines import Block, blocks, read_blocks
from feedmill.formats.arrays import Arrays
from feedmill.formats.documents import write_lines
from feedmill.jobs.engine import Policy
from feedmill.jobs.memory import sized
from feedmill.jobs.run import run
from feedmill.jobs.threads import ahead
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.hashing.windows import BEGINS, ENDS
from feedmill.kernels.jsonl import spanrows
from feedmill.storage import open_store, split_url
from feedmill.storage.codec import compression

SEGMENT = 16 << 20
"""Number of bytes of ids, units and hashes at which a segment is complete, in a task with full room. To write or render
it takes five times as much."""

_KEY = 20
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


class Keys(Protocol):
    """Stored form of keys."""

    def feed(self, task: DedupeTask, source: Iterator[Block]) -> Iterator[Any]:  # noqa: ARG002 - others need the task
        """Yield the blocks of a file with what `part` needs beside them."""
        return source

    def part(self, task: DedupeTask, item: Any) -> Part:
        """Return what is stored of a block. Other processes may call it."""

    def add(self, found: Any, out: BinaryIO) -> None:
        """Take what was found in a block, block by block."""

    def close(self, out: BinaryIO) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """End a segment. Return the start of each part, int64[parts + 1], and the key of each entry."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """Result of scanning a file: rows, digest of the ids, number of segments, and hash of the stored bytes."""

    rows: int
    ids: str
    segments: int
    xxh3: str


class Part(NamedTuple):
    """Units of a block of rows as they are stored in a segment, without the text.

    Attributes:
        ids: Id of each row as JSON, each followed by a newline.
        rows, keys: Numbers of rows and of keys.
        arrays: Arrays of `Units`, for example. ``rows`` has numbers of rows, and ``bounds`` numbers of keys.
        found: What is stored of the keys.
    """

    ids: bytes
    rows: int
    keys: int
    arrays: dict[str, npt.NDArray[Any]]
    found: Any

    @property
    def size(self) -> int:
        """Number of bytes, with a hash and a place for each key."""
        return len(self.ids) + sum(values.nbytes for values in self.arrays.values()) + _KEY * self.keys


def part_of_units(task: DedupeTask, block: Block, read: Callable[[Units], Any]) -> Part:
    """Return what is stored of the units of a block; `read` returns what is stored of their keys."""
    units = read_units(block.lines, task.options, task.file.name, block.line)
    found = read(units)
    arrays: dict[str, npt.NDArray[Any]] = {
        "states": units.states,
        "rows": units.rows.astype(np.int32),
        "starts": units.starts.astype(np.int32),
        "ends": units.ends.astype(np.int32),
        "bounds": units.bounds,
    }
    ids = b"".join([part for one in units.ids for part in (one, b"\n")])
    return Part(ids, len(units.ids), len(units.firsts), arrays, found)


def _read_part(shared: tuple[DedupeTask, Keys], item: Any) -> Part:
    task, keys = shared
    return keys.part(task, item)


def scan_file(
    task: DedupeTask, fingerprint: str, keys: Keys, *, workers: int = 1, preload: Sequence[str] = ()
) -> Scanned:
    """Read a file into segments, unless an earlier run did.

    Args:
        fingerprint: Identifies the content of the segments.
        workers: Number of processes that read its blocks; this process puts them together.
        preload: See `feedmill.jobs.run.run`.
    """
    name = f"{task.work}/{fingerprint}"
    finished = get_marker(f"{name}.json")
    if finished is not None and finished.pop("fingerprint", None) == fingerprint:
        return Scanned(**finished)
    rows, segments, digest, read = 0, 0, digest_ids([]), list[str]()
    segment, written, totals = _Segment(), 0, np.zeros(0, np.int64)
    most = sized(SEGMENT, task.room)
    with put(f"{name}.keys") as out, put(f"{name}.parts") as parts:

        def end() -> None:
            nonlocal written, segments, totals, segment
            starts, order = keys.close(out)
            segment.write(f"{name}-{segments:05d}.units", order)
            parts.write((starts + written).tobytes())
            totals = totals + starts if segments else starts
            written, segments, segment = written + int(starts[-1]), segments + 1, _Segment()

        with ExitStack() as stack:
            lines = read_blocks(task.file, fields=task.options.fields, packed=task.input, hashed=read.append)
            spare = task.spare and workers == 1  # with others, this process only reads, and a thread forbids forking
            source = keys.feed(task, blocks(stack.enter_context(closing(ahead(lines) if spare else lines))))
            policy = Policy(shared=(task, keys))
            for part in stack.enter_context(
                closing(run(_read_part, source, workers=workers, preload=preload, policy=policy))
            ):
                digest.update(part.ids)
                keys.add(part.found, out)
                segment.add(part)
                rows += part.rows
                if segment.size >= most:
                    end()
        if segment.rows:
            end()
        elif not segments:
            totals = keys.close(out)[0]
        parts.write(totals.tobytes())
    done = Scanned(rows, digest.hexdigest(), segments, read[0])
    put_marker(f"{name}.json", {"fingerprint": fingerprint, **asdict(done)})
    return done


@dataclass(slots=True)
class _Segment:
    """Blocks of a file, collected until they are written as a segment."""

    ids: list[bytes] = field(default_factory=list)
    arrays: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    rows: int = 0
    keys: int = 0
    size: int = 0

    def add(self, part: Part) -> None:
        """Append a block."""
        before = {"rows": np.int32(self.rows), "bounds": self.keys}
        for name, values in part.arrays.items():
            self.arrays.setdefault(name, []).append(values + before[name] if name in before else values)
        self.ids.append(part.ids)
        self.rows += part.rows
        self.keys += part.keys
        self.size += part.size

    def write(self, path: str, order: npt.NDArray[np.uint32]) -> None:
        """Write the segment without what is stored of its keys."""
        arrays = {key: np.concatenate(values, axis=-1 if key == "bounds" else 0) for key, values in self.arrays.items()}
        ids = np.frombuffer(b"".join(self.ids), np.uint8)
        put_arrays(path, {"ids": ids, "order": order, "keys": np.array([self.keys]), **arrays})


def write_names(work: str, whole: str, names: Sequence[str]) -> None:
    """Write the fingerprints of the files of a run, in order."""
    with put(f"{work}/files-{whole}") as out:
        out.write("\n".join(names).encode())


@lru_cache(maxsize=2)
def read_names(work: str, whole: str) -> tuple[str, ...]:
    """Return the paths of the files of a run in the work folder, without suffixes, in order."""
    folder, name = split_url(f"{work}/files-{whole}")
    return tuple(f"{work}/{one}" for one in open_store(folder).read(name).decode().split("\n"))


def totals(name: str, parts: int) -> Ints:
    """Return the number of keys of a file before each of its parts, int64[parts + 1]."""
    found = np.empty(parts + 1, np.int64)
    get_slices(f"{name}.parts", [(-(parts + 1), 0)], found)
    return found


def cuts(name: str, parts: int, bounds: Sequence[int], segments: range | None = None) -> Ints:
    """Return the first key of some parts, in rising order, in segments of a file, int64[segments, bounds].

    Args:
        segments: Numbers of the segments. Default: All.
    """
    low, high = bounds[0], bounds[-1] + 1
    if segments is None:
        segments = range(size_of(f"{name}.parts") // (8 * (parts + 1)) - 1)
    found = np.empty((len(segments), high - low), np.int64)
    spans = [(row * (parts + 1) + low, row * (parts + 1) + high) for row in segments]
    get_slices(f"{name}.parts", spans, found.reshape(-1))
    return found[:, np.asarray(bounds) - low]


def read_keys(name: str, spans: Ints, out: npt.NDArray[Any]) -> None:
    """Read the keys of a file in spans int64[n, 2], one span after another, into `out`."""
    get_slices(f"{name}.keys", spans.tolist(), out)


@dataclass(frozen=True, slots=True)
class Answers:
    """Files that record which keys were seen, one for each range of parts.

    Attributes:
        work: Path of the work folder.
        whole: Fingerprint of the run.
        parts: Number of parts.
        bounds: Bounds of the ranges of parts.
    """

    work: str
    whole: str
    parts: int
    bounds: tuple[int, ...]

    def paths(self) -> list[str]:
        """Return the path of each range."""
        return [found_name(self.work, self.whole, low, high) for low, high in pairwise(self.bounds)]


def found_name(work: str, whole: str, low: int, high: int) -> str:
    """Return the path of the file that says which keys of a range of parts were seen."""
    return f"{work}/found-{whole}-{low:04d}-{high:04d}"


def write_answers(path: str, sizes: Sequence[int], found: Iterator[npt.NDArray[Any]]) -> None:
    """Write what was found of the keys of a range, one byte each; `sizes` are the numbers of keys of each file."""
    starts = bounds_of(sizes)
    with put(path) as f:
        f.write((starts + starts.nbytes).tobytes())
        for one in found:
            f.write(one.data)


def finish(answers: Answers, item: tuple[DedupeTask, Scanned], workers: int = 1) -> Finished | None:
    """Write the attributes of a file, unless an earlier run did or the file is a reference.

    Args:
        workers: Number of processes that make the rows of its segments; this process writes them.
    """
    task, scanned = item
    if task.reference:
        return None
    store = task.file.store()
    out = task.file.attributes(task.options.name, task.options.documents_folder)
    name = read_names(answers.work, answers.whole)[task.number]
    marker = f"{name}.done"
    finished = get_marker(marker)
    mine = finished is not None and finished.pop("whole") == answers.whole
    if finished is not None and mine and store.exists(out) and store.stat(out).size == finished["size"]:
        return Finished(**finished)
    documents = units = 0
    packed = compression(out) if task.output is None and task.input is None else task.output
    packed = task.input if packed is None else packed
    written: list[str] = []
    # Rows of a segment are large, so few are in flight.
    policy = Policy(shared=(task, name), in_flight=workers + 1)
    segments = enumerate(answers_of(answers, name, task.number, scanned.segments))
    with (
        write_lines(store, out, kind=packed, hashed=written.append, gather=True) as append,
        closing(run(_rows, segments, workers=workers, preload=(__name__,), policy=policy)) as made,
    ):
        for rendered in made:
            append(rendered.rows)
            documents, units = documents + rendered.documents, units + rendered.units
    done = Finished(scanned.rows, scanned.ids, documents, units, store.stat(out).size, written[0], scanned.xxh3)
    put_marker(marker, {"whole": answers.whole, **asdict(done)})
    return done


def answers_of(answers: Answers, name: str, number: int, segments: int) -> Iterator[Bytes]:
    """Yield what was found of the keys of each segment, in the order in which they were stored."""
    paths, at = answers.paths(), np.empty(1, np.int64)
    starts = []
    for path in paths:
        get_slices(path, [(number, number + 1)], at)
        starts.append(int(at[0]))
    for segment in range(segments):
        own = np.diff(cuts(name, answers.parts, answers.bounds, range(segment, segment + 1))[0]).tolist()
        seen, low = np.empty(sum(own), np.uint8), 0
        for n, (path, size) in enumerate(zip(paths, own, strict=True)):
            get_slices(path, [(starts[n], starts[n] + size)], seen[low : low + size])
            starts[n], low = starts[n] + size, low + size
        yield seen


def _rows(shared: tuple[DedupeTask, str], item: tuple[int, Bytes]) -> Rendered:
    (task, name), (segment, seen) = shared, item
    a = get_arrays(f"{name}-{segment:05d}.units")
    found = np.zeros(int(a["keys"][0]), np.bool_)
    found[a["order"]] = seen.view(np.bool_)
    ids = a["ids"].tobytes().split(b"\n")[:-1]
    if task.options.by == SUBSTRINGS:
        return render_windows(ids, a, found, task.options)
    return render(ids, a["states"], a["rows"], a["starts"], a["ends"], a["bounds"], found, task.options)


@dataclass(slots=True)
class Rendered:
    """Rows to write, with line ends, and the numbers of documents with duplicates and of duplicate units in them."""

    rows: bytes
    documents: int
    units: int


def render(
    ids: list[bytes],
    states: npt.NDArray[np.uint8],
    rows: Ints,
    starts: Ints,
    ends: Ints,
    bounds: Ints,
    found: npt.NDArray[np.bool_],
    options: Dedupe,
) -> Rendered:
    """Return the attribute rows of a block.

    Args:
        ids, states, rows, starts, ends, bounds: See `feedmill.curation.dedupe.units.Units`.
        found: Whether each key was seen before, bool[keys].
    """
    flagged, numbers, scores = _scores(bounds, found, options)
    name, bare = orjson.dumps(options.attribute), states == NO_KEY
    rows, starts, ends = (a[flagged].astype(np.int64) for a in (rows, starts, ends))
    text = _span_rows(ids, bare, rows, starts, ends, numbers, scores, name)
    documents = int(np.count_nonzero(np.diff(rows))) + bool(len(rows))
    return Rendered(text, documents, len(flagged))


def render_windows(ids: list[bytes], a: Arrays, found: npt.NDArray[np.bool_], options: Dedupe) -> Rendered:
    """Return the attribute rows of a segment of windows: spans over all bytes, or tokens, that repeated windows have.

    A span has the characters that are whole in these.

    Args:
        a: See `feedmill.curation.dedupe.substrings`.
        found: Whether each window is repeated, bool[windows].
    """
    firsts, lasts = a["bounds"]
    places = np.repeat(np.arange(len(firsts)), lasts - firsts)  # of each window
    marked = a["marked"] != 0
    found = found & ~marked[places]
    edge = np.zeros(len(found) + 1, np.bool_)  # between windows of different places
    edge[firsts[firsts < lasts]] = edge[-1] = True
    before = np.append(False, found)[:-1] & ~edge[:-1]
    after = np.append(found, False)[1:] & ~edge[1:]
    low, high = np.flatnonzero(found & ~before), np.flatnonzero(found & ~after)  # first and last windows of runs
    of, whole = places[low], np.flatnonzero(marked)
    numbers = np.concatenate([whole, of])
    starts = np.concatenate([a["starts"][whole], a["starts"][of] + (low - firsts[of])])
    stops = np.concatenate([a["ends"][whole], a["starts"][of] + (high - firsts[of]) + options.length])
    characters = a["characters"].astype(np.int64)
    if "marks" in a:
        begins, ends = (a["marks"] & BEGINS) != 0, (a["marks"] & ENDS) != 0
        sums, other = bounds_of(begins), bounds_of(ends)
        first = characters[of, 0] + sums[low] - sums[firsts[of]]
        last = characters[of, 1] + other[high] - other[firsts[of]] - 1 + ends[high]
    else:
        first, last = a["firsts"][low].astype(np.int64), a["lasts"][high].astype(np.int64)
    first, last = np.concatenate([characters[whole, 0], first]), np.concatenate([characters[whole, 2], last])
    order = np.lexsort((starts, numbers))
    rows, starts, stops, first, last = (one[order] for one in (a["rows"][numbers], starts, stops, first, last))
    new = np.ones(len(rows), np.bool_)
    new[1:] = (np.diff(rows) > 0) | (starts[1:] > stops[:-1])
    low, high = np.flatnonzero(new), np.flatnonzero(np.append(new, True)[1:])
    rows, first, last = rows[low].astype(np.int64), first[low], last[high]
    seen = first < last  # others are bytes inside of one character
    rows, first, last = rows[seen], first[seen], last[seen]
    none, name = np.zeros(len(ids), np.bool_), orjson.dumps(options.attribute)
    text = _span_rows(ids, none, rows, first, last, np.zeros(len(rows), np.int64), [b"1"], name)
    return Rendered(text, int(np.count_nonzero(np.diff(rows))) + bool(len(rows)), len(rows))


def _span_rows(
    ids: list[bytes],
    bare: npt.NDArray[np.bool_],
    rows: Ints,
    starts: Ints,
    ends: Ints,
    numbers: Ints,
    scores: list[bytes],
    name: bytes,
) -> bytes:
    marks = [b'{"attributes":{' + name + b":[", b'{"attributes":{', b']},"id":', b'},"id":', b"}\n"]
    (id_bytes, id_ends), (score_bytes, score_ends), (mark_bytes, mark_ends) = map(_strings, (ids, scores, marks))
    longest = max(map(len, scores), default=0)
    size = len(id_bytes) + len(ids) * len(mark_bytes) + len(rows) * (2 * spanrows.NUMBER + longest + 5)
    out = np.empty(size, np.uint8)
    size = spanrows.fill_rows(
        id_bytes, id_ends, bare, rows, starts, ends, numbers, score_bytes, score_ends, mark_bytes, mark_ends, out
    )
    return out[:size].tobytes()


def _strings(strings: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the concatenated strings, and the end of each."""
    ends = np.cumsum([len(string) for string in strings], dtype=np.int64)
    return np.frombuffer(b"".join(strings) or b" ", np.uint8), ends


def _scores(bounds: Ints, found: npt.NDArray[np.bool_], options: Dedupe) -> tuple[Ints, Ints, list[bytes]]:
    """Return the units to mark, the index of each one's score, and the scores as JSON."""
    if options.ngram == 0:
        flagged = np.flatnonzero(found)  # one key each
        return flagged, np.zeros(len(flagged), np.int64), [b"1"]
    sums = bounds_of(found)
    used = bounds[1] - bounds[0]
    share = (sums[bounds[1]] - sums[bounds[0]]).astype(np.float32) / np.maximum(used, 1).astype(np.float32)
    flagged = np.flatnonzero((used > 0) & (share >= np.float32(options.threshold)))
    values, numbers = np.unique(share[flagged], return_inverse=True)
    return flagged, numbers.astype(np.int64), [orjson.dumps(score) for score in values.astype(np.float64).tolist()]
