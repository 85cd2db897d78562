"""Statistics of documents and attributes: counts, and the distributions of lengths and scores.

The unit of work is a file, or a block of a large file. Results are merged in an order that depends only on the files,
so the report is the same for any number of processes. Memory holds a batch of rows and one `Series` for each
kind of number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from feedmill.curation.documents import Batch, Row
from feedmill.curation.measure import Column, Measured, Measurer, compiled, workers_for
from feedmill.curation.options import Stat
from feedmill.curation.provenance import STALE, check_attributes, check_others
from feedmill.curation.series import Series
from feedmill.documents.file import DocumentFile, once
from feedmill.documents.find import find_documents, skipped_warnings
from feedmill.documents.lines import Block, blocks, read_blocks
from feedmill.errors import DataError, FeedmillError, refuse_empty
from feedmill.formats.documents import rows_of
from feedmill.jobs.engine import Policy, Where, in_units, key_of
from feedmill.jobs.memory import uncollected
from feedmill.jobs.options import verb
from feedmill.jobs.parts import kept_results
from feedmill.jobs.policy import OnError, on_error_policy, skips
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import VerbReport
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import first_to_cut, run
from feedmill.storage import paths_of
from feedmill.structs import unpack_as

MOST_SOURCES = 1000
_PRELOAD = ("feedmill.curation.stat", "feedmill.kernels.text.lengths")
OTHERS = "(others)"
_FIELDS = ("id", "text", "source", "attributes")


@dataclass
class AttributeStats:
    """Statistics of one attribute.

    Attributes:
        rows: number of rows with the attribute; `empty`: of rows without a span; `numbers`: of rows with a single
            number instead of spans.
        score: scores of all spans and single numbers; `length`: lengths of all spans, in the units of the spans.
    """

    rows: int = 0
    empty: int = 0
    numbers: int = 0
    score: Series = field(default_factory=Series)
    length: Series = field(default_factory=Series)

    @property
    def spans(self) -> int:
        """Number of spans of all rows."""
        return self.length.count

    def add(self, column: Column) -> None:
        """Add rows."""
        self.rows += len(column.counts) + len(column.scalars)
        self.empty += int((column.counts == 0).sum())
        self.numbers += len(column.scalars)
        self.score.add(np.concatenate((column.spans[:, 2], column.scalars)))
        self.length.add(column.lengths)

    def merge(self, other: AttributeStats) -> None:
        """Add all rows of another."""
        self.rows, self.empty = self.rows + other.rows, self.empty + other.empty
        self.numbers += other.numbers
        self.score.merge(other.score)
        self.length.merge(other.length)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        counts = {"rows": self.rows, "empty": self.empty, "numbers": self.numbers, "spans": self.spans}
        return {**counts, "score": self.score.as_dict(), "length": self.length.as_dict()}


_State: Any = tuple[
    int,
    list[dict[str, Any]],
    dict[str, int],
    dict[str, tuple[int, int, int, dict[str, Any], dict[str, Any]]],
]
"""`Stats` as plain data."""


@dataclass
class Stats:
    """Statistics of rows.

    Attributes:
        rows: number of rows; `documents`: number of rows with a text.
        characters, bytes, words: distributions over texts; words are separated by white space.
        sources: number of documents per source; sources after the first thousand are counted as others.
        attributes: name -> statistics of the attribute.
    """

    rows: int = 0
    characters: Series = field(default_factory=Series)
    bytes: Series = field(default_factory=Series)
    words: Series = field(default_factory=Series)
    sources: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, AttributeStats] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Number of rows with a text."""
        return self.characters.count

    def add(self, found: Measured) -> None:
        """Add rows."""
        self.rows += found.rows
        if found.texts:
            batch = Batch([Row("", text) for text in found.texts])
            self.characters.add(batch.lengths)
            self.bytes.add([len(text.encode()) for text in found.texts])
            self.words.add(np.diff(batch.words[1]))
            for source in found.sources:
                self._count(source, 1)
        for name, column in found.columns.items():
            self.attributes.setdefault(name, AttributeStats()).add(column)

    def merge(self, other: Stats) -> None:
        """Add all rows of another."""
        self.rows += other.rows
        for name in ("characters", "bytes", "words"):
            getattr(self, name).merge(getattr(other, name))
        for source, count in other.sources.items():
            self._count(source, count)
        for name, attribute in other.attributes.items():
            self.attributes.setdefault(name, AttributeStats()).merge(attribute)

    def _count(self, source: str, count: int) -> None:
        known = source in self.sources or len(self.sources) < MOST_SOURCES
        key = source if known else OTHERS
        self.sources[key] = self.sources.get(key, 0) + count

    @property
    def series(self) -> dict[str, Series]:
        """Return the non-empty distributions by display name."""
        found = {f"document {name}": getattr(self, name) for name in ("characters", "bytes", "words")}
        for name, attribute in self.attributes.items():
            found[f"{name} score"], found[f"{name} length"] = attribute.score, attribute.length
        return {name: series for name, series in found.items() if series.count}


