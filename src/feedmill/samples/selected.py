"""Select samples of a dataset by number, as a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Want
from feedmill.formats.costs import Int64s
from feedmill.formats.extents import Extents
from feedmill.formats.offsets import hash_words
from feedmill.formats.sample import Sample, Source, no_such_key


def bounds_within(dataset: Dataset, numbers: Int64s) -> Int64s:
    """Return the bounds of shards, see `Dataset.shard_bounds`, of chosen samples of a dataset.

    Args:
        numbers: int64[n], their numbers. If these do not ascend, the samples are one shard.
    """
    if len(numbers) and (np.diff(numbers) < 0).any():
        return np.array([0, len(numbers)], np.int64)
    return np.searchsorted(numbers, dataset.shard_bounds)


class SelectedDataset(Dataset):
    """Dataset of selected samples of another dataset, which reads, decodes and locates them.

    Args:
        dataset: Any dataset that is not token data.
        numbers: int64[n], the numbers of the selected samples, in any order.
        what: Description of the selection, for `describe`.
    """

    format = "selection"

    def __init__(self, dataset: Dataset, numbers: Int64s, what: str) -> None:
        self.dataset, self.numbers, self.what = dataset, numbers, what
        self.url, self.split = dataset.url, dataset.split
        self._opened = replace(dataset.opened, reopen=None)

    @cached_property
    def _sorted(self) -> Int64s:
        """Places of the selection in ascending order of their numbers, for `find`."""
        return np.argsort(self.numbers, kind="stable")

    def opened_as(self, **changes: Any) -> SelectedDataset:
        return SelectedDataset(self.dataset.opened_as(**changes), self.numbers, self.what)

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, indices: Indices) -> list[Any]:
        return self.dataset.read(self._numbers(indices))

    def read_raw(self, indices: Indices) -> list[Sample]:
        return self.dataset.read_raw(self._numbers(indices))

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        return self.dataset.read_batch(self._numbers(indices), want)

    @property
    def is_remote(self) -> bool:
        return self.dataset.is_remote

    def warm(self) -> None:
        self.dataset.warm()

    def load_ahead(self) -> None:
        self.dataset.load_ahead()

    def copy_indices(self) -> None:
        self.dataset.copy_indices()

    def extents(self, indices: Indices) -> Sequence[Extents]:
        return self.dataset.extents(self._numbers(indices))

    @property
    def row_files(self) -> Sequence[str]:
        return self.dataset.row_files

    @property
    def shard_bounds(self) -> Int64s:
        return bounds_within(self.dataset, self.numbers)

    def stored_rows(self, indices: Indices) -> tuple[Int64s, Int64s]:
        return self.dataset.stored_rows(self._numbers(indices))

    def samples_of_row(self, file: int, row: int) -> list[int]:
        found = np.asarray(self.dataset.samples_of_row(file, row), np.int64)
        return np.flatnonzero(np.isin(self.numbers, found)).tolist()  # a sample may be selected twice

    def locate(self, index: int) -> Source:
        return self.dataset.locate(int(self.numbers[self._checked(index)]))

    def locate_part(self, name: str) -> Source:
        return self.dataset.locate_part(name)

    def find(self, key: str) -> int:
        """Return the number of a sample within the selection. Raises `NotFound`, also for keys outside of it."""
        number = self.dataset.find(key)
        place = int(np.searchsorted(self.numbers, number, sorter=self._sorted))
        if place == len(self) or self.numbers[self._sorted[place]] != number:
            raise no_such_key(f"{self.url} ({self.what})", key)
        return int(self._sorted[place])

    def fingerprint(self) -> str:
        import xxhash

        digest = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.numbers, "<i8").tobytes())
        return hash_words([self.dataset.fingerprint(), str(len(self)), digest])

    @property
    def lengths(self) -> Int64s | None:
        known = self.dataset.lengths
        return None if known is None else known[self.numbers]

    def _find_costs(self, by: str) -> Int64s | None:
        costs = self.dataset.costs(by)
        return None if costs is None else costs[self.numbers]

    @property
    def cost_fields(self) -> Sequence[str]:
        return self.dataset.cost_fields

    def costs_advice(self, by: str) -> str:
        return self.dataset.costs_advice(by)

    def describe(self) -> dict[str, Any]:
        """Return the facts of the dataset with the samples of the selection, and their bytes if the index has them."""
        facts = {**self.dataset.describe(), "samples": len(self), "selection": self.what}
        for whole in ("bytes", "excluded"):
            facts.pop(whole, None)
        sizes = self.costs("bytes")
        return facts if sizes is None else {**facts, "bytes": int(sizes.sum())}

    @property
    def splits(self) -> Mapping[str, int]:
        return self.dataset.splits

    def verify(self) -> Sequence[FeedmillError]:
        return self.dataset.verify()

    def _numbers(self, indices: Indices) -> Int64s:
        chosen: Int64s = self.numbers[np.asarray(indices, np.int64)]
        return chosen
