"""Map the token files of a corpus into memory, or read ranges of them; copy what is read of remote ones."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.tokens.base import Int64s, TokenShard
from feedmill.storage import Store
from feedmill.storage.cache.copies import WORK, copied_ranges, held_copy

if TYPE_CHECKING:
    from feedmill.tokens.corpus import Corpus

FORGET = 64 << 20
"""Number of bytes read after which mapped pages are released, so that memory stays bounded."""
LARGE = 256 << 20
"""Total size in bytes above which scattered documents are read with `preadv` instead of through the mapping.

A mapping would keep all files in memory, and read more than needed where they are not in the page cache. Below this
size, mapped files are twice as fast."""


class Reads(NamedTuple):
    """What is read of one file.

    Attributes:
        begins, ends: int64[n], ranges of tokens, ascending, with small gaps bridged.
        tokens: number of tokens that are wanted.
    """

    begins: Int64s
    ends: Int64s
    tokens: int

    @property
    def scattered(self) -> bool:
        """Whether the ranges have more than a quarter beside what is wanted: small documents from everywhere."""
        return int((self.ends - self.begins).sum()) > self.tokens + self.tokens // 4


class _File(NamedTuple):
    """The tokens of one file, with the mapping and the open descriptor (None and -1 for an empty file)."""

    tokens: npt.NDArray[Any]
    mapping: mmap.mmap | None = None
    descriptor: int = -1
    offset: int = 0


class Mapped:
    """Mapped tokens of a corpus's files, and their loss masks on demand.

    Args:
        stack: closes the files.
        reads: see `Corpus.mapped`.
    """

    def __init__(self, stack: ExitStack, corpus: Corpus, reads: Mapping[int, Reads] | None = None) -> None:
        self._stack, self._corpus, self._reads = stack, corpus, reads
        self._files: dict[int, _File] = {}
        self._loss: dict[int, npt.NDArray[np.bool_]] = {}
        self._large = sum(shard.tokens * shard.dtype.itemsize for _, shard in corpus.shards) > LARGE
        self._alike = all(shard.dtype == corpus.dtype for _, shard in corpus.shards)
        self._read = 0

    def _file(self, number: int) -> _File:
        if number not in self._files:
            reads = None if self._reads is None else self._reads.get(number)
            self._files[number] = _map(self._stack, *self._corpus.shards[number], reads)
        return self._files[number]

    def tokens(self, number: int) -> npt.NDArray[Any]:
        """Return the tokens of a file. Raises `DataError` if it has become shorter since it was opened."""
        return self._file(number).tokens

    def loss(self, number: int) -> npt.NDArray[np.bool_]:
        """Return the loss mask of a file, bool[tokens]; all True for a file without one."""
        if number not in self._loss:
            _, shard = self._corpus.shards[number]
            self._loss[number] = (
                np.broadcast_to(np.True_, (shard.tokens,))
                if shard.load_loss is None
                else np.asarray(shard.load_loss()).astype(np.bool_, copy=False)
            )
        return self._loss[number]

    def copy(self, pieces: Iterable[tuple[int, int, int, int, int]], out: npt.NDArray[Any]) -> None:
        """Copy ranges of tokens to `out`.

        Args:
            pieces: (file, begin, end, begin in `out`, end in `out`) of each range.
            out: the array to fill.

        Raises:
            DataError: a file has become shorter since it was opened.
        """
        if not (self._large and self._alike):
            for file, low, high, at, end in pieces:
                out[at:end] = self.tokens(file)[low:high]
            return
        size = out.itemsize
        view = memoryview(out).cast("B")  # type: ignore[arg-type]
        for file, low, _, at, end in pieces:
            _, _, descriptor, offset = self._file(file)
            at, end, place = at * size, end * size, offset + low * size
            while at < end:
                count = os.preadv(descriptor, (view[at:end],), place)
                if not count:
                    store, shard = self._corpus.shards[file]
                    raise _shrunk(store.locate(shard.path), os.fstat(descriptor).st_size)
                at, place = at + count, place + count

    def was_read(self, size: int) -> None:
        """Count bytes read, and release mapped pages every `FORGET` bytes (they stay in the page cache)."""
        self._read += size
        if self._large and self._read >= FORGET:
            self._read = 0
            for file in self._files.values():
                if file.mapping is not None:
                    file.mapping.madvise(mmap.MADV_DONTNEED)


def _map(stack: ExitStack, store: Store, shard: TokenShard, reads: Reads | None) -> _File:
    if not shard.tokens:
        return _File(np.zeros(0, shard.dtype))
    path = _on_this_machine(stack, store, shard, reads)
    file = stack.enter_context(open(path, "rb"))  # noqa: SIM115 - the stack closes it
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(mapping) < shard.offset + shard.tokens * shard.dtype.itemsize:
        raise _shrunk(store.locate(shard.path), len(mapping))
    return _File(np.frombuffer(mapping, shard.dtype, shard.tokens, shard.offset), mapping, file.fileno(), shard.offset)


def _on_this_machine(stack: ExitStack, store: Store, shard: TokenShard, reads: Reads | None) -> Path:
    if store.is_local or reads is None:
        return stack.enter_context(store.local_copy(shard.path))
    if reads.scattered:
        return stack.enter_context(held_copy(store, shard.path, kind=WORK)).path
    size = shard.dtype.itemsize
    begins, ends = shard.offset + reads.begins * size, shard.offset + reads.ends * size
    return stack.enter_context(copied_ranges(store, shard.path, begins, ends))


def _shrunk(where: str, size: int) -> DataError:
    return DataError(
        f"the file has {size} bytes, fewer than when it was opened",
        file=where,
        kind="truncated",
        fix="It changed meanwhile: run the command again.",
    )
