"""Loss masks stored beside token files: one byte per token, 1 if the token contributes to the loss, else 0.

datatrove's ``.ds`` files have theirs in ``x.ds.loss``. For all other formats it is the same layout under the name
``<file of the tokens>.feedmill.loss``, such as ``x.pbin.feedmill.loss`` or ``x.bin.feedmill.loss``. Other programs
ignore it. Byte i belongs to token i of the file, so its size is the number of tokens; any other size is an error,
because a wrong mask would train on the wrong tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.content import content_hash
from feedmill.formats.offsets import Extents, Int64s, read_records
from feedmill.formats.tokens.gather import Gather
from feedmill.formats.tokens.number_files import load_numbers
from feedmill.formats.tokens.shard import TokenShard
from feedmill.kernels.rows import count_spans
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

SUFFIX = ".feedmill.loss"
Bools = npt.NDArray[np.bool_]
_AT_ONCE = 1 << 24
"""Tokens of a remote mask that are counted at once."""


class StoredMask(NamedTuple):
    """The mask beside a token file, as `TokenShard` takes it: path, loader, and what the fingerprint has of it."""

    loss: str | None = None
    load_loss: Any = None
    facts: tuple[Any, ...] = ()


def stored_mask(store: Store, path: str, tokens: int) -> StoredMask:
    """Return the mask beside the file of the tokens at `path`, without reading it; an empty one if there is none.

    Raises:
        DataError: its size is not the number of tokens.
    """
    name = path + SUFFIX
    try:
        size = store.stat(name).size
    except NotFound:
        return StoredMask()
    if size != tokens:
        raise DataError(
            f"the loss mask has {size:,} bytes for {tokens:,} tokens: it belongs to another file",
            file=store.locate(name),
            kind="bad-mask",
            fix=copy_again("both files", "write them again")
            + " Without this file, every token contributes to the loss.",
        )
    return StoredMask(name, partial(load_numbers, store, name, "u1"), (partial(content_hash, store, name, size),))


class MaskWriter:
    """Writer of the mask of one token file; created by `write_mask`."""

    def __init__(self, out: BinaryIO | None, where: str) -> None:
        self._out, self._where = out, where

    def add(self, count: int, loss: Bools | None) -> None:
        """Append the mask of `count` tokens, bool[count]; None for tokens that all contribute to the loss.

        Raises:
            ConfigError: the file is written without a mask, and one is given.
        """
        if self._out is None:
            if loss is not None:
                raise ConfigError(
                    "a loss mask was given, but the file is written without one",
                    file=self._where,
                    kind="unsupported",
                    fix="Open the writer with loss=True.",
                )
            return
        mask = np.ones(count, np.uint8) if loss is None else np.asarray(loss, np.bool_).view(np.uint8)
        if len(mask) != count:
            raise ValueError(f"a mask of {len(mask)} for {count} tokens")
        self._out.write(np.ascontiguousarray(mask).data)


@contextlib.contextmanager
def write_mask(store: Store, path: str, wanted: bool, main: str, *, suffix: str = SUFFIX) -> Iterator[MaskWriter]:
    """Write the mask beside the file of the tokens at `path`, or remove that of an older file.

    Args:
        store: the store of the files.
        path: the file of the tokens.
        wanted: whether there is a mask.
        main: the file that identifies the dataset, which must be published after this context. An older one is removed
            first: its tokens must not be read with another mask.
        suffix: what the name of the mask adds to that of the file.
    """
    name = path + suffix
    if wanted:
        with store.write(name) as out:
            yield MaskWriter(out, store.locate(path))
            store.delete(main)
        return
    yield MaskWriter(None, store.locate(path))
    if store.exists(name):
        store.delete(main)
        store.delete(name)


class Masks:
    """Reader of ranges of the masks of a dataset's files. Thread-safe.

    Files without a mask contribute to the loss in full.

    Args:
        store, shards: the files.
    """

    def __init__(self, store: Store, shards: Sequence[TokenShard]) -> None:
        self._store, self._shards = store, shards
        self._arrays: dict[int, npt.NDArray[Any]] = {}
        twins = [TokenShard(shard.loss or "", np.dtype("u1"), 0, shard.tokens, None, _no_bounds) for shard in shards]
        self._gather = Gather(store, twins)

    def rows(self, shard: int, starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None = None) -> None:
        """Fill rows of `out`, bool[m, width]; arguments and errors as for `Gather.rows`."""
        known = self._shards[shard]
        if known.loss is not None:
            self._gather.rows(shard, starts, out, rows)
            return
        filled = slice(len(starts)) if rows is None else rows
        if known.load_loss is None:
            out[filled] = True
            return
        out[filled] = self._array(shard)[starts[:, None] + np.arange(out.shape[1])]

    def flat(self, shard: int) -> npt.NDArray[Any] | None:
        """Return the mask of a file in memory or on a local disk, uint8[tokens], empty if all contribute; else None."""
        known = self._shards[shard]
        if known.loss is not None:
            return self._gather.flat(shard)
        return np.zeros(0, np.uint8) if known.load_loss is None else self._array(shard).view(np.uint8)

    def spans(self, shard: int, first: Int64s, stop: Int64s) -> list[Bools]:
        """Return the mask of the tokens ``[first, stop)`` of a file, for each of many ranges."""
        known = self._shards[shard]
        if known.loss is not None:
            return [np.frombuffer(block, np.uint8) != 0 for block in read_records(self._store, known.loss, first, stop)]
        if known.load_loss is None:
            return [np.ones(count, np.bool_) for count in (stop - first).tolist()]
        mask = self._array(shard)
        return [mask[begin:end] != 0 for begin, end in zip(first.tolist(), stop.tolist(), strict=True)]

    def counts(self, shard: int, first: Int64s, stop: Int64s) -> Int64s:
        """Return how many of the tokens ``[first, stop)`` of a file contribute to the loss, for each range, int64[n].

        Ranges must begin in ascending order; they may overlap.
        """
        known = self._shards[shard]
        if known.loss is None and known.load_loss is None:
            return stop - first
        flat = self.flat(shard)
        if flat is not None:
            return count_spans(flat, first, stop)
        out, ends, low = np.zeros(len(first), np.int64), np.maximum.accumulate(stop), 0
        while low < len(first):  # many ranges in one read
            high = max(low + 1, int(np.searchsorted(ends, first[low] + _AT_ONCE, side="right")))
            begin = first[low : low + 1]
            (part,) = self.spans(shard, begin, ends[high - 1 : high])
            out[low:high] = count_spans(part.view(np.uint8), first[low:high] - begin, stop[low:high] - begin)
            low = high
        return out

    def fill(self, shard: int, first: Int64s, stop: Int64s, to: Int64s, out: Bools) -> None:
        """Copy the mask of ranges of tokens to a flat array; arguments and errors as for `Gather.spans`."""
        if self._shards[shard].loss is not None:
            self._gather.spans(shard, first, stop, to, out.view(np.uint8))
            return
        for place, mask in zip(to.tolist(), self.spans(shard, first, stop), strict=True):
            out[place : place + len(mask)] = mask

    def extents(self, sample: Int64s, file: Int64s, first: Int64s, stop: Int64s) -> list[Extents]:
        """Return the byte ranges of the masks of tokens ``[first, stop)``; none for masks that are loaded whole."""
        stored = np.array([shard.loss is not None for shard in self._shards], np.bool_)[file]
        if not stored.any():
            return []
        paths = [shard.loss or "" for shard in self._shards]
        return [Extents(self._store, paths, sample[stored], file[stored], first[stored], stop[stored])]

    def _array(self, shard: int) -> npt.NDArray[Any]:
        if shard not in self._arrays:
            load = self._shards[shard].load_loss
            assert load is not None
            self._arrays[shard] = np.asarray(load())
        return self._arrays[shard]


def _no_bounds() -> Int64s:
    raise AssertionError("masks have no documents")
