"""The datasets that plans read: for cells, the dataset that they are cells of.

A module of its own, as most plans have no cells and do without `feedmill.samples.cells`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.cells import CellTable

Int64s = npt.NDArray[np.int64]


class Bases:
    """The datasets that are read for the sources of a plan: for all cells of a dataset, this dataset.

    Args:
        sources: the datasets of a plan.

    Attributes:
        datasets: the datasets to read, each once; without cells, the sources.
        home: int32[sources], the number of each source's dataset.
    """

    def __init__(self, sources: Sequence[Dataset]) -> None:
        self.datasets: list[Dataset] = []
        self.home = np.empty(len(sources), np.int32)
        self._cells = np.full(len(sources), -1, np.int64)
        self._tables: dict[int, CellTable] = {}
        known: dict[tuple[int, int], int] = {}
        for number, source in enumerate(sources):
            cell: Any = source if getattr(source, "is_cell", False) else None
            if cell is not None:
                key = id(cell.dataset), id(cell.table)
                if key in known:
                    self.home[number], self._cells[number] = known[key], cell.number
                    continue
                known[key] = len(self.datasets)
                self._cells[number] = cell.number
                self._tables[len(self.datasets)] = cell.table
            self.home[number] = len(self.datasets)
            self.datasets.append(source if cell is None else cell.dataset)

    def __bool__(self) -> bool:
        """Return whether there are cells."""
        return bool(self._tables)

    def read_from(self, located: Any) -> Any:
        """Return located samples of the sources as located samples of `datasets`; `Located` both."""
        if not self._tables:
            return located
        home, cells = self.home[located.source], self._cells[located.source]
        if len(self.datasets) == 1:
            return replace(located, source=home, index=self._tables[0].select(cells, located.index))
        index = located.index.copy()
        for number, table in self._tables.items():
            rows = np.flatnonzero(home == number)
            if len(rows):
                index[rows] = table.select(cells[rows], index[rows])
        return replace(located, source=home, index=index)

    def used(self) -> Iterator[tuple[Dataset, CellTable | None, Int64s]]:
        """Yield each dataset with the table of its cells and the numbers of those that are sources, int64[n]."""
        for number, dataset in enumerate(self.datasets):
            mine = self._cells[self.home == number]
            yield dataset, self._tables.get(number), mine