def encoded(stats: Stats) -> bytes:
    """Return all statistics, for another process."""
    attributes = {
        name: [one.rows, one.empty, one.numbers, one.score.as_state(), one.length.as_state()]
        for name, one in stats.attributes.items()
    }
    series = [stats.characters.as_state(), stats.bytes.as_state(), stats.words.as_state()]
    return msgspec.msgpack.encode([stats.rows, series, stats.sources, attributes])


def decoded(data: bytes) -> Stats:
    """Return the statistics of `encoded`. Raises `msgspec.MsgspecError`."""
    rows, series, sources, attributes = unpack_as(data, _State)
    characters, sizes, words = map(Series.of_state, series)
    found = {
        name: AttributeStats(own, empty, numbers, Series.of_state(score), Series.of_state(length))
        for name, (own, empty, numbers, score, length) in attributes.items()
    }
    return Stats(rows, characters, sizes, words, sources, found)


@dataclass
class StatReport(VerbReport):
    """Statistics of files.

    Attributes:
        files, bytes: number of files, and their stored size.
        stats: statistics of all rows.
        failed: the errors of skipped files, which are not counted.
        stale: attribute files that were computed from other documents, if allowed.
    """

    files: int = 0
    bytes: int = 0
    stats: Stats = field(default_factory=Stats)
    stale: int = 0
    warnings: list[str] = field(default_factory=list)
    failed: list[FeedmillError] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self, bins: int = 0) -> dict[str, Any]:
        """Return plain data, for ``--json``; with histograms of `bins` bins unless it is 0."""
        stats = self.stats
        documents = {name: getattr(stats, name).as_dict() for name in ("characters", "bytes", "words")}
        facts = {
            "files": self.files,
            "bytes": self.bytes,
            "rows": stats.rows,
            "documents": {"count": stats.documents, **documents, "sources": stats.sources} if stats.documents else None,
            "attributes": {name: attribute.as_dict() for name, attribute in stats.attributes.items()},
            "stale": self.stale,
            "warnings": self.warnings,
            "failed": [error.as_dict() for error in self.failed],
            "seconds": self.seconds,
        }
        if bins:
            drawn = {name: series.histogram(bins) for name, series in stats.series.items()}
            facts["histograms"] = {name: {"edges": e.tolist(), "counts": c.tolist()} for name, (e, c) in drawn.items()}
        return facts


class StatTask(NamedTuple):
    """Task of one file, as sent to processes."""

    file: DocumentFile
    pattern: str | None
    on_error: OnError


@verb(Stat)
def stat(options: Stat) -> StatReport:
    """Return the statistics of files, whose report can be drawn.

    Raises:
        ConfigError: an option is invalid.
        NotFound: a pattern has no files.
        EmptyResult: there are no rows.
        DataError: a row is neither a document nor attributes (kind ``bad-document``), a file is corrupt, or attributes
            were computed from other documents (``stale-attributes``).
    """
    patterns = paths_of(options.patterns)
    begin = time.perf_counter()
    policy = on_error_policy(options.on_error)
    compiled(options.attributes)
    # The largest first, so that no process is left alone with a large file at the end.
    given = find_documents(patterns, id=options.id)
    files = sorted(once(given.files), key=lambda file: (-file.size, file.name))
    report = StatReport(warnings=skipped_warnings(given))
    files = _current(files, report, policy, options.allow_stale)
    size = sum(file.size for file in files)
    workers = workers_for(size, options.workers)
    with Progress("reading", size, "B", options.progress) as bar:
        tasks = [StatTask(file, options.attributes, policy) for file in files]
        for task, found in zip(tasks, _results(tasks, workers), strict=True):
            bar.advance(task.file.size)
            if isinstance(found, FeedmillError):
                report.failed.append(found)
                continue
            report.files += 1
            report.bytes += task.file.size
            report.stats.merge(found)
    report.seconds = time.perf_counter() - begin
    if not report.failed:
        refuse_empty(report.stats.rows, report.stats.rows, "row", file=", ".join(patterns), allow=options.allow_empty)
    return report


