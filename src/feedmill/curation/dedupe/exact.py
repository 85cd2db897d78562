"""Find exact duplicates in data larger than memory: keys as 128-bit hashes on disk, compared range by range.

There are three steps. Each runs in several processes, which share a file that is larger than their share, and resumes
if it is killed:

1. *scan*: Each file of documents is read into segments. A segment has the hashes of the keys, ordered by their first
   bits, and the spans and ids that the attribute rows need.
2. *decide*: For each range of first bits, the hashes of all segments are entered into one table in input order. A hash
   that is in the table already is a duplicate. A range has up to a million keys, for any size of data.
3. *finish*: The results of each file are put back into the order of its documents, and its attribute rows are written.

The first occurrence in input order is kept, for any number of processes. Where segments and results lie in their files
is read from these by the tasks that need it, so the process that starts them holds nothing of a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.dedupe.segments import (
    Answers,
    Ints,
    Keys,
    Part,
    Scanned,
    cuts,
    finish,
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
from feedmill.curation.dedupe.units import Units
from feedmill.curation.dedupe.work import is_there, of_each
from feedmill.curation.options import DOCUMENTS
from feedmill.documents.lines import Block
from feedmill.jobs.engine import Policy, Where
from feedmill.jobs.memory import sized
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run, run_cut
from feedmill.kernels.hashing import murmur
from feedmill.storage import Store

Hashes = npt.NDArray[np.uint64]
Rule = Callable[[list[Hashes], int], list[npt.NDArray[Any]]]
"""Returns one byte for each key. Its arguments are the keys of each file in input order, and how many of the files, the
first ones, are references."""
_BITS = 12
PARTS = 1 << _BITS
RANGE = 1 << 20
"""Maximum number of keys in a range of a task with full room, unless a single part has more. A key takes 16 bytes, and
32 to 64 in the table."""
_PRELOAD = ("feedmill.curation.dedupe.exact", "feedmill.curation.dedupe.segments")
KERNELS = (*_PRELOAD, "feedmill.kernels.hashing.murmur", "feedmill.kernels.text.paragraphs")


def find_exact(
    tasks: Sequence[DedupeTask], place: Store, *, workers: int | None = None, progress: bool | None = None
) -> list[Finished | None]:
    """Write the attributes of all files. The result of a reference file is None. `place` is the folder of the work.

    Reference files come first.
    """
    names = [task.fingerprint for task in tasks]
    where = Where("reading", fingerprint(names), place, last=False)
    preload = _PRELOAD if tasks[0].options.by == DOCUMENTS else KERNELS
    files = [task.file.size for task in tasks]
    with Progress.of_files("reading", files, progress) as bar:
        scanned = run_cut(scan, tasks, files, workers=workers, progress=bar, preload=preload, where=where)
    answers = compare(tasks, names, place, first_copies, preload, workers, progress)
    return render_all(tasks, scanned, answers, place, preload, workers, progress)


def compare(
    tasks: Sequence[DedupeTask],
    names: Sequence[str],
    place: Store,
    rule: Rule,
    preload: Sequence[str],
    workers: int | None,
    progress: bool | None,
    columns: int = 2,
) -> Answers:
    """Compare the keys of all files by `rule`, range by range.

    Args:
        names: Fingerprint of what is stored of each file.
        columns: Numbers of a key.
    """
    work, references = tasks[0].work, sum(task.reference for task in tasks)
    most = sized(RANGE // (columns - 1), tasks[0].room)  # keys of three numbers are copied, and in two tables
    # Units of another room are other ranges: an engine must not take them for these.
    whole = fingerprint(names, [task.reference for task in tasks], most)
    write_names(work, whole, names)
    bounds = _ranges(read_names(work, whole), most)
    ranges = (_Range(work, whole, low, high, len(tasks), references, rule, columns) for low, high in pairwise(bounds))
    with Progress("comparing", len(bounds) - 1, "ranges", progress) as bar:
        where = Where("comparing", whole, place, last=False)
        list(run(decide, ranges, workers=workers, progress=bar, preload=preload, where=where))
    return Answers(work, whole, PARTS, tuple(bounds))


def render_all(
    tasks: Sequence[DedupeTask],
    scanned: Sequence[Scanned],
    answers: Answers,
    place: Store,
    preload: Sequence[str],
    workers: int | None,
    progress: bool | None,
) -> list[Finished | None]:
    """Write the attributes of all files, in the last stage."""
    sizes = [task.file.size for task in tasks]
    with Progress.of_files("writing", sizes, progress) as bar:
        jobs = list(zip(tasks, scanned, strict=True))
        where, policy = Where("writing", answers.whole, place), Policy(shared=answers)
        return run_cut(finish, jobs, sizes, workers=workers, progress=bar, preload=preload, where=where, policy=policy)


def scan(task: DedupeTask, workers: int = 1) -> Scanned:
    """Read a file into segments, in this process or its blocks in several, unless an earlier run did."""
    documents = task.options.by == DOCUMENTS
    preload = _PRELOAD if documents else KERNELS
    return scan_file(task, task.fingerprint, _Units(documents=documents), workers=workers, preload=preload)


@dataclass(slots=True)
class HashedKeys(Keys):
    """Hashes of the keys of a segment, ordered by their first bits.

    Attributes:
        columns: Numbers of a hash.
    """

    columns: int = 2
    blocks: list[Hashes] = field(default_factory=list)

    def add(self, found: Hashes, out: BinaryIO) -> None:  # noqa: ARG002 - they are written in their order
        self.blocks.append(found)

    def close(self, out: BinaryIO) -> tuple[Ints, npt.NDArray[np.uint32]]:
        hashes = np.concatenate([np.empty((0, self.columns), np.uint64), *self.blocks])
        self.blocks = []
        starts, order = partition(hashes, _BITS)
        out.write(hashes[order].reshape(-1).view(np.uint8).data)
        return starts, order


@dataclass(slots=True)
class _Units(HashedKeys):
    """Hashes of units."""

    documents: bool = False

    def part(self, task: DedupeTask, item: Block) -> Part:
        return part_of_units(task, item, hash_documents if self.documents else hash_parts)


def _ranges(names: Sequence[str], most: int) -> list[int]:
    """Return the bounds of ranges of parts with up to `most` keys each. They depend only on it and the data."""
    starts = np.zeros(PARTS + 1, np.int64)
    for own in of_each(lambda number: totals(names[number], PARTS), len(names), names[0]):
        starts += own
    bounds, held = [0], 0
    for part, size in enumerate(np.diff(starts).tolist()):
        if held and held + size > most:
            bounds.append(part)
            held = 0
        held += size
    return [*bounds, PARTS]


@dataclass(frozen=True, slots=True)
class _Range:
    """Range of keys: the parts from `low` to `high` of all files, of which the first ones may be references.

    Attributes:
        rule: What is found out about the keys.
        columns: Numbers of a key.
    """

    work: str
    whole: str
    low: int
    high: int
    files: int
    references: int
    rule: Rule
    columns: int

    def __str__(self) -> str:
        return f"parts {self.low} to {self.high - 1} of the keys of {self.files} files"

    @property
    def path(self) -> str:
        return found_name(self.work, self.whole, self.low, self.high)


def decide(task: _Range) -> None:
    """Write what the rule finds of the keys of a range: one byte per key, segment by segment."""
    if is_there(task.path):
        return
    names = read_names(task.work, task.whole)
    spans = list(of_each(lambda number: cuts(names[number], PARTS, (task.low, task.high)), task.files, task.work))
    sizes = [int((own[:, 1] - own[:, 0]).sum()) for own in spans]
    keys, slices, at = np.empty((sum(sizes), task.columns), np.uint64), [], 0
    for size in sizes:
        slices.append(keys[at : at + size])
        at += size
    for _ in of_each(lambda number: read_keys(names[number], spans[number], slices[number]), task.files, task.work):
        pass
    write_answers(task.path, sizes, iter(task.rule(slices, task.references)))


def first_copies(slices: list[Hashes], references: int) -> list[npt.NDArray[np.bool_]]:
    """Return which keys of each file were seen before in input order; in the references, if there are some."""
    return first_seen(slices, [number < references or not references for number in range(len(slices))])


def hash_documents(units: Units) -> Hashes:
    """Return the XXH3 hashes of keys of one part each, uint64[keys, 2]. No hash is (0, 0), the empty slot of tables."""
    view = units.data.data
    bounds = zip(units.lows.tolist(), units.highs.tolist(), strict=True)
    digests = b"".join([xxhash.xxh3_128_digest(view[low:high]) for low, high in bounds])
    hashes = np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)
    hashes[~hashes.any(axis=1), 1] = 1
    return hashes


def hash_parts(units: Units) -> Hashes:
    """Return the MurmurHash3 of keys of any number of parts, uint64[keys, 2]; see `feedmill.kernels.hashing.murmur`."""
    hashes = np.empty((len(units.firsts), 2), np.uint64)
    murmur.hash_keys(units.data, units.lows, units.highs, units.firsts, units.counts, hashes)
    return hashes


def partition(hashes: Hashes, bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return a stable order of keys by the first `bits` of their hashes.

    Returns:
        The start of each part, int64[2^bits + 1], and the order, uint32[keys].
    """
    starts, order = np.empty((1 << bits) + 1, np.int64), np.empty(len(hashes), np.uint32)
    murmur.partition(hashes, 64 - bits, starts, order)
    return starts, order


def first_seen(slices: list[Hashes], inserted: list[bool]) -> list[npt.NDArray[np.bool_]]:
    """Return, for each slice, which of its keys occurred before in an `inserted` slice, as bool[keys].

    Before means earlier in the same slice or in an earlier slice.
    """
    count = sum(len(one) for one, goes_in in zip(slices, inserted, strict=True) if goes_in)
    table = np.zeros((1 << max(4, (2 * count).bit_length()), 2), np.uint64)
    out = []
    for one, goes_in in zip(slices, inserted, strict=True):
        found = np.empty(len(one), np.bool_)
        murmur.first_seen(one, table, goes_in, found)
        out.append(found)
    return out
