"""Stream of documents for windows and packing: a plan's positions and their lengths in tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import CountedOnRead
from feedmill.planning.nodes.groups import groups_in
from feedmill.samples.counted import CountedDataset

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.cells import CellTable
    from feedmill.planning.nodes.base import Located, Node
    from feedmill.planning.plan import Plan

IntArray = npt.NDArray[np.int64]

_CHUNK = 1 << 16
_HASHED = 1 << 20


class Documents:
    """The documents of a plan in its order, with their lengths. No token of token files is read.

    Args:
        plan: its samples are the documents.
        limited: what rows take a limited amount of besides tokens: ``media``, ``patches``.

    Attributes:
        start: the first of them, as a position of the plan; positions of the stream count from there.
        length: number of documents, or None if the stream is endless.
        counted_on_read: whether lengths of a dataset become known by reading its documents.
        samples: sources whose documents are whole samples with media, by number.

    Raises:
        ConfigError: a dataset's index has no lengths in tokens.
        DataError: the lengths are invalid.
    """

    def __init__(self, plan: Plan, limited: Sequence[str] = ()) -> None:
        self.plan = plan
        self.start = 0
        self.length = plan.length
        self._lengths: list[Callable[[IntArray], IntArray]] = []  # by dataset: those of its cells are not copied
        self.counted_on_read = False
        self.samples = {n: each for n, each in enumerate(plan.sources) if isinstance(each, CountedDataset)}
        hashed: dict[int, str] = {}  # a dataset can occur several times in a plan
        hashes: list[str] = []
        first = {home: number for number, home in reversed(list(enumerate(plan.bases.home.tolist())))}
        for home, dataset in enumerate(plan.bases.datasets):
            if dataset.lengths is None and isinstance(dataset, CountedOnRead):
                self._lengths.append(dataset.lengths_of)
                hashes.append("counted when read")  # the fingerprint of the dataset determines them
                self.counted_on_read = True
                continue
            lengths = _known(plan.names[first[home]], dataset)
            self._lengths.append(lengths.__getitem__)
            if id(dataset) not in hashed:
                needs = [self.needs(first[home], name) for name in limited if first[home] in self.samples]
                hashed[id(dataset)] = _checked_hash(lengths, dataset, needs)
            hashes.append(hashed[id(dataset)])
        self._hashes = [hashes[home] for home in plan.bases.home.tolist()]
        self._samples = {int(plan.bases.home[number]): number for number in self.samples}

    def part(self, start: int, stop: int | None) -> Documents:
        """Return the documents from `start` to `stop`, or to the end, as a stream of its own."""
        part = copy.copy(self)
        part.start = self.start + start
        if stop is not None or self.length is not None:
            ends = [end for end in (stop, self.length) if end is not None]
            part.length = min(ends) - start
        return part

    def seams(self, node: Node, start: int, stop: int) -> IntArray:
        """Return `Node.seams` of a tree with the plan's positions, counted in the stream: int64[n, 2]."""
        return node.seams(self.start + start, self.start + stop) - self.start

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Return what determines the order and the lengths of the documents."""
        words = zip(self.plan.names, self._hashes, strict=True)
        return {**self.plan.fingerprints, **{f"lengths of {name}": word for name, word in words}, **self.counted_by}

    @property
    def counted_by(self) -> dict[str, str]:
        """Return what counts the samples of sources with lengths, such as ``processor of NAME``."""
        return {
            f"{what} of {self.plan.names[number]}": word
            for number, dataset in self.samples.items()
            for what, word in dataset.counts.identity.items()
        }

    def lengths(self, positions: IntArray) -> IntArray:
        """Return the tokens of the documents at these positions, int64[n]."""
        return self.sized(positions, ())[0]

    def sized(self, positions: IntArray, limited: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return the tokens of the documents at these positions, int64[n], and what else they need, int64[k, n].

        Args:
            positions: int64[n].
            limited: of ``media`` and ``patches``, those that are asked for; documents of token files have none.
        """
        out, more = np.empty(len(positions), np.int64), np.zeros((len(limited), len(positions)), np.int64)
        for start in range(0, len(positions), _CHUNK):
            part = slice(start, start + _CHUNK)
            here = positions[part] + self.start if self.start else positions[part]
            out[part], more[:, part] = self.sized_at(self.plan.node.locate(here), limited)
        return out, more

    def sized_at(self, samples: Located, limited: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return `sized` of samples of the plan's sources."""
        located = self.plan.bases.read_from(samples)
        out, more = np.empty(len(located.index), np.int64), np.zeros((len(limited), len(located.index)), np.int64)
        if len(self._lengths) == 1:
            out[:] = self._lengths[0](located.index)
            for k, name in enumerate(limited) if self._samples else ():
                more[k] = self.needs(0, name)[located.index]
            return out, more
        for number, lengths in enumerate(self._lengths):
            rows = np.flatnonzero(located.source == number)
            if not len(rows):
                continue
            out[rows] = lengths(located.index[rows])
            for k, name in enumerate(limited) if number in self._samples else ():
                more[k, rows] = self.needs(self._samples[number], name)[located.index[rows]]
        return out, more

    @cached_property
    def grouped(self) -> bool:
        """Whether some documents stay together in groups (`nodes.groups`)."""
        return bool(groups_in(self.plan.node))

    def places(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return `Node.places` of the documents at these positions, int64[n] both."""
        return self.plan.node.places(positions + self.start)

    def same_groups(self, other: Node, total: int) -> bool:
        """Return whether the first `total` documents are in groups as those of another tree with these positions."""
        if not self.grouped and not groups_in(other):
            return True
        for start in range(self.start, self.start + total, _CHUNK):
            positions = np.arange(start, min(start + _CHUNK, self.start + total))
            if not np.array_equal(self.plan.node.places(positions)[0], other.places(positions)[0]):
                return False
        return True

    def whole(self, total: int) -> int:
        """Return the largest number of documents up to `total` after which no group is cut."""
        return self.plan.node.whole(self.start + total) - self.start if self.grouped else total

    def needs(self, source: int, name: str) -> IntArray:
        """Return what each sample of a source with media needs of ``media`` or ``patches``, int64[samples].

        Raises:
            ConfigError: the patches of its processor are not known.
        """
        counts = self.samples[source].counts
        return counts.media if name == "media" else counts.vision[0]

    def between(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the documents from `start` to `stop`, or to the end of the stream."""
        return self.lengths(np.arange(start, stop if self.length is None else min(stop, self.length)))

    def sized_between(self, start: int, stop: int, limited: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return `sized` of the documents from `start` to `stop`, or to the end of the stream."""
        return self.sized(np.arange(start, stop if self.length is None else min(stop, self.length)), limited)

    def have(self, most: int | None = None) -> bool:
        """Return whether a document has tokens, and no more than `most`; also if lengths are only known by reading."""
        limit = np.iinfo(np.int64).max if most is None else most
        return any(_have(dataset.lengths, limit, table, cells) for dataset, table, cells in self.plan.bases.used())

    def segments(self, size: int) -> int | None:
        """Return how many segments of `size` documents the stream has; None for no end."""
        return None if self.length is None else -(-self.length // size)


def _have(lengths: IntArray | None, limit: int, table: CellTable | None, cells: IntArray) -> bool:
    """Return whether a document of a dataset, or of some of its cells, has tokens, and no more than `limit`."""
    if lengths is None:
        return True
    for start in range(0, len(lengths), _HASHED):
        part = lengths[start : start + _HASHED]
        fitting = (part > 0) & (part <= limit)
        if table is not None:
            fitting &= np.isin(table.codes()[start : start + _HASHED], cells)
        if fitting.any():
            return True
    return False


def _known(name: str, dataset: Dataset) -> npt.NDArray[np.int64]:
    lengths = dataset.lengths
    if lengths is None:
        raise ConfigError(
            f"the index of {name!r} has no lengths in tokens, so its samples cannot be packed",
            file=dataset.url,
            kind="no-costs",
            fix="Use tokenized data, add 'tokenize' to a source of text or 'lengths' to one of text and media, or"
            " remove 'pack'. If it has a column of token ids, name it: 'tokens: input_ids'.",
        )
    if lengths.shape != (len(dataset),) or lengths.dtype.kind not in "iu":
        raise DataError(
            f"the index has {len(dataset):,} samples, but lengths of shape {lengths.shape} and type {lengths.dtype}",
            file=dataset.url,
            kind="bad-costs",
        )
    return lengths


def _checked_hash(lengths: npt.NDArray[np.int64], dataset: Dataset, needs: Sequence[IntArray] = ()) -> str:
    digest = xxhash.xxh3_128()
    for each in needs:
        digest.update(np.ascontiguousarray(each, "<i8").data)
    for start in range(0, len(lengths), _HASHED):
        part = np.ascontiguousarray(lengths[start : start + _HASHED], "<i8")
        if int(part.min()) < 0:
            number = start + int(part.argmin())
            raise DataError(
                f"sample {number} has {int(part.min())} tokens",
                file=dataset.url,
                kind="bad-costs",
                fix="The index is damaged: rebuild it.",
            )
        digest.update(part.data)
    return digest.hexdigest()
