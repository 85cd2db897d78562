"""Rows of files that the samples of a plan are, in both directions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from feedmill.documents.lineage.chain import Lineages, Row
from feedmill.documents.lineage.sidecar import lineage_path
from feedmill.formats.base import Dataset
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.vla_text import MANIFEST
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.plan import Plan
from feedmill.storage import open_store
from feedmill.tokens.outputs import main_file


class Span(NamedTuple):
    """Documents [first, first + rows) of a dataset, which are the rows of a file."""

    path: str
    first: int
    rows: int


def files_of(dataset: Dataset) -> list[Span]:
    """Return the files of a dataset with the documents in them; none for formats whose samples have no lineage."""
    if isinstance(dataset, WindowDataset):
        dataset = dataset.tokens
    if isinstance(dataset, TokenDataset):
        return [Span(main_file(path), first, rows) for path, first, rows in dataset.files()]
    if dataset.format == "jsonl":
        return [Span(dataset.locate(0).where, 0, len(dataset))] if len(dataset) else []
    folder, manifest = dataset.url, getattr(dataset, "manifest", MANIFEST)
    folder = folder.removesuffix(f"/{manifest}")
    store = open_store(folder)
    return [Span(store.locate(manifest), 0, len(dataset))] if store.exists(lineage_path(manifest)) else []


class Held:
    """The files that a plan, or some datasets, read.

    Args:
        datasets: by name of the source.

    Attributes:
        files: the files of each source.
    """

    def __init__(self, datasets: Mapping[str, Dataset], lineages: Lineages) -> None:
        self._datasets, self._lineages = datasets, lineages
        self.files = {name: files_of(dataset) for name, dataset in datasets.items()}
        self._sources: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for name, spans in self.files.items():
            for number, span in enumerate(spans):
                self._sources[lineages.place(span.path)].append((name, number))

    @classmethod
    def of(cls, plan: Plan, lineages: Lineages) -> Held:
        """Return the files of a plan."""
        return cls({name: plan.source(name) for name in plan.names}, lineages)

    @property
    def paths(self) -> list[str]:
        """All files, each once."""
        return list(dict.fromkeys(span.path for spans in self.files.values() for span in spans))

    def rows(self, source: str, index: int) -> list[Row]:
        """Return the rows that a sample is: several documents for a window; none for formats without lineage."""
        dataset, spans = self._datasets[source], self.files[source]
        if isinstance(dataset, WindowDataset):
            return [Row(spans[file].path, document) for file, document in dataset.documents_of(index)]
        return [Row(span.path, index - span.first) for span in spans if 0 <= index - span.first < span.rows]

    def samples(self, path: str, row: int) -> Iterator[tuple[str, int]]:
        """Yield source and number of each sample that has a row."""
        for name, number in self._sources.get(self._lineages.place(path), ()):
            dataset, span = self._datasets[name], self.files[name][number]
            if isinstance(dataset, WindowDataset):
                yield from ((name, window) for window in dataset.windows_of(number, row))
            elif 0 <= row < span.rows:
                yield name, span.first + row
