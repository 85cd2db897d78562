"""Pieces: files with the tokens of one unit of work, written atomically.

    tokens    u16 or u32 each
    lengths   u32 for each document
    loss      the loss mask, one bit per token, if any; or marks of the first tokens of sentences
    origins   JSON: [id, line] of each document, if kept
    facts     JSON: `PieceFacts`
    trailer   u64 bytes of facts, 16 bytes xxh3-128 of everything before it, "FMPIECE1"

All numbers are little-endian. A piece is written under a temporary name and renamed. It is synced to the disk before
only if other machines read it. Otherwise a later run that reuses it compares the hash. In an object store it is one
object, which is always whole.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.lineage.runs import Encoded
from feedmill.errors import NotFound
from feedmill.jobs.unit_files import stored, write_unit
from feedmill.storage import Store
from feedmill.storage.os_errors import storage_error
from feedmill.tokens.encode import Encodings

_TRAILER = struct.Struct("<Q16s8s")
_MAGIC = b"FMPIECE1"
_TAIL = 1 << 16  # facts are rarely longer
_CHUNK = 1 << 20  # small enough to stay in the cache between reading and writing
SUFFIX = ".piece"


class PieceFacts(msgspec.Struct):
    """Facts about a piece and its unit.

    Attributes:
        lines, blank: numbers of lines or rows of the unit, and of blank ones.
        ends: for several units, the row at which each but the last ends, counted over all of them.
        rows: rows of the documents, from 0, encoded by `feedmill.documents.lineage.runs`.
        synced: whether the piece was synced to the disk before it got its name, so that it is whole.
        empty: number of documents skipped because their text is white space.
        bytes: bytes of the input.
        learned: number of tokens that contribute to the loss, if there is a mask.
        checks: what checks found in valid documents: name -> number of documents, and the row of the first (from 0).
        bad: number of skipped invalid documents; `examples`: (row from 0, reason) of the first hundred.
    """

    documents: int = 0
    tokens: int = 0
    lines: int = 0
    blank: int = 0
    bytes: int = 0
    bad: int = 0
    examples: list[tuple[int, str]] = []
    dtype: str = "<u2"
    loss: bool = False
    origins: bool = False
    empty: int = 0
    ends: list[int] = []
    rows: Encoded = (b"", b"", b"")
    synced: bool = False
    learned: int = 0
    checks: dict[str, tuple[int, int]] = {}


class Documents(NamedTuple):
    """Documents of a piece, as `TokenWriter.add` takes them; origins are (id or None, row in the piece from 0)."""

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]
    loss: npt.NDArray[np.bool_] | None
    origins: list[tuple[Any, int]] | None


class PieceWriter:
    """Writer of one piece; created by `write_piece`."""

    def __init__(self, out: BinaryIO, facts: PieceFacts) -> None:
        self._out, self.facts, self._hash = out, facts, xxhash.xxh3_128()
        self._lengths: list[npt.NDArray[Any]] = []
        self._loss: list[npt.NDArray[np.bool_]] = []
        self._origins: list[tuple[Any, int]] = []

    def add(self, documents: tuple[Encodings, list[tuple[Any, int]] | None]) -> None:
        """Append documents, with the id and line of each if these are kept."""
        found, origins = documents
        self._write(found.data)
        self._lengths.append(found.lengths.astype("<u4"))
        self.facts.documents += len(found.lengths)
        self.facts.tokens += len(found.data) // np.dtype(self.facts.dtype).itemsize
        if found.loss is not None:
            self._loss.append(found.loss)
            self.facts.learned += int(np.count_nonzero(found.loss))
        if origins is not None:
            self._origins += origins

    def finish(self) -> None:
        """Write the sections after the tokens."""
        for lengths in self._lengths:
            self._write(lengths.tobytes())
        if self.facts.loss:
            self._write(np.packbits(np.concatenate(self._loss) if self._loss else np.zeros(0, np.bool_)).tobytes())
        origins = msgspec.json.encode(self._origins) if self.facts.origins else b""
        self._write(origins)
        facts = msgspec.json.encode(self.facts)
        self._write(facts)
        self._out.write(_TRAILER.pack(len(facts), self._hash.digest(), _MAGIC))

    def _write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._out.write(data)


@contextlib.contextmanager
def write_piece(path: str, facts: PieceFacts) -> Iterator[PieceWriter]:
    """Return a context that writes a piece and publishes it if the block ends without an error. Raises StorageError.

    Args:
        path: path or URL.
    """
    with write_unit(path, facts.synced) as out:
        writer = PieceWriter(out, facts)
        yield writer
        writer.finish()


def find_piece(path: str) -> PieceFacts | None:
    """Return the facts of a piece of an earlier run; None if there is none, or it is incomplete."""
    remote = stored(path)
    if remote is not None:
        return _find_object(*remote)
    try:
        with open(path, "rb", buffering=0) as raw:
            size = os.fstat(raw.fileno()).st_size
            digest, left = xxhash.xxh3_128(), size - _TRAILER.size
            raw.seek(left)
            length, wanted, magic = _TRAILER.unpack(raw.read(_TRAILER.size))
            if magic != _MAGIC:
                return None
            facts = _facts(raw, size, length)
            if facts.synced:
                return facts
            raw.seek(0)
            while left > 0 and (chunk := raw.read(min(_CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
            return None if left or wanted != digest.digest() else facts
    except (OSError, struct.error, msgspec.MsgspecError):
        return None


def _find_object(store: Store, name: str) -> PieceFacts | None:
    try:
        size = store.stat(name).size
        begin = max(0, size - _TAIL)
        tail = store.read(name, begin, size - begin)
        length, _, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
        if magic != _MAGIC or length + _TRAILER.size > size:
            return None
        if length + _TRAILER.size > len(tail):
            tail = store.read(name, size - _TRAILER.size - length, length + _TRAILER.size)
        return msgspec.json.decode(tail[-_TRAILER.size - length : -_TRAILER.size], type=PieceFacts)
    except (NotFound, struct.error, msgspec.MsgspecError):
        return None


@contextlib.contextmanager
def _local(path: str) -> Iterator[str]:
    """Yield the path of a piece on this machine: of a copy, if it is in an object store."""
    remote = stored(path)
    if remote is None:
        yield path
        return
    with remote[0].local_copy(remote[1]) as copy:
        yield str(copy)


def _facts(raw: BinaryIO, size: int, length: int) -> PieceFacts:
    raw.seek(size - _TRAILER.size - length)
    return msgspec.json.decode(raw.read(length), type=PieceFacts)


def read_piece(path: str, first: int = 0, last: int | None = None) -> Iterator[Documents]:
    """Yield the documents of a piece in batches: those from `first` to `last` if given. Raises StorageError."""
    try:
        with _local(path) as copy, open(copy, "rb") as raw:
            facts, end = _opened(raw)
            yield from _documents(raw, facts, end, first, facts.documents if last is None else last)
    except OSError as error:
        raise storage_error(error, path) from None


def read_lengths(path: str) -> npt.NDArray[np.int64]:
    """Return the tokens of each document of a piece, int64[n]. Raises StorageError."""
    try:
        with _local(path) as copy, open(copy, "rb") as raw:
            return _lengths(raw, _opened(raw)[0])
    except OSError as error:
        raise storage_error(error, path) from None


def _opened(raw: BinaryIO) -> tuple[PieceFacts, int]:
    """Return the facts of an open piece, and where they begin."""
    size = os.fstat(raw.fileno()).st_size
    raw.seek(size - _TRAILER.size)
    length, _, _ = _TRAILER.unpack(raw.read(_TRAILER.size))
    return _facts(raw, size, length), size - _TRAILER.size - length


def _lengths(raw: BinaryIO, facts: PieceFacts) -> npt.NDArray[np.int64]:
    raw.seek(facts.tokens * np.dtype(facts.dtype).itemsize)
    return np.frombuffer(raw.read(4 * facts.documents), "<u4").astype(np.int64)


def _documents(raw: BinaryIO, facts: PieceFacts, end: int, first: int, until: int) -> Iterator[Documents]:
    kind = np.dtype(facts.dtype)
    lengths = _lengths(raw, facts)
    loss, origins = None, None
    if facts.loss:
        bits = np.frombuffer(raw.read(-(-facts.tokens // 8)), np.uint8)
        loss = np.unpackbits(bits, count=facts.tokens).astype(np.bool_)
    if facts.origins:
        origins = [(key, line) for key, line in msgspec.json.decode(raw.read(end - raw.tell()))]
    ends = np.cumsum(lengths)
    begin = int(ends[first - 1]) if first else 0
    raw.seek(begin * kind.itemsize)
    while first < until:  # whole documents, about a chunk of tokens at a time
        last = max(first + 1, int(np.searchsorted(ends, begin + _CHUNK // kind.itemsize, side="right")))
        last = min(last, until)
        stop = int(ends[last - 1])
        tokens = np.frombuffer(raw.read((stop - begin) * kind.itemsize), kind)
        yield Documents(
            tokens,
            lengths[first:last],
            None if loss is None else loss[begin:stop],
            None if origins is None else origins[first:last],
        )
        first, begin = last, stop
