"""Write documents: each unit of work reads some files and writes shards of JSON lines.

Units and shards depend only on the files and options. On a local disk all shards are published together at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra
from feedmill.formats.documents import DOCUMENTS, write_lines
from feedmill.importing.layouts import from_columns, to_columns
from feedmill.importing.report import ImportReport
from feedmill.importing.rows import Reading, Row, read_documents, reason_of
from feedmill.importing.scanning import File, Files
from feedmill.jobs.dry_run import active
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import LeftOut
from feedmill.jobs.work import tidy
from feedmill.storage import Store, open_store
from feedmill.storage.base import refuse_non_utf8
from feedmill.structs import decode_as
from feedmill.writing.shard import cut
from feedmill.writing.work import OutputWork, finish_units

LEFT_OUT = ".feedmill/left_out.jsonl"
"""File in the output that names everything that was left out."""
MODULES = (__name__,)
"""What workers import."""
_BUFFER = 4 << 20
_UNIT_BYTES = 64 << 20
"""Bytes of files in a unit: it writes one shard of about this size, or several if a file is larger."""
_MOST_FILES = 100_000
_MOST_ROWS = 100
"""Number of rows that are named for each reason and unit."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Shared:
    """What every worker needs: the files' roots, where to write, and options."""

    roots: list[str]
    prefixes: list[str]
    place: Store
    suffix: str
    most: int
    reading: Reading


class Unit(NamedTuple):
    """A unit of work: its number and files."""

    number: int
    files: list[File]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _unit, (self.number, *to_columns(self.files))


def _unit(number: int, count: int, columns: list[Any]) -> Unit:
    return Unit(number, list(from_columns(File, count, columns)))


class Written(msgspec.Struct):
    """The facts of a unit: its number, shards and their sizes, documents, and what was left out."""

    number: int
    shards: list[tuple[str, int]]
    documents: int
    files: int
    bytes: int
    counts: dict[str, int]
    names: dict[str, list[str]]
    encodings: dict[str, int] = {}


def write_documents(
    out: str,
    files: Files,
    identity: dict[str, Any],
    report: ImportReport,
    *,
    reading: Reading,
    suffix: str,
    most: int,
    overwrite: bool,
    workers: int | None,
    progress: bool,
) -> None:
    """Write the documents of all files below ``documents/`` of the output, and complete the report.

    Args:
        suffix: of the shards, such as ``.jsonl.zst``.
        most: maximum size of a shard in bytes, before compression.

    Raises:
        ConfigError: the output exists, or the name of a source is not UTF-8.
        DataError: no document was found.
    """
    refuse_non_utf8(*(root.rpartition("/")[2] for root in files.roots))  # the documents' `source`
    target = open_store(out)
    with OutputWork(target) as work:
        work.begin(identity, replaced=_replaceable(target, work, identity, overwrite=overwrite))
        if (dry := active()) is not None:
            dry.writes(target, f"{DOCUMENTS}/")
            return
        report.files = 0  # counted again as documents are written
        if work.roll_forward():
            _complete(report, map(_decode, work.units.read().values()))
            work.finish()
            return
        place = work.staging if target.is_local else target
        if not target.is_local:
            work.clear_away()
        shared = Shared(files.roots, files.prefixes, place, suffix, most, reading)
        try:
            found = _run(work, shared, files.files, report, workers=workers, progress=progress)
        except BaseException:
            work.abandon(keep=work.units.exist)
            raise
        _complete(report, found)
        if not report.samples:
            work.finish()
            raise empty(report)
        write_left_out(place, report.left_out)
        if target.is_local:
            paths = [path for written in found for path, _ in written.shards]
            work.publish_staged([*paths, LEFT_OUT] if report.left_out else paths)
        work.finish()


def _run(
    work: OutputWork,
    shared: Shared,
    files: Sequence[File],
    report: ImportReport,
    *,
    workers: int | None,
    progress: bool,
) -> list[Written]:
    """Run the units that are not finished, and return the facts of all."""
    units = list(_units(files, shared.most))
    known = map(_decode, work.units.read().values())
    done = {written.number: written for written in known if _intact(shared.place, written)}
    report.reused = sum(len(written.shards) for written in done.values())
    steps = [sum(file.size for file in unit.files) for unit in units]

    def record(written: Written) -> None:
        work.units.add(str(written.number), msgspec.json.encode(written))

    options: dict[str, Any] = {"shared": shared, "workers": workers, "preload": MODULES}
    with Progress("importing", sum(steps), "B", enabled=progress) as bar:
        made = finish_units(_write, units, done, record=record, bar=bar, steps=steps, **options)
        with closing(made):
            return list(made)


