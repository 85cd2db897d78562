"""Samples of a source, some at a time, where some of them cannot be read: the others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedmill.errors import DataError, FeedmillError, NotFound, StorageError
from feedmill.formats.base import Dataset, Sample
from feedmill.formats.tables.dataset import TableDataset


def read_each(dataset: Dataset, numbers: range) -> Iterator[tuple[int, Sample | FeedmillError]]:
    """Number of each sample, and the sample or why it cannot be read.

    Raises `StorageError`, and whatever does not come from the data.
    """
    try:
        yield from zip(numbers, dataset.read_raw(numbers), strict=True)
    except StorageError:
        raise
    except FeedmillError:
        for piece in _pieces(dataset, numbers):
            yield from _one_by_one(dataset, piece)


def refuse_twofold_columns(dataset: Dataset) -> None:
    """Raises `DataError` if two columns have one name: only one of them could be read."""
    names = dataset.names if isinstance(dataset, TableDataset) else []
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            "two columns have this name, and only one of them could be kept",
            file=dataset.url,
            record=twice,
            kind="duplicate-column",
            fix="Rename one of them.",
        )


def _pieces(dataset: Dataset, numbers: range) -> Sequence[range]:
    """Return what of a table is stored together, and so is missing together."""
    return dataset.blocks(numbers) if isinstance(dataset, TableDataset) else [numbers]


def _one_by_one(dataset: Dataset, numbers: range) -> Iterator[tuple[int, Sample | FeedmillError]]:
    gone: FeedmillError | None = None
    if isinstance(dataset, TableDataset):
        try:
            dataset.arrow_rows(numbers[:1])  # of a block that is damaged, no row need be tried
        except (DataError, NotFound) as error:
            gone = error
    for number in numbers:
        if gone is not None:
            yield number, gone
            continue
        try:
            (sample,) = dataset.read_raw([number])
        except (DataError, NotFound) as error:
            yield number, error
        else:
            yield number, sample
