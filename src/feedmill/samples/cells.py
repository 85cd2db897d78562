"""Cells of a dataset as datasets of their own, without copies.

A plan draws from cells as from sources. It reads from the dataset that they are cells of (`feedmill.planning.plan`),
so a batch of documents of hundreds of cells is one bulk read, as without cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.base import CountedOnRead, Dataset, Episodic, Indices, TokenReader
from feedmill.formats.batches import Batch, Want
from feedmill.formats.cells import Cell, CellTable
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.mediatable import MediaTable
from feedmill.formats.offsets import hash_words
from feedmill.samples.views import DatasetView

Int64s = npt.NDArray[np.int64]

_AT_ONCE = 1 << 20
_SCANNED = 64
"""Consecutive documents of a cell from which a scan of all codes between them is faster than a search for each."""


class CellDataset(DatasetView):
    """The documents of one cell, in the order of the dataset that reads, decodes and locates them.

    Nothing of the size of the cell is held in memory.

    Args:
        dataset: the dataset that the table is about.
        table: its cells.
        cell: number of this cell in the table.
    """

    format = "cell"
    is_cell = True

    def __init__(self, dataset: Dataset, table: CellTable, cell: int) -> None:
        super().__init__(dataset)
        self.table, self.number = table, cell

    @property
    def cell(self) -> Cell:
        """The facts of the cell."""
        return self.table.cells[self.number]

    @property
    def what(self) -> str:
        label = self.cell.label(self.table.rule.columns)
        return f"the cell {label}" if label else f"the samples where {self.table.rule}"

    def opened_as(self, **changes: Any) -> CellDataset:
        return type(self)(self.dataset.opened_as(**changes), self.table, self.number)

    def numbers_of(self, indices: Indices) -> Int64s:
        if isinstance(indices, range) and indices.step == 1 and len(indices) >= _SCANNED:
            return self._consecutive(indices.start, indices.stop)
        return self.table.select(self.number, np.asarray(indices, np.int64))

    def _consecutive(self, start: int, stop: int) -> Int64s:
        """Return the numbers of consecutive documents of the cell."""
        first, last = self.table.select(self.number, [start, stop - 1]).tolist()
        found: Int64s = np.flatnonzero(self.table.codes()[first : last + 1] == self.number) + first
        return found

    def place_of(self, number: int) -> int | None:
        rank = int(self.table.rank(self.number, [number])[0])
        return None if rank < 0 else rank

    def __len__(self) -> int:
        return self.cell.documents

    def read(self, indices: Indices) -> list[Any]:
        return self.dataset.read(self.numbers_of(indices))

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        return self.dataset.read_batch(self.numbers_of(indices), want)

    @property
    def shuffle_block(self) -> int | None:
        return self.dataset.shuffle_block

    @property
    def shard_bounds(self) -> Int64s:
        return self.table.before(self.number, self.dataset.shard_bounds)

    @property
    def lengths(self) -> Int64s | None:
        known = self.dataset.lengths
        return None if known is None else known[self.numbers_of(range(len(self)))]

    def total(self, by: str, start: int = 0, stop: int | None = None) -> int | None:
        stop = len(self) if stop is None else min(stop, len(self))
        known = {"tokens": self.cell.tokens, LOSS_TOKENS: self.cell.loss_tokens}.get(by)
        if known is not None and stop - start in (0, len(self)):
            return known if stop > start else 0
        costs = self.dataset.lengths if by == "tokens" else self.dataset.costs(by)
        if costs is None:
            return None
        if stop - start == len(self):
            every = costs
            return int(self.sum_of(lambda first, end: every[first:end], by))
        return int(costs[self.numbers_of(range(start, max(start, stop)))].sum(dtype=np.int64))

    def sum_of(self, values: Callable[[int, int], npt.NDArray[Any]], key: object) -> float:
        """Return the sum over the documents of a value, exact for whole numbers below 2^53.

        All cells of the dataset are summed together, and known from then on.

        Args:
            values: returns those of the documents ``[first, end)`` of the dataset.
            key: what tells the value from others.
        """
        known: dict[Any, npt.NDArray[np.float64]] = self.table.__dict__.setdefault("_sums", {})
        if key not in known:
            sums = np.zeros(len(self.table))
            for first in range(0, self.table.documents, _AT_ONCE):
                end = min(first + _AT_ONCE, self.table.documents)
                codes = self.table.codes()[first:end]
                held = codes < len(self.table)
                sums += np.bincount(codes[held], values(first, end)[held], len(self.table))
            known[key] = sums
        return float(known[key][self.number])

    def fingerprint(self) -> str:
        return hash_words([self.dataset.fingerprint(), "cell", self.cell.digest])

    def media_table(self) -> MediaTable:
        return self.dataset.media_table().select(self.numbers_of(range(len(self))))

    def describe(self) -> dict[str, Any]:
        """Return the facts of the dataset with the samples of the cell; not its bytes, which nothing has counted."""
        facts = {**self.dataset.describe(), "samples": len(self), "selection": self.what}
        for whole in ("bytes", "excluded", "tokens", "documents"):
            facts.pop(whole, None)
        return facts if self.cell.tokens is None else {**facts, "tokens": self.cell.tokens}


class CellTokens(CellDataset):
    """A cell of documents of tokens."""

    def read_tokens(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> Sequence[npt.NDArray[np.integer[Any]]]:
        """See `TokenReader.read_tokens`."""
        assert isinstance(self.dataset, TokenReader)
        return self.dataset.read_tokens(self.numbers_of(indices), starts, lengths)

    @property
    def masks(self) -> Any:
        """The loss masks of the dataset; None if no file has one."""
        return getattr(self.dataset, "masks", None)


class CellCounted(CellTokens):
    """A cell of documents whose tokens are known when they are read."""

    def lengths_of(self, indices: Int64s) -> Int64s:
        """See `CountedOnRead.lengths_of`."""
        assert isinstance(self.dataset, CountedOnRead)
        return self.dataset.lengths_of(self.numbers_of(indices))


def cell_datasets(dataset: Dataset, table: CellTable, cells: Sequence[int]) -> list[CellDataset]:
    """Return cells of a dataset as datasets."""
    kind = CellTokens if isinstance(dataset, TokenReader) else CellDataset
    if isinstance(dataset, CountedOnRead) and dataset.total("tokens", 0, 0) is None:
        kind = CellCounted
    return [kind(dataset, table, cell) for cell in cells]


def check_divisible(dataset: Dataset, asked: str) -> None:
    """Raise `ConfigError` for a dataset whose samples cannot be in cells.

    Args:
        dataset: the dataset.
        asked: the key of the recipe that asks for it, for the message.
    """
    problem = None
    from feedmill.formats.tokens.windows import WindowDataset  # plans of other formats do without

    if isinstance(dataset, WindowDataset):
        problem = "windows, which can hold documents of several cells", "Remove 'windows', and use 'pack'."
    elif isinstance(dataset, Episodic):
        problem = "frames of robot episodes", "Select frames with 'where' in 'episodes'."
    if problem is not None:
        raise ConfigError(
            f"{dataset.url} has {problem[0]}: {asked!r} selects documents", kind="unsupported", fix=problem[1]
        )