def _replaceable(target: Store, work: OutputWork, identity: dict[str, Any], *, overwrite: bool) -> list[str]:
    """Return the files of an earlier import that the new one replaces. Raises `ConfigError` if the output exists."""
    if work.is_of(identity):
        return []  # they are recorded
    try:
        paths = [entry.path for entry in target.files()]
    except LookupError:
        paths = []
    others = [path for path in paths if not path.startswith(f"{DOCUMENTS}/")]
    if paths and (others or not overwrite):
        work.close()
        tidy(target)
        raise ConfigError(
            f"the output is not empty: it has for example {(others or paths)[0]!r}",
            file=target.url,
            kind="exists",
            fix="Import to another folder." if others else "Import to another folder, or replace it with --overwrite.",
        )
    return paths


def _units(files: Sequence[File], most: int) -> Iterator[Unit]:
    """Yield units of whole files."""
    sizes = np.fromiter((file.size for file in files), np.int64, len(files))
    ends = cut(len(files), sizes, _MOST_FILES, min(most, _UNIT_BYTES))
    for number, (begin, end) in enumerate(pairwise(ends)):
        yield Unit(number, [*files[begin:end]])


def _encode_texts(document: dict[str, Any]) -> bytes:
    """Return the line of a document that has only texts: the bytes of `_encode`, in a quarter of its time."""
    try:
        return orjson.dumps(document)
    except TypeError:
        return _encode(document)  # raises the right error


def _decode(facts: bytes) -> Written:
    return decode_as(facts, Written)


def _intact(place: Store, written: Written) -> bool:
    entries = place.entries([path for path, _ in written.shards])
    return all(e is not None and e.size == size for e, (_, size) in zip(entries, written.shards, strict=True))


def _complete(report: ImportReport, units: Iterable[Written]) -> None:
    report.samples = 0
    for written in units:
        report.samples += written.documents
        report.files += written.files
        report.outputs += len(written.shards)
        report.bytes += sum(size for _, size in written.shards)
        report.left_out.merge(written.counts, written.names)
        report.encodings.update(written.encodings)


def empty(report: ImportReport) -> DataError:
    """Return the error for an import without a result."""
    why = "; ".join(report.left_out.lines()[:5])
    return DataError(
        f"nothing to import{f': left out {why}' if why else ': there are no files'}",
        file=report.path,
        kind="empty-result",
        fix="Check the source and --type, --include and --exclude.",
    )


def write_left_out(store: Store, left: LeftOut) -> None:
    """Write the names of everything that was left out, if there is anything."""
    if left:
        lines = (orjson.dumps({"name": n, "reason": reason}) for reason, names in left.names.items() for n in names)
        store.write_bytes(LEFT_OUT, b"".join(line + b"\n" for line in lines))


def _write(shared: Shared, unit: Unit) -> Written:
    """Write the documents of a unit."""
    left = LeftOut()
    reading = replace(shared.reading, used=Counter())
    stores = [open_store(root) for root in shared.roots]
    with _Shards(shared, unit.number) as shards:
        read = 0
        for file in unit.files:
            name = shared.prefixes[file.root] + file.path
            if not file.size:
                left.add("an empty file", name)
                continue
            before, rows = shards.documents, len(left)
            try:
                for found in read_documents(stores[file.root], shared.prefixes[file.root], file, reading):
                    if isinstance(found, Row):
                        left.add(found.reason, f"{name}:{found.number}", most=_MOST_ROWS)
                    else:
                        shards.add(found)
            except (ConfigError, MissingExtra):
                raise
            except FeedmillError as error:
                partly = " (after its first rows)" if shards.documents > before else ""
                left.add(reason_of(error) + partly, name)
            if shards.documents == before and len(left) == rows:
                left.add("a table without rows", name)
            read += shards.documents > before
    sizes = [(path, shared.place.stat(path).size) for path in shards.paths]
    return Written(
        unit.number,
        sizes,
        shards.documents,
        read,
        sum(f.size for f in unit.files),
        left.counts,
        left.names,
        reading.used,
    )


class _Shards:
    """The shards of a unit: a context manager that publishes the last one."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared, self._number = shared, number
        self.paths: list[str] = []
        self.documents = 0
        self._stack = ExitStack()
        self._append: Callable[[bytes], object] | None = None
        self._lines: list[bytes] = []
        self._buffered = self._size = 0

    def add(self, document: dict[str, Any]) -> None:
        """Append one document."""
        line = _encode(document) if "row" in document["metadata"] else _encode_texts(document)
        if self._size and self._size + len(line) + 1 > self._shared.most:
            self._close()
        self._lines.append(line)
        self._size += len(line) + 1
        self._buffered += len(line) + 1
        self.documents += 1
        if self._buffered >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            if self._append is None:
                further = f"-{len(self.paths)}" if self.paths else ""
                path = f"{DOCUMENTS}/{self._number:06d}{further}{self._shared.suffix}"
                self._append = self._stack.enter_context(write_lines(self._shared.place, path))
                self.paths.append(path)
            self._lines.append(b"")
            self._append(b"\n".join(self._lines))
            self._lines.clear()
            self._buffered = 0

    def _close(self) -> None:
        self._flush()
        self._stack.close()
        self._append, self._size = None, 0

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._flush()
        self._stack.__exit__(kind, error, trace)
