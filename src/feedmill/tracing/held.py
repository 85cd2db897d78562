"""Rows of files that the samples of a plan are, in both directions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from feedmill.documents.lineage.chain import Lineages, Row
from feedmill.documents.lineage.samples import StoredRows
from feedmill.formats.base import Dataset
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.plan import Plan
from feedmill.samples.cells import CellDataset
from feedmill.tokens.corpus import main_file


class TokenRows:
    """The documents of token files, or their windows, as rows of these files.

    Attributes:
        paths: the files.
    """

    def __init__(self, dataset: TokenDataset | WindowDataset) -> None:
        self._dataset = dataset
        files = (dataset.tokens if isinstance(dataset, WindowDataset) else dataset).files()
        self.paths: Sequence[str] = [main_file(path) for path, _, _ in files]
        self._ends = np.cumsum([rows for _, _, rows in files], dtype=np.int64)
        self._firsts = [first for _, first, _ in files]

    def at(self, index: int) -> list[tuple[int, int]]:
        """Return file and row of each document of a sample."""
        if isinstance(self._dataset, WindowDataset):
            return [(file, document) for file, document in self._dataset.documents_of(index)]
        file = int(np.searchsorted(self._ends, index, side="right"))
        return [(file, index - self._firsts[file])] if file < len(self.paths) else []

    def samples(self, file: int, row: int) -> Iterable[int]:
        """Return the samples that have a row of a file."""
        if isinstance(self._dataset, WindowDataset):
            return self._dataset.windows_of(file, row)
        first = self._firsts[file]
        return [first + row] if 0 <= row < int(self._ends[file]) - first else []


class CellRows:
    """The documents of a cell as rows of the files of its dataset.

    Args:
        cell: the cell.
        rows: the rows of its dataset.

    Attributes:
        paths: the files.
    """

    def __init__(self, cell: CellDataset, rows: TokenRows) -> None:
        self._cell, self._rows, self.paths = cell, rows, rows.paths

    def at(self, index: int) -> list[tuple[int, int]]:
        """Return file and row of a document."""
        return self._rows.at(int(self._cell.numbers_of([index])[0]))

    def samples(self, file: int, row: int) -> Iterable[int]:
        """Return the document that is a row of a file, if it is in the cell."""
        found = (self._cell.place_of(number) for number in self._rows.samples(file, row))
        return [place for place in found if place is not None]


def rows_of(dataset: Dataset, known: dict[int, TokenRows] | None = None) -> TokenRows | StoredRows | CellRows:
    """Return the samples of a dataset as rows of files; its `paths` are empty if they are rows of no file.

    Args:
        dataset: the dataset.
        known: rows of datasets by their identity, for hundreds of cells of one dataset; extended.
    """
    if isinstance(dataset, CellDataset) and isinstance(dataset.dataset, TokenDataset):
        known = {} if known is None else known
        if id(dataset.dataset) not in known:
            known[id(dataset.dataset)] = TokenRows(dataset.dataset)
        return CellRows(dataset, known[id(dataset.dataset)])
    return TokenRows(dataset) if isinstance(dataset, TokenDataset | WindowDataset) else StoredRows.of(dataset)


class Held:
    """The files that a plan, or some datasets, read.

    Args:
        datasets: by name of the source.

    Attributes:
        of_source: the rows of each source.
    """

    def __init__(self, datasets: Mapping[str, Dataset], lineages: Lineages) -> None:
        self._lineages = lineages
        known: dict[int, TokenRows] = {}
        self.of_source = {name: rows_of(dataset, known) for name, dataset in datasets.items()}
        self._sources: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for name, rows in self.of_source.items():
            for number, path in enumerate(rows.paths):
                self._sources[lineages.place(path)].append((name, number))

    @classmethod
    def of(cls, plan: Plan, lineages: Lineages) -> Held:
        """Return the files of a plan."""
        return cls({name: plan.source(name) for name in plan.names}, lineages)

    @property
    def paths(self) -> list[str]:
        """All files, each once."""
        return list(dict.fromkeys(path for rows in self.of_source.values() for path in rows.paths))

    def rows(self, source: str, index: int) -> list[Row]:
        """Return the rows that a sample is: several documents for a window; none if it is a row of no file."""
        rows = self.of_source[source]
        return [Row(rows.paths[file], row) for file, row in rows.at(index)]

    def samples(self, path: str, row: int) -> Iterator[tuple[str, int]]:
        """Yield source and number of each sample that has a row."""
        for name, number in self._sources.get(self._lineages.place(path), ()):
            yield from ((name, index) for index in self.of_source[name].samples(number, row))