def _current(files: list[DocumentFile], report: StatReport, on_error: OnError, allow_stale: bool) -> list[DocumentFile]:
    """Return the files to count; attributes of other documents are an error, unless they are allowed."""
    found = list(files)

    def refuse(error: DataError, of: list[DocumentFile]) -> None:
        report.stale += len(of) * (error.kind == STALE)
        if allow_stale and error.kind == STALE:
            return
        if not skips(on_error):
            raise error
        report.failed.append(error)
        found[:] = [file for file in found if file not in of]

    sets: dict[str, dict[DocumentFile, DocumentFile]] = {}
    for file in files:
        try:
            made = check_attributes(file.name)
        except DataError as error:
            refuse(error, [file])
            continue
        if made is not None:
            sets.setdefault(made[0], {})[file] = made[1]
    for name, documents in sets.items():
        try:
            warning = check_others([*documents.values()], name)
        except DataError as error:
            refuse(error, [*documents])
            continue
        report.warnings += [warning] if warning else []
    if report.stale and allow_stale:
        report.warnings.append(f"{report.stale} attribute files were computed from other documents (allowed)")
    return found


def _results(tasks: Sequence[StatTask], workers: int | None) -> Iterator[Stats | FeedmillError]:
    """Yield the statistics of each file. A file that would keep one process busy alone is split over all."""
    if in_units():
        yield from _on_engine(tasks, workers)
        return
    count = available_cores() if workers is None else workers
    cut = first_to_cut((task.file.size for task in tasks), count)
    for task in tasks[:cut]:
        yield stat_file(task, count)
    yield from run(stat_file, tasks[cut:], workers=workers, preload=_PRELOAD)


def _on_engine(tasks: Sequence[StatTask], workers: int | None) -> Iterator[Stats | FeedmillError]:
    """Yield the statistics of each file. Parts of a job array leave theirs, but not errors, for the run that ends."""
    key = key_of(*(f"{task.file.identity} {task.pattern} {task.on_error}" for task in tasks))
    with kept_results("stat", key) as work:
        units = None if work is None else work.units
        known = {name: decoded(data) for name, data in ({} if units is None else units.read()).items()}

        def record(found: tuple[int, Stats | FeedmillError]) -> None:
            if units is not None and isinstance(found[1], Stats):
                units.add(str(found[0]), encoded(found[1]))

        todo = [number for number in range(len(tasks)) if str(number) not in known]
        place = None if work is None else work.scratch
        where = Where("counting", key, place, numbers=todo, record=record, lasting=work is not None)
        items = [(number, tasks[number]) for number in todo]
        with closing(run(_stat_unit, items, workers=workers, preload=_PRELOAD, where=where)) as results:
            for number in range(len(tasks)):
                yield known[str(number)] if str(number) in known else next(results)[1]


def _stat_unit(item: tuple[int, StatTask]) -> tuple[int, Stats | FeedmillError]:
    return item[0], stat_file(item[1])


def stat_file(task: StatTask, workers: int = 1) -> Stats | FeedmillError:
    """Return the statistics of one file, computed in this process or split over this many."""
    stats = Stats()
    parts = run(
        _stat_block,
        blocks(read_blocks(task.file, fields=_FIELDS)),
        workers=workers,
        preload=_PRELOAD,
        policy=Policy(shared=task),
    )
    try:
        with uncollected(), closing(parts):
            for part in parts:
                stats.merge(part)
    except FeedmillError as error:
        if not skips(task.on_error):
            raise
        return error
    return stats


def _stat_block(task: StatTask, block: Block) -> Stats:
    wanted = compiled(task.pattern)
    measurer = Measurer(task.file.name, lambda name: wanted is None or wanted.search(name) is not None, block.line)
    stats = Stats()
    with uncollected():
        stats.add(measurer.measure(rows_of(block.lines)))
    return stats
