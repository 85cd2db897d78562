"""The lineage of an output: a small file beside it that says from which row of which input each of its rows came.

Layout, all numbers little-endian::

    magic       8 bytes, "FMLINE1\\n"
    header      u32 length, then JSON: `Header`
    groups, gaps, lengths
                runs of rows, see below
    sequences   for outputs of sequences of one length: a varint for each document, 2 * (sequences that end in it)
                + (1 if one ends with it). Otherwise empty.
    hash        u64, xxh3 of everything before

It takes at most two bytes for a row, whether a filter keeps one row of a thousand or nearly all; a few hundred bytes if
all rows were kept in order. A random order takes the bytes that its numbers have. Rows count from 0: lines, rows of
columns, or documents of token files.

The file is ``<output>.feedmill.lineage`` for token files. For lines it is in the hidden folder of
`feedmill.documents.file`. A verb removes it before it replaces its output, and writes it before the record
that the output is finished: an output has its own lineage, or none.

Origins of rows as runs: neighbors in an output that are neighbors in an input are one run.

A filter keeps most rows in their order, so runs and the gaps between them are short numbers. They are stored as LEB128
varints, without a general compressor, whose bytes could differ between machines:

    groups    for each group of successive runs of one file: the difference to the last file (zigzag), and the runs
    gaps      for each run: 2 * zigzag(its first row - the end of the last run of the group) + (1 if it has two rows
              or more)
    lengths   for each run of two rows or more: its rows - 2
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.file import RecordFolder, beside, inside, kind_of
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.documents import DOCUMENTS
from feedmill.formats.tokens.manifest import LINEAGE
from feedmill.storage import Store, canonical_location, join_url, open_store, split_url
from feedmill.structs import decode_as

HIDDEN = ".lineage"
"""Suffix in the hidden folder of documents."""
_MAGIC = b"FMLINE1\n"
_TOGETHER = 1 << 18
"""Runs that are encoded at once."""
_LENGTH = struct.Struct("<I")
_HASH = struct.Struct("<Q")


class Input(msgspec.Struct, frozen=True):
    """A file that an output was made from.

    Attributes:
        path: its path relative to the folder of the output; its URL, if it is in another store.
        size: bytes, to notice that it has changed.
    """

    path: str
    size: int


class Header(msgspec.Struct, frozen=True):
    """Header of a lineage.

    Attributes:
        verb: the verb that wrote the output.
        rows: rows of the output, or its sequences.
        documents: documents that were read into it: its rows, except for sequences.
        size: bytes of the output, to notice that another program replaced it.
        parts: bytes of groups, gaps, lengths and sequences.
        options: what the verb did, if that cannot be seen from its record.
    """

    verb: str
    rows: int
    documents: int
    size: int
    parts: tuple[int, int, int, int]
    inputs: list[Input]
    options: dict[str, Any] = {}


@dataclass(frozen=True)
class Lineage:
    """Origin of each row of one output.

    Attributes:
        output: path or URL of the output.
        header, runs: see the module.
        first_last: for outputs of sequences, the first and the last sequence of each document, int64[documents] both.
    """

    output: str
    header: Header
    runs: Runs
    first_last: tuple[Int64s, Int64s] | None = None

    @cached_property
    def inputs(self) -> list[str]:
        """Paths or URLs of the inputs."""
        folder = canonical_location(split_url(self.output)[0])
        return [join_url(folder, one.path) for one in self.header.inputs]

    def origins(self, row: int) -> list[tuple[int, int]]:
        """Return (input, row in it) of a row; of all its documents for a sequence. Raises NotFound without the row."""
        if not 0 <= row < self.header.rows:
            raise NotFound(f"there is no row {row:,} of {self.header.rows:,}", file=self.output, kind="no-such-sample")
        documents = np.array([row], np.int64)
        if self.first_last is not None:
            first, last = self.first_last
            documents = np.flatnonzero((first <= row) & (row <= last))
        file, rows = self.runs.origins(documents)
        return list(zip(file.tolist(), rows.tolist(), strict=True))

    def found(self, file: int, row: int) -> list[int]:
        """Return the rows made from a row of an input; none if it was dropped."""
        documents = self.runs.found(file, row)
        if self.first_last is None:
            return [int(document) for document in documents]
        first, last = (ends[documents].tolist() for ends in self.first_last)
        spans = (range(low, min(high, self.header.rows - 1) + 1) for low, high in zip(first, last, strict=True))
        return sorted({sequence for span in spans for sequence in span})


class Origins:
    """Collects the origins of the rows of one output, and encodes its lineage. Memory holds what is encoded.

    Args:
        verb: the verb that writes the output.
        options: see `Header`.
    """

    def __init__(self, verb: str, options: dict[str, Any] | None = None) -> None:
        self._verb, self._options = verb, options or {}
        self._numbers: dict[str, int] = {}
        self._inputs: list[tuple[str, int]] = []
        self._waiting: list[Runs] = []
        self._parts: list[Encoded] = []
        self._last = self._rows = 0

    def number(self, url: str, size: int) -> int:
        """Return the number of an input of this many bytes, which is added when it is new."""
        if url not in self._numbers:
            self._numbers[url] = len(self._inputs)
            self._inputs.append((url, size))
        return self._numbers[url]

    @property
    def rows(self) -> int:
        """Number of rows that were added."""
        return self._rows + sum(runs.rows for runs in self._waiting)

    def add(self, runs: Runs) -> None:
        """Append rows of the output; files are numbers of `number`."""
        self._waiting.append(runs)
        if sum(len(one.file) for one in self._waiting) > 2 * _TOGETHER:
            self._encode(_TOGETHER)

    def _encode(self, least: int) -> None:
        """Encode the runs that wait, `_TOGETHER` at once, so that the bytes do not depend on how they were added."""
        runs = joined(self._waiting)
        while len(runs.file) > least:
            first = Runs(*(column[:_TOGETHER] for column in runs))
            runs = Runs(*(column[_TOGETHER:] for column in runs))
            self._parts.append(encode_runs(first, self._last))
            self._last, self._rows = int(first.file[-1]), self._rows + first.rows
        self._waiting = [runs]

    def reorder(self, order: Sequence[int]) -> None:
        """Put the rows into another order: row n becomes what was row ``order[n]``."""
        self._encode(0)
        runs = decode_runs(*map(b"".join, zip(*self._parts, strict=True))) if self._parts else joined([])
        self._parts, self._last, self._rows = [], 0, 0
        self._waiting = [Runs.of(*runs.origins(np.asarray(order, np.int64)))]

    def encoded(self, output: str, size: int, sequences: tuple[int, Int64s] | None = None) -> bytes:
        """Return the bytes of the lineage.

        Args:
            output: path or URL of the output.
            size: its bytes.
            sequences: for outputs of sequences, their number, and the sequences of each document as in the layout.
        """
        self._encode(0)
        parts = [b"".join(part[kind] for part in self._parts) for kind in range(3)]
        parts.append(b"" if sequences is None else encode(sequences[1]))
        folder = canonical_location(split_url(output)[0])
        inputs = [Input(_relative(url, folder), size) for url, size in self._inputs]
        sizes = tuple(map(len, parts))
        rows = self._rows if sequences is None else sequences[0]
        header = Header(self._verb, rows, self._rows, size, sizes, inputs, self._options)  # type: ignore[arg-type]
        head = msgspec.json.encode(header)
        data = b"".join((_MAGIC, _LENGTH.pack(len(head)), head, *parts))
        return data + _HASH.pack(xxhash.xxh3_64_intdigest(data))


def _relative(url: str, folder: str) -> str:
    """Return a path relative to a folder, with links of folders resolved; a URL of another store stays whole."""
    base, name = split_url(url)
    path = f"{canonical_location(base)}/{name}"
    if ("://" in path or "://" in folder) and path.split("/")[:3] != folder.split("/")[:3]:
        return path
    return os.path.relpath(path, folder)


def lineage_path(path: str) -> str:
    """Return the path of the lineage of a token file."""
    return path + LINEAGE


def lineage_of(output: str) -> tuple[Store, str]:
    """Return the store and the path of the lineage of an output: beside token files, hidden for lines."""
    folder, name = split_url(output)
    if kind_of(name) is None:
        return open_store(folder), lineage_path(name)
    place = beside(folder) or inside(folder)
    return place.store, hidden(place, name)


def _places(output: str) -> Iterator[tuple[Store, str]]:
    """Yield where the lineage of an output can lie."""
    folder, name = split_url(output)
    yield open_store(folder), lineage_path(name)
    parts = output.split("/")
    tops = [folder]  # of outputs, as the verb was given it
    if DOCUMENTS in parts[:-1]:
        at = max(n for n, part in enumerate(parts[:-1]) if part == DOCUMENTS)
        tops.append("/".join(parts[:at]) or ("/" if output.startswith("/") else "."))
    for top in tops:
        below = output.removeprefix(top.rstrip("/") + "/") if top != "." else output
        yield from ((place.store, place.path(below, HIDDEN)) for place in (beside(top), inside(top)) if place)


def hidden(place: RecordFolder, output: str) -> str:
    """Return the path of the lineage of an output in its place."""
    return place.path(output, HIDDEN)


def read_lineage(output: str) -> Lineage | None:
    """Return the lineage of a file; None if it has none: a raw file, or one that another program wrote.

    Raises:
        DataError: the lineage is corrupt, or the file is no longer the one that it describes.
    """
    for store, path in _places(output):
        try:
            data = store.read(path)
        except (NotFound, ConfigError):
            continue
        found = decoded(data, output, store.locate(path))
        folder, name = split_url(output)
        size = open_store(folder).stat(name).size
        if size != found.header.size:
            raise DataError(
                f"it has {size:,} bytes, but {found.header.size:,} when 'feedmill {found.header.verb}' wrote it:"
                f" its lineage {store.locate(path)} does not describe it",
                file=output,
                kind="changed",
                fix="Write it again with Feedmill, or delete the lineage.",
            )
        return found
    return None


def decoded(data: bytes, output: str, file: str) -> Lineage:
    """Return a lineage from its bytes; `file` is its path for errors. Raises DataError."""
    try:
        if len(data) < len(_MAGIC) + _LENGTH.size + _HASH.size:
            raise ValueError(f"it has {len(data)} bytes")
        body, (digest,) = memoryview(data)[: -_HASH.size], _HASH.unpack(data[-_HASH.size :])
        if data[: len(_MAGIC)] != _MAGIC or xxhash.xxh3_64_intdigest(body) != digest:
            raise ValueError("its hash differs")
        at = len(_MAGIC) + _LENGTH.size
        (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
        header = decode_as(data[at : at + length], Header)
        at, parts = at + length, []
        for size in header.parts:
            parts.append(data[at : at + size])
            at += size
        runs = decode_runs(parts[0], parts[1], parts[2])
        if runs.rows != header.documents or (runs.file >= len(header.inputs)).any():
            raise ValueError("its rows or inputs differ from its header")
        return Lineage(output, header, runs, _first_last(decode(parts[3])) if parts[3] else None)
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise DataError(
            f"the lineage is corrupt ({error})",
            file=file,
            kind="bad-lineage",
            fix="Delete it, or write its output again.",
        ) from None


def sequences_of(lengths: Iterable[Int64s], size: int) -> Int64s:
    """Return the sequences of each document, as in the layout, for documents that are cut into sequences.

    Args:
        lengths: tokens of the documents, int64[n] for each batch.
        size: tokens of a sequence.
    """
    out, before = [np.zeros(0, np.int64)], 0
    for batch in lengths:
        ends = before + np.cumsum(batch)
        whole = ends // size
        out.append(2 * np.diff(whole, prepend=before // size) + (ends % size == 0))
        before = int(ends[-1]) if len(ends) else before
    return np.concatenate(out)


def _first_last(sequences: Int64s) -> tuple[Int64s, Int64s]:
    ended = np.cumsum(sequences >> 1)
    return ended - (sequences >> 1), ended - (sequences & 1)


Int64s = npt.NDArray[np.int64]
Encoded = tuple[bytes, bytes, bytes]
"""Groups, gaps and lengths."""


class Runs(NamedTuple):
    """Runs of rows, in the order of the output; int64[runs] each.

    Attributes:
        file: number of the input.
        start: first row in the input, from 0.
        length: number of rows.
    """

    file: Int64s
    start: Int64s
    length: Int64s

    @classmethod
    def of(cls, file: int | Int64s, rows: Sequence[int] | Int64s) -> Runs:
        """Return the runs of these rows of a file, or of the files `file`, int64[rows]."""
        start = np.asarray(rows, np.int64)
        files = np.broadcast_to(np.asarray(file, np.int64), start.shape)
        return _joined(cls(files, start, np.ones(len(start), np.int64)))

    @classmethod
    def whole(cls, file: int, rows: int) -> Runs:
        """Return the single run of a file from which every row was taken."""
        count = int(rows > 0)
        return cls(*(np.full(count, value, np.int64) for value in (file, 0, rows)))

    @property
    def ends(self) -> Int64s:
        """Number of rows of the output up to the end of each run, int64[runs]."""
        return np.cumsum(self.length)

    @property
    def rows(self) -> int:
        """Number of rows of the output."""
        return int(self.length.sum())

    def origins(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the file and the row in it of each of these rows of the output. Raises IndexError."""
        ends = self.ends
        run = np.searchsorted(ends, rows, side="right")
        return self.file[run], self.start[run] + rows - (ends[run] - self.length[run])

    def found(self, file: int, row: int) -> Int64s:
        """Return the rows of the output that came from a row of a file; none if it was dropped, several if repeated."""
        run = np.flatnonzero((self.file == file) & (self.start <= row) & (row < self.start + self.length))
        return self.ends[run] - self.length[run] + row - self.start[run]

    def part(self, first: int, last: int) -> Runs:
        """Return the runs of rows [first, last) of the output."""
        ends = self.ends
        low, high = np.maximum(ends - self.length, first), np.minimum(ends, last)
        kept = np.flatnonzero(low < high)
        return Runs(self.file[kept], (self.start + low - (ends - self.length))[kept], (high - low)[kept])


