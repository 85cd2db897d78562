"""Write samples and rows as JSON lines: one file with its index, or one file per file of the source."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from feedmill.converting.facts import Part
from feedmill.converting.fields import Taken, folded, parse_json
from feedmill.converting.job import Done
from feedmill.converting.lines import Line, parse, rows_in
from feedmill.converting.units import Add, Hashed, SampleTarget, Target, Unit, Written, local_piece
from feedmill.converting.values import digest, simple
from feedmill.errors import DataError
from feedmill.formats.documents import rows_of, whole_lines, write_rows
from feedmill.formats.jsonl import index as jsonl
from feedmill.formats.jsonl import splits as jsonl_splits
from feedmill.formats.jsonl.splits import LineSplits, Pieces
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import Sample
from feedmill.samples.encode import encode_json
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.codec import compression, unpacked
from feedmill.storage.window import Window

_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Lines(SampleTarget):
    """Samples as lines of one file.

    Attributes:
        keyed: whether lines have keys.
        parts: the splits of the source, in the order in which they are written.
        changed: columns whose values are declared to change.
    """

    keyed: bool
    parts: Sequence[Part]
    changed: frozenset[str] = frozenset()

    def path(self, unit: Unit) -> str:  # noqa: ARG002
        """See `Target`."""
        return split_url(self.destination)[1]

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`."""

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            row = folded(item[1], self.changed, keyed=self.keyed)
            write((_line_of(row),))
            return (digest("", row),)

        with write_rows(store, path, kind="") as write:
            yield add

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:
        """See `Target`."""
        name = _join(store, self.destination, done)
        offsets = jsonl.write_index(store, name)
        return _with_splits(store, name, self._splits(units, done, offsets) if len(self.parts) > 1 else None)

    def _splits(self, units: Sequence[Unit], done: Sequence[Done], offsets: Int64s) -> LineSplits:
        counts = {part.split or "train": 0 for part in self.parts}
        for each in done:
            counts[units[each.number].what[0] or "train"] += each.samples
        ends = accumulate(counts.values())
        pieces = {name: Pieces([(end - counts[name], end)]) for name, end in zip(counts, ends, strict=True)}
        return LineSplits(len(offsets) - 1, int(offsets[-2]), pieces)

    def digest(self, sample: Sample) -> bytes:
        """See `SampleTarget`."""
        return digest("", parse_json(sample.key, "json", sample.raw("json")))


@dataclass(frozen=True, slots=True)
class LineRows(Target):
    """Rows as lines: in one file, in files named like those of the source, or in numbered files.

    Attributes:
        to: ``jsonl``, ``jsonl.gz`` or ``jsonl.zst``.
        splits: splits of the source to keep, or None.
        stems: names of the outputs without suffixes; if empty, outputs are numbered.
        changed: columns whose values are declared to change.
    """

    to: str
    splits: LineSplits | None = None
    stems: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return f"{self.stems[unit.number] if self.stems else f'part-{unit.number:06d}'}.{self.to}"

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. Rows that were read from lines keep their bytes."""

        def add(item: list[tuple[int, dict[str, Any]]]) -> Sequence[bytes]:
            rows = [
                {name: simple(value) if name in self.changed else value for name, value in row.items()}
                if self.changed and not isinstance(row, Line)
                else row
                for _, row in item
            ]
            write([row.line if isinstance(row, Line) else _line_of(row) for row in rows])
            return [digest("", row) for row in rows]

        with write_rows(store, path, kind=compression(f"x.{self.to}")) as write:
            yield add

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        if not self.piece:
            return [each.path for each in done if each.samples]
        name = _join(store, self.destination, done)
        if self.to != "jsonl":
            return [name]
        offsets = jsonl.write_index(store, name)
        return _with_splits(store, name, None if self.splits is None else self.splits.moved(offsets))

    def read_back(self, written: Written) -> Hashed:
        """See `Target`."""
        rows = self._rows(written)
        while batch := [digest("", row) for row in islice(rows, _BATCH)]:
            yield batch, ()

    def _rows(self, written: Written) -> Iterator[Line]:
        """Yield the rows of an output: a file of lines, or a range of bytes of a joined file."""
        done, _, at = written
        if not self.piece:
            for _, line in rows_in(self.destination, done.path):
                yield parse(line)
            return
        folder, name = split_url(self.destination)
        raw = io.BufferedReader(Window(open_store(folder), name, at, done.size), 1 << 20)
        with unpacked(raw, compression(name), file=self.destination) as stream:
            for lines in whole_lines(stream):
                yield from map(parse, rows_of(lines))

    def record(self, written: Written, number: int) -> str:
        """See `Target`."""
        return f"row {written.first + number}"


def _line_of(row: dict[str, Any]) -> bytes:
    """Return a row as JSON. Raises `DataError` for a value that JSON does not have and that the plan did not name."""
    try:
        return encode_json(row)
    except TypeError as error:
        raise DataError(
            f"a value cannot be stored ({error}), and the plan did not name it",
            kind="changed",
            fix="If the source has changed, run the conversion again with --overwrite. Otherwise, report a bug.",
        ) from None


def _join(store: Store, destination: str, done: Sequence[Done]) -> str:
    """Concatenate chunks to one file, and return its name."""
    _, name = split_url(destination)
    with store.write(name) as out:
        for each in done:
            if each.samples:
                with local_piece(each) as piece, open(piece, "rb") as file:
                    shutil.copyfileobj(file, out, 1 << 20)
    return name


def _with_splits(store: Store, name: str, splits: LineSplits | None) -> list[str]:
    """Write the splits of a file, if any, and return the names of the file, its index and its splits file."""
    if splits is None:
        return [name, jsonl.idx_name(name)]
    jsonl_splits.write_splits(store, name, splits)
    return [name, jsonl.idx_name(name), jsonl_splits.splits_name(name)]
