"""Read samples in batches, and return an error for each sample that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedmill.errors import DataError, FeedmillError, NotFound, StorageError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.formats.tables.dataset import TableDataset


def read_each(dataset: Dataset, numbers: range) -> Iterator[tuple[int, Sample | FeedmillError]]:
    """Yield the number of each sample with the sample, or with the error that reading it raised.

    Raises:
        StorageError: the storage failed, which is not an error of one sample.
    """
    try:
        yield from zip(numbers, dataset.read_raw(numbers), strict=True)
    except StorageError:
        raise
    except FeedmillError:
        for piece in _pieces(dataset, numbers):
            yield from _one_by_one(dataset, piece)


def _pieces(dataset: Dataset, numbers: range) -> Sequence[range]:
    """Return the ranges of samples that are stored together, so that damage affects each as a whole."""
    return dataset.blocks(numbers) if isinstance(dataset, TableDataset) else [numbers]


def _one_by_one(dataset: Dataset, numbers: range) -> Iterator[tuple[int, Sample | FeedmillError]]:
    gone: FeedmillError | None = None
    if isinstance(dataset, TableDataset):
        try:
            dataset.arrow_rows(numbers[:1])  # a damaged block fails for all its rows: read it once
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