def joined(parts: Iterable[Runs]) -> Runs:
    """Return the runs of several parts of an output, one after another."""
    several = list(parts)
    if not several:
        return Runs(*(np.zeros(0, np.int64) for _ in range(3)))
    return _joined(Runs(*(np.concatenate(columns) for columns in zip(*several, strict=True))))


def _joined(runs: Runs) -> Runs:
    """Return the runs with neighbors joined."""
    file, start, length = runs
    if not len(file):
        return runs
    breaks = (file[1:] != file[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    return Runs(file[first], start[first], np.add.reduceat(length, first))


def encode_runs(runs: Runs, last: int = 0) -> Encoded:
    """Return groups, gaps and lengths; see the module.

    Args:
        last: the file of the last run before these, so that encoded parts can be concatenated.
    """
    file, start, length = runs
    new = np.ones(len(file), np.bool_)
    new[1:] = file[1:] != file[:-1]
    first = np.flatnonzero(new)
    counts = np.diff(np.append(first, len(file)))
    groups = np.stack([_zigzag(np.diff(file[first], prepend=last)), counts], axis=1).ravel()
    before = np.zeros(len(file), np.int64)
    before[1:] = (start + length)[:-1]
    before[new] = 0
    several = length > 1
    return encode(groups), encode(2 * _zigzag(start - before) + several), encode(length[several] - 2)


def decode_runs(groups: bytes, gaps: bytes, lengths: bytes) -> Runs:
    """Return the runs. Raises ValueError if the parts do not belong together."""
    pairs, found, more = decode(groups).reshape(-1, 2), decode(gaps), decode(lengths)
    several = (found & 1).astype(np.bool_)
    counts = pairs[:, 1]
    if counts.sum() != len(found) or several.sum() != len(more) or (counts < 1).any():
        raise ValueError("the numbers of runs differ")
    length = np.ones(len(found), np.int64)
    length[several] = more + 2
    # Within a group, the start is the sum of all gaps and lengths before.
    steps = _unzigzag(found >> 1)
    total = np.cumsum(steps + length) - length
    first = np.cumsum(counts) - counts
    base = np.repeat((total - steps)[first], counts) if len(found) else total
    return Runs(np.repeat(np.cumsum(_unzigzag(pairs[:, 0])), counts), total - base, length)


def _zigzag(values: Int64s) -> Int64s:
    return (values << 1) ^ (values >> 63)


def _unzigzag(values: Int64s) -> Int64s:
    return (values >> 1) ^ -(values & 1)


def encode(values: Int64s) -> bytes:
    """Return numbers, int64[n] from 0, as LEB128 varints: seven bits in each byte, the lowest first."""
    values = np.asarray(values, np.int64)
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 63, 7):
        sizes += values >> bits > 0
    out = np.empty(int(sizes.sum()), np.uint8)
    places = np.cumsum(sizes) - sizes
    for byte in range(int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > byte)
        more = (sizes[longer] > byte + 1).astype(np.int64) << 7
        out[places[longer] + byte] = values[longer] >> (7 * byte) & 0x7F | more
    return out.tobytes()


def decode(data: bytes) -> Int64s:
    """Return the numbers of LEB128 varints, int64[n]. Raises ValueError if one is truncated or too long."""
    found = np.frombuffer(data, np.uint8)
    if not len(found):
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(found < 0x80)
    if not len(ends) or ends[-1] != len(found) - 1:
        raise ValueError("truncated")
    sizes = np.diff(ends, prepend=-1)
    if sizes.max() > 9:
        raise ValueError("a number has more than 63 bits")
    first = ends - sizes + 1
    shifts = 7 * (np.arange(len(found)) - np.repeat(first, sizes))
    return np.add.reduceat((found & 0x7F).astype(np.int64) << shifts, first)
