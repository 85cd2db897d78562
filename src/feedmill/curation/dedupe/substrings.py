"""Find repeated substrings of documents: every window of `length` bytes that occurred before, in data of any size.

Or of `length` tokens: see `feedmill.curation.dedupe.tokenized`.

A substring of at least `length` bytes that occurs twice is a run of windows that do. Most windows occur once, so they
are narrowed down before they are compared. The stages resume if they are killed:

1. *scan*: Each file is read into segments with the places of anchors (`feedmill.kernels.hashing.windows`). A place is
   the bytes of the consecutive windows that have the same anchor.
2. *decide*: An anchor that occurs once has no repeated window. A place whose bytes are those of a place before it is
   marked as a whole, which are most places of long copies. What remains are places around the ends of copies.
3. *select*: The files are read again, and the windows of the remaining places are hashed.
4. *decide*: A hash that occurred before is a repeated window.
5. *finish*: Windows and marked places become spans, and the attribute rows of each file are written.

The first occurrence in input order is kept, unless every copy is marked. Public tools find the same substrings by a
suffix array (Lee et al. 2021, "Deduplicating Training Data Makes Language Models Better").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.dedupe.exact import KERNELS, HashedKeys, Hashes, compare, first_copies, first_seen, render_all
from feedmill.curation.dedupe.segments import Answers, Part, Scanned, answers_of, read_names, scan_file
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.tokenized import Texts
from feedmill.curation.dedupe.units import read_texts
from feedmill.curation.dedupe.work import get_arrays
from feedmill.documents.lines import Block
from feedmill.documents.rows import parse_texts
from feedmill.errors import DataError
from feedmill.formats.documents import rows_of
from feedmill.jobs.engine import Policy, Where
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run_cut
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.hashing import windows
from feedmill.storage import Store

MARKED, EMITTED = 1, 2
"""Bits of what is decided of a place: all its bytes are repeated; its windows are compared."""
_PRELOAD = (*KERNELS, "feedmill.curation.dedupe.substrings", "feedmill.kernels.hashing.windows")

Ints32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


def find_repeated(
    tasks: Sequence[DedupeTask], place: Store, *, workers: int | None = None, progress: bool | None = None
) -> list[Finished | None]:
    """Write the attributes of all files; see `feedmill.curation.dedupe.exact.find_exact`."""
    names = [task.fingerprint for task in tasks]
    every, sizes = tasks[0].options.every_copy, [task.file.size for task in tasks]
    with Progress.of_files("reading", sizes, progress) as bar:
        where = Where("reading", fingerprint(names), place, last=False)
        scanned = run_cut(scan, tasks, sizes, workers=workers, progress=bar, preload=_PRELOAD, where=where)
    places = compare(tasks, names, place, partial(judge, every), _PRELOAD, workers, progress, columns=3)
    with Progress.of_files("selecting", sizes, progress) as bar:
        where, policy = Where("selecting", places.whole, place, last=False), Policy(shared=places)
        jobs = list(zip(tasks, scanned, strict=True))
        scanned = run_cut(
            select, jobs, sizes, workers=workers, progress=bar, preload=_PRELOAD, where=where, policy=policy
        )
    names = [_selected(places, task) for task in tasks]
    rule = copies if every else first_copies
    found = compare(tasks, names, place, rule, _PRELOAD, workers, progress)
    return render_all(tasks, scanned, found, place, _PRELOAD, workers, progress)


def scan(task: DedupeTask, workers: int = 1) -> Scanned:
    """Read the places of anchors of a file into segments, unless an earlier run did."""
    return scan_file(task, task.fingerprint, _Places(columns=3), workers=workers, preload=_PRELOAD)


@dataclass(slots=True)
class _Places(HashedKeys):
    """Places of anchors. A key is the hash of the anchor, and the hash of the bytes of the place."""

    def part(self, task: DedupeTask, item: Block) -> Part:
        ids, texts = read_texts(item.lines, task.options, task.file.name, item.line)
        text = Texts.of(texts, task.options, task.file.name)
        (rows, starts, ends), hashes = windows.find_anchors(text.data, text.offsets, text.length)
        rows, starts, ends, hashes = text.whole(rows, starts, ends, hashes)
        arrays = {"rows": rows, "starts": starts, "ends": ends}
        return Part(b"".join([one + b"\n" for one in ids]), len(ids), len(rows), arrays, hashes)


def judge(every: bool, files: list[Hashes], references: int) -> list[Bytes]:
    """Return `MARKED` and `EMITTED` for each place of each file; see `feedmill.curation.dedupe.exact.Rule`.

    If places have the same anchor but not the same bytes, the first place with the same bytes is emitted. With
    references, only their places are compared with: those without bytes that a document has are not emitted.
    """
    anchors = [np.stack([own[:, 0], ~own[:, 0]], axis=1) for own in files]
    spans = [np.ascontiguousarray(own[:, 1:]) for own in files]
    before = first_copies(spans, references)
    if references:
        inserted = [number < references for number in range(len(files))]
        known = first_seen(anchors, inserted)  # of documents: whether a reference has the anchor
        asked = [own[~seen] for own, seen in zip(anchors[references:], before[references:], strict=True)]
        wanted = first_seen([*asked, *anchors[:references]], [True] * len(asked) + [False] * references)
        emitted = [*wanted[len(asked) :], *known[references:]]
        marked = [np.zeros(len(own), np.bool_) for own in files[:references]] + before[references:]
    else:
        emitted = [np.zeros(len(own), np.bool_) for own in files]
        several = copies([own[~seen] for own, seen in zip(anchors, before, strict=True)], 0)
        for own, seen, among in zip(emitted, before, several, strict=True):
            own[~seen] = among
        marked = copies(spans, 0) if every else before
    return [
        (mark * np.uint8(MARKED)) | ((emit & ~seen) * np.uint8(EMITTED))
        for mark, emit, seen in zip(marked, emitted, before, strict=True)
    ]


def copies(files: list[Hashes], references: int) -> list[Bools]:
    """Return which keys occur twice; in the references, if there are some."""
    before = first_copies(files, references)
    if references:
        return before
    after = first_seen([own[::-1].copy() for own in reversed(files)], [True] * len(files))
    return [one | other[::-1] for one, other in zip(before, reversed(after), strict=True)]


def select(places: Answers, item: tuple[DedupeTask, Scanned], workers: int = 1) -> Scanned:
    """Read the windows of the emitted places of a file into segments, unless an earlier run did.

    Raises:
        DataError: The file has changed since it was scanned.
    """
    task, scanned = item
    keys = _Windows(places=places, segments=scanned.segments)
    again = scan_file(task, _selected(places, task), keys, workers=workers, preload=_PRELOAD)
    if again.xxh3 != scanned.xxh3:
        raise _changed(task)
    return again


def _selected(places: Answers, task: DedupeTask) -> str:
    """Return the fingerprint of the windows of a file."""
    return fingerprint(places.whole, task.number, "windows")


def _changed(task: DedupeTask) -> DataError:
    return DataError(
        "the file has changed while it was read", file=task.file.name, kind="changed", fix="Run the command again."
    )


class _Judged(NamedTuple):
    """A block, the number and ids of its rows, and the places of which something was decided: int32[3, n], uint8[n]."""

    block: Block
    rows: int
    ids: bytes
    places: Ints32
    decided: Bytes


@dataclass(slots=True)
class _Windows(HashedKeys):
    """Windows of the emitted places.

    A segment has for each place that is marked or emitted: its ``rows``, ``starts`` and ``ends``, whether it is
    ``marked``, the ``bounds`` of its windows among the keys, and ``characters``; and for each window its ``marks``, or
    ``firsts`` and ``lasts``: see `Texts.windows`.
    """

    places: Answers | None = None
    segments: int = 0

    def feed(self, task: DedupeTask, source: Iterator[Block]) -> Iterator[_Judged]:
        assert self.places is not None
        name = read_names(self.places.work, self.places.whole)[task.number]
        segments = enumerate(answers_of(self.places, name, task.number, self.segments))
        row = total = 0
        for block in source:
            count = block.lines.count(b"\n") + (not block.lines.endswith(b"\n"))
            if row == total:
                number, found = next(segments, (-1, np.empty(0, np.uint8)))
                if number < 0:
                    raise _changed(task)
                a = get_arrays(f"{name}-{number:05d}.units")
                decided = np.empty_like(found)
                decided[a["order"]] = found
                places = np.stack([a["rows"], a["starts"], a["ends"]])[:, decided > 0]
                decided, ids = decided[decided > 0], a["ids"].tobytes().split(b"\n")[:-1]
                row, total = 0, len(ids)
            low, high = np.searchsorted(places[0], [row, row + count]).tolist()
            own = places[:, low:high] - np.array([[row], [0], [0]], np.int32)
            names = b"".join([one + b"\n" for one in ids[row : row + count]])
            yield _Judged(block, count, names, own, decided[low:high])
            row += count
            if row > total:
                raise _changed(task)

    def part(self, task: DedupeTask, item: _Judged) -> Part:
        block, rows, ids, places, decided = item
        lines = rows_of(block.lines) if len(decided) else []
        numbers, texts = np.unique(places[0], return_inverse=True)  # rows without places are not parsed
        parsed = parse_texts(b"".join([lines[n] + b"\n" for n in numbers.tolist()]), task.file.name, block.line)
        text = Texts.of([row.text for row in parsed], task.options, task.file.name)
        if (places[2] > text.sizes[texts]).any():
            raise _changed(task)
        emitted = (decided & EMITTED) != 0
        here = np.stack([texts.astype(np.int32), *places[1:]])
        hashes, found = text.windows(here, emitted)
        bounds = bounds_of(np.where(emitted, places[2] - places[1] - task.options.length + 1, 0))
        arrays = {
            "rows": places[0], "starts": places[1], "ends": places[2], "marked": decided & MARKED,
            "bounds": np.stack([bounds[:-1], bounds[1:]]), **found,
        }  # fmt: skip
        return Part(ids, rows, len(hashes), arrays, hashes)
