"""Pieces: files with the tokens of one unit of work, written atomically.

    tokens    u16 or u32 each
    lengths   u32 for each document
    loss      the loss mask, one byte per token, if any; or marks of the first tokens of sentences
    ids       JSON: the id of each document or null, if kept
    facts     JSON: `PieceFacts`
    trailer   u64 bytes of facts, 16 bytes xxh3-128 of everything before it, "FMPIECE2"

All numbers are little-endian. A piece is written under a temporary name and renamed. It is synced to the disk before
only if other machines read it. Otherwise a later run that reuses it compares the hash. In an object store it is one
object, which is always whole.

Pieces are read as the documents of a corpus, like token files (`Pieces`).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.documents.lineage.sidecar import Encoded, decode_runs
from feedmill.errors import NotFound
from feedmill.formats.tokens.base import Int64s, TokenShard
from feedmill.jobs.work_folder import stored, write_unit
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import Store, open_store, split_url
from feedmill.structs import decode_as
from feedmill.tokens.corpus import Corpus, Documents

if TYPE_CHECKING:
    from feedmill.formats.tokens.dolma import Origin
    from feedmill.tokens.encode import Encodings  # only of `tokenize`: merging and shuffling do without tokenizers

_TRAILER = struct.Struct("<Q16s8s")
_MAGIC = b"FMPIECE2"
_TAIL = 1 << 16  # facts are rarely longer
_CHUNK = 1 << 20
SUFFIX, PIECES = ".piece", "pieces"


class PieceFacts(msgspec.Struct):
    """Facts about a piece and its unit.

    Attributes:
        lines, blank: numbers of lines or rows of the unit, and of blank ones.
        ends: for several units, the row at which each but the last ends, counted over all of them.
        rows: rows of the documents, from 0, encoded by `feedmill.documents.lineage.sidecar`.
        synced: whether the piece was synced to the disk before it got its name, so that it is whole.
        empty: number of documents skipped because their text is white space.
        bytes: bytes of the input.
        ids: bytes of the ids.
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
    ids: int = 0
    learned: int = 0
    checks: dict[str, tuple[int, int]] = {}


class PieceWriter:
    """Writer of one piece; created by `write_piece`."""

    def __init__(self, out: BinaryIO, facts: PieceFacts) -> None:
        self._out, self.facts, self._hash = out, facts, xxhash.xxh3_128()
        self._lengths: list[npt.NDArray[Any]] = []
        self._loss: list[npt.NDArray[np.bool_]] = []
        self._ids: list[Any] = []

    def add(self, documents: tuple[Encodings, list[Any] | None]) -> None:
        """Append documents, with the id of each or None if these are kept."""
        found, ids = documents
        self._write(found.data)
        self._lengths.append(found.lengths.astype("<u4"))
        self.facts.documents += len(found.lengths)
        self.facts.tokens += len(found.data) // np.dtype(self.facts.dtype).itemsize
        if found.loss is not None:
            self._loss.append(found.loss)
            self.facts.learned += int(np.count_nonzero(found.loss))
        if ids is not None:
            self._ids += ids

    def finish(self) -> None:
        """Write the sections after the tokens."""
        for lengths in self._lengths:
            self._write(lengths.tobytes())
        for loss in self._loss:
            self._write(loss.astype(np.bool_).tobytes())
        ids = msgspec.json.encode(self._ids) if self.facts.origins else b""
        self.facts.ids = len(ids)
        self._write(ids)
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
        return decode_as(tail[-_TRAILER.size - length : -_TRAILER.size], PieceFacts)
    except (NotFound, struct.error, msgspec.MsgspecError):
        return None


def _facts(raw: BinaryIO, size: int, length: int) -> PieceFacts:
    raw.seek(size - _TRAILER.size - length)
    return decode_as(raw.read(length), PieceFacts)


class Piece(NamedTuple):
    """A piece to be read, and where its documents come from.

    Attributes:
        path: its path or URL; `facts`: what it has.
        line: line of the first input file (from 0) at which the piece begins.
        files: URLs of its input files.
    """

    path: str
    facts: PieceFacts
    line: int
    files: tuple[str, ...]


