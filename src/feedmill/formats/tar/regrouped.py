"""Tars whose parts of a sample are not adjacent, read as whole samples: what ``feedmill convert --regroup`` reads.

All pieces of a key in a shard are one sample. If shards have different parts (``images.tar`` and ``texts.tar``), so are
all pieces of a key in the dataset. A sample is read in as many places as it has
pieces: convert such data before training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.sample import Sample, Source
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.strays import groups_of, regroup


def regrouped(dataset: Dataset) -> Dataset:
    """Return a dataset of whole samples. Raises `ConfigError` if it is not made of tars, or has an index of its own."""
    if not isinstance(dataset, TarDataset) or dataset.table.prepared:
        raise ConfigError(
            "--regroup is for tars without an index, and this is another dataset",
            file=dataset.url,
            kind="bad-option",
            fix="Leave it out: the samples of an index are whole.",
        )
    return RegroupedTars(dataset)


class RegroupedTars(Dataset):
    """The samples of `pieces`, whose parts with the same key are together."""

    format = "webdataset"

    def __init__(self, pieces: TarDataset) -> None:
        self.pieces, self.url, self.store = pieces, pieces.url, pieces.store
        table = pieces.table
        keys = [table.keys(shard) for shard in range(len(table.shards))]
        common, _ = table.apart()
        if common:
            groups = groups_of([key for each in keys for key in each])
        else:
            bounds = pieces.shard_bounds.tolist()
            groups = [
                [first + number for number in group]
                for first, each in zip(bounds, keys, strict=False)
                for group in groups_of(each)
            ]
        self._numbers = np.asarray([number for group in groups for number in group], np.int64)
        self._bounds = np.cumsum([0, *map(len, groups)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _first(self, indices: Indices) -> Int64s:
        return self._numbers[self._bounds[self._inside(indices)]]

    def read_raw(self, indices: Indices) -> list[Sample]:
        wanted = self._inside(indices)
        groups = [self._numbers[a:b] for a, b in zip(self._bounds[wanted], self._bounds[wanted + 1], strict=True)]
        read = iter(self.pieces.read_raw(np.concatenate([np.zeros(0, np.int64), *groups])))
        return [self._joined([next(read) for _ in group]) for group in groups]

    def _joined(self, pieces: Sequence[Sample]) -> Sample:
        """Return one sample with the parts of all pieces. Raises `DataError` if two have the same part."""
        contents: list[bytes] = []
        spans: dict[str, tuple[int, int]] = {}
        size = 0
        for piece in pieces:
            for name in piece:
                if name in spans:
                    raise DataError(
                        f"two samples with this key have the part {name!r}, so they are not pieces of one",
                        file=f"{piece.source.dataset}/{piece.source.file}",
                        offset=piece.source.offset,
                        record=piece.key,
                        kind="duplicate-part",
                        fix="Rename the members of one of them.",
                    )
                contents.append(piece.raw(name))
                spans[name] = (size, size + len(contents[-1]))
                size += len(contents[-1])
        first = pieces[0]
        return Sample(first.key, b"".join(contents), spans, lambda: first.source, self.decode, self.subflavors)

    def locate(self, index: int) -> Source:
        return self.pieces.locate(int(self._first([self._checked(index)])[0]))

    def find(self, key: str) -> int:
        place = np.flatnonzero(self._numbers == self.pieces.find(key))[0]
        return int(np.searchsorted(self._bounds, place, side="right")) - 1

    def fingerprint(self) -> str:
        return hash_words([self.pieces.fingerprint(), "regrouped"])

    def describe(self) -> dict[str, Any]:
        found = {**self.pieces.describe(), "samples": len(self)}
        others = [remark for remark in found.pop("remarks", ()) if not remark.endswith(regroup(self.url))]
        return {**found, "remarks": others} if others else found

    @property
    def row_files(self) -> Sequence[str]:
        return self.pieces.row_files

    def stored_rows(self, indices: Indices) -> tuple[Int64s, Int64s]:
        return self.pieces.stored_rows(self._first(indices))
