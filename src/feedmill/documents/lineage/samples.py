"""The lineage of outputs that are made of samples of datasets: shards, tables, files of lines.

Such an output has its lineage in the hidden folder ``.feedmill`` of its own folder, ``.feedmill/<name>.lineage``, so
that both are moved together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feedmill.documents.file import FOLDER
from feedmill.documents.lineage.sidecar import HIDDEN, Int64s, Lineage, Origins, Runs, lineage_path
from feedmill.formats.base import Dataset
from feedmill.formats.vla.dataset import ManifestDataset
from feedmill.storage import Store, open_store, split_url

Sizes = Callable[[str], int]
"""Function that returns the bytes of a file, by its path or URL."""


def size_of(url: str) -> int:
    """Return the bytes of a file. Raises NotFound."""
    folder, name = split_url(url)
    return open_store(folder).stat(name).size


def shard_lineage(path: str) -> str:
    """Return the path of the lineage of an output of samples.

    >>> shard_lineage("shards/000001.tar")
    'shards/.feedmill/000001.tar.lineage'
    """
    folder, _, name = path.rpartition("/")
    return f"{folder}/{FOLDER}/{name}{HIDDEN}" if folder else f"{FOLDER}/{name}{HIDDEN}"


@dataclass(frozen=True)
class StoredRows:
    """The samples of a dataset as rows of files.

    Attributes:
        paths: the files; none if the samples are rows of no file.
        one: whether sample n is row n of the only file: a manifest whose lineage is that of all its sequences.
    """

    dataset: Dataset
    paths: Sequence[str]
    one: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> StoredRows:
        """Return the rows of a dataset."""
        if isinstance(dataset, ManifestDataset) and dataset.store.exists(lineage_path(dataset.manifest)):
            return cls(dataset, [dataset.store.locate(dataset.manifest)], one=True)
        return cls(dataset, dataset.row_files)

    def rows(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return file and row of samples; see `Dataset.stored_rows`."""
        return (np.zeros_like(numbers), numbers) if self.one else self.dataset.stored_rows(numbers)

    def at(self, index: int) -> list[tuple[int, int]]:
        """Return file and row of a sample; nothing if it is a row of no file."""
        if not self.paths:
            return []
        files, rows = self.rows(np.asarray([index], np.int64))
        return list(zip(files.tolist(), rows.tolist(), strict=True))

    def samples(self, file: int, row: int) -> list[int]:
        """Return the samples that are a row of a file."""
        if self.one:
            return [row] if 0 <= row < len(self.dataset) else []
        return self.dataset.samples_of_row(file, row)


def add_samples(origins: Origins, stored: StoredRows, numbers: Int64s, sizes: Sizes = size_of) -> bool:
    """Append samples of a dataset, int64[n], to the lineage of an output.

    Returns:
        False, with nothing added, if the samples are rows of no file.
    """
    if not stored.paths:
        return False
    files, rows = stored.rows(numbers)
    place = np.zeros(len(stored.paths), np.int64)
    for file in np.unique(files).tolist():
        place[file] = origins.number(stored.paths[file], sizes(stored.paths[file]))
    origins.add(Runs.of(place[files], rows))
    return True


def write_shard_lineage(origins: Origins, store: Store, path: str, url: str | None = None) -> None:
    """Write the lineage of a finished output in a store.

    Args:
        url: path or URL of the output, if it is moved there from the store.
    """
    data = origins.encoded(url or store.locate(path), store.stat(path).size)
    store.write_bytes(shard_lineage(path), data)


def kept(lineage: Lineage, rows: Int64s) -> Origins:
    """Return the lineage of an output from which only these rows, int64[n], are kept."""
    origins = Origins(lineage.header.verb, lineage.header.options)
    files, found = lineage.runs.origins(rows)
    known = zip(lineage.inputs, lineage.header.inputs, strict=True)
    numbers = np.asarray([origins.number(url, one.size) for url, one in known], np.int64)
    origins.add(Runs.of(numbers[files], found))
    return origins