class Pieces(Documents):
    """The documents of pieces, whose origins are the lines of the inputs.

    Args:
        pieces: the pieces, in order.
        inputs: number of each input, by URL.
    """

    def __init__(self, pieces: Sequence[Piece], inputs: Mapping[str, int]) -> None:
        self.pieces, self.inputs = pieces, inputs
        super().__init__(_corpus(pieces))

    def inputs_of(self, row: range) -> list[int]:
        """Return the numbers of the inputs of the pieces with these documents, each once."""
        first, last = np.searchsorted(self.corpus.firsts, (row.start, row.stop - 1), side="right").tolist()
        files = (name for piece in self.pieces[first - 1 : last] for name in piece.files) if len(row) else ()
        return list(dict.fromkeys(self.inputs[name] for name in files))

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        shard, local = super().origins(numbers)
        file, line = np.empty_like(shard), np.empty_like(shard)
        for number in sorted(set(shard.tolist())):  # not `np.unique`, whose first call imports numpy.ma
            piece, which = self.pieces[number], np.flatnonzero(shard == number)
            _, rows = decode_runs(*piece.facts.rows).origins(local[which])
            begins = np.array([-piece.line, *piece.facts.ends], np.int64)
            inside = np.searchsorted(begins[1:], rows, side="right")
            file[which] = np.array([self.inputs[name] for name in piece.files], np.int64)[inside]
            line[which] = rows - begins[inside]
        return file, line

    def reader(self) -> Callable[[Int64s], Sequence[Origin]]:
        ids = lru_cache(_OPEN)(lambda number: _ids(*self.corpus.shards[number], self.pieces[number].facts))
        names = {number: name for name, number in self.inputs.items()}

        def read(numbers: Int64s) -> list[Origin]:
            shard, local = super(Pieces, self).origins(numbers)
            keys: list[Any] = [None] * len(numbers)
            for number in sorted(set(shard.tolist())):  # not `np.unique`, whose first call imports numpy.ma
                known = ids(number)
                for at in np.flatnonzero(shard == number).tolist():
                    keys[at] = known[local[at]]
            file, line = (column.tolist() for column in self.origins(numbers))
            return [self.named(key, names[f], n + 1) for key, f, n in zip(keys, file, line, strict=True)]

        return read

    def named(self, key: Any, path: str, line: int) -> Origin:
        """Return the origin of a document by its id, or None, and its line (from 1)."""
        from feedmill.formats.tokens.dolma import Origin

        return Origin(str(key) if key is not None else f"{path}-{line}", path, line)


_OPEN = 32
"""Pieces of which the ids are kept in memory."""


def _corpus(pieces: Sequence[Piece]) -> Corpus:
    shards = []
    for piece in pieces:
        folder, name = split_url(piece.path)
        store = open_store(folder)
        shards.append((store, _shard(store, name, piece.facts)))
    dtype = np.dtype(pieces[0].facts.dtype if pieces else "<u2")
    firsts = bounds_of([piece.facts.documents for piece in pieces])
    return Corpus(shards, PIECES, dtype, dtype.itemsize, None, [], "", firsts, True)


def _shard(store: Store, name: str, facts: PieceFacts) -> TokenShard:
    dtype = np.dtype(facts.dtype)
    after = facts.tokens * dtype.itemsize
    bounds = partial(_bounds, store, name, after, facts.documents)
    loss = partial(_loss, store, name, after + 4 * facts.documents, facts.tokens) if facts.loss else None
    return TokenShard(name, dtype, 0, facts.tokens, facts.documents, bounds, loss)


def _bounds(store: Store, name: str, offset: int, documents: int) -> Int64s:
    return bounds_of(np.frombuffer(store.read(name, offset, 4 * documents), "<u4"))


def _loss(store: Store, name: str, offset: int, tokens: int) -> npt.NDArray[np.bool_]:
    if store.is_local and tokens:
        return np.memmap(store.locate(name), np.bool_, "r", offset, (tokens,))
    return np.frombuffer(store.read(name, offset, tokens), np.bool_)


def _ids(store: Store, shard: TokenShard, facts: PieceFacts) -> list[Any]:
    offset = facts.tokens * shard.dtype.itemsize + 4 * facts.documents + facts.tokens * facts.loss
    found: list[Any] = msgspec.json.decode(store.read(shard.path, offset, facts.ids))
    return found
