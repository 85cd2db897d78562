"""Copy samples of existing datasets into new shards: plan which samples form a shard, and read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from feedmill.documents.lineage.samples import StoredRows, add_samples, size_of
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON
from feedmill.formats.energon.splits import read_splits
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import Sample
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.planning.permutation import derive, permute
from feedmill.samples.encode import Encoder
from feedmill.samples.open import open as open_dataset
from feedmill.writing.encoding import Encoded, Encoding, Taker
from feedmill.writing.layout import Layout

READ_SAMPLES, READ_BYTES = 256, 64 << 20
"""Maximum number of samples read at once, and maximum bytes unless a single sample is larger."""


@dataclass(frozen=True, slots=True)
class Order:
    """Sample numbers of a dataset in the order in which they are written.

    Attributes:
        begins, ends: int64[k], consecutive ranges of sample numbers.
        key: seed of a permutation of all samples; None keeps the order of the ranges.
    """

    begins: Int64s
    ends: Int64s
    key: int | None = None

    def __len__(self) -> int:
        return int((self.ends - self.begins).sum())

    def numbers(self, first: int, last: int) -> Int64s:
        """Return the sample numbers at positions ``[first, last)``, int64[last - first]."""
        places = np.arange(first, last, dtype=np.int64)
        if self.key is not None:
            places = permute(places, len(self), self.key)
        after: Int64s = np.cumsum(self.ends - self.begins, dtype=np.int64)
        which = np.searchsorted(after, places, side="right")
        found: Int64s = self.ends[which] - (after[which] - places)
        return found


class Group(NamedTuple):
    """Samples that belong to the same splits; shards contain samples of one group only."""

    splits: tuple[str, ...]
    order: Order


class Piece(NamedTuple):
    """Samples of one new shard: positions ``[first, last)`` in the order of a group."""

    group: int
    first: int
    last: int


def open_source(url: str) -> Dataset:
    """Open a dataset whose samples have parts, as bytes. Raises as `feedmill.open`, and `ConfigError` for tokens."""
    dataset = open_dataset(url, raw=True, decode=None)
    if not hasattr(dataset, "read_tokens"):
        return dataset
    raise ConfigError(
        "token files have no parts to write to shards", file=url, kind="no-parts", fix="Give a dataset with parts."
    )


def groups_of(dataset: Dataset, shuffle: int | None = None) -> list[Group]:
    """Return the samples of a dataset grouped by the splits they are in, in order of first occurrence.

    Args:
        shuffle: seed of a random order within each group; None keeps the dataset's order.
    """
    found: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for begin, end, splits in runs_of_splits(dataset):
        found.setdefault(splits, []).append((begin, end))
    out = []
    for splits, runs in found.items():
        begins, ends = np.asarray(runs, np.int64).T.copy()
        key = None if shuffle is None else derive(shuffle, "reshard", *splits)
        out.append(Group(splits, Order(begins, ends, key)))
    return [group for group in out if len(group.order)]


def runs_of_splits(dataset: Dataset) -> list[tuple[int, int, tuple[str, ...]]]:
    """Return the samples of a dataset opened without a split, as ``(begin, end, splits)`` of runs in the same splits.

    A dataset without splits is in ``train``. If the format has splits but does not reveal their samples, they are in
    none.
    """
    if isinstance(dataset, JsonlDataset) and dataset.line_splits is not None:
        return dataset.line_splits.runs()
    if not isinstance(dataset, TarDataset):
        return [(0, len(dataset), () if dataset.splits else ("train",))]
    return [
        (*run, splits) for run, splits in zip(pairwise(dataset.shard_bounds.tolist()), _of_shards(dataset), strict=True)
    ]


def _of_shards(dataset: TarDataset) -> list[tuple[str, ...]]:
    """Return the names of the splits of each shard."""
    splits = None
    if sniff(dataset.url).format is ENERGON:
        splits = read_splits(dataset.store)
    if splits is None:
        return [("train",)] * len(dataset.table.shards)
    found: dict[str, list[str]] = {}
    for name in splits.parts:
        for shard in splits.shards(name):
            found.setdefault(shard, []).append(name)
    return [tuple(dict.fromkeys(found.get(shard, ()))) for shard in dataset.table.shards]


def pieces_of(dataset: Dataset, groups: Sequence[Group], layout: Layout) -> list[Piece]:
    """Divide every group into shards within the limits of `layout`; sizes are those of the source.

    Raises:
        ConfigError: the limit is in bytes, but the dataset does not know the sizes of its samples.
    """
    out: list[Piece] = []
    for number, group in enumerate(groups):
        cuts = _cuts(dataset, group.order, layout)
        out += [Piece(number, first, last) for first, last in pairwise(cuts)]
    return out


def _cuts(dataset: Dataset, order: Order, layout: Layout) -> list[int]:
    count = len(order)
    most = layout.samples or count
    if layout.size is None:
        return [*range(0, count, most), count]
    if not isinstance(dataset, TarDataset):
        raise ConfigError(
            f"shards cannot be limited in bytes: {dataset.format} data does not store the sizes of samples",
            file=dataset.url,
            kind="bad-option",
            fix="Limit the number of samples instead (--max-shard-samples).",
        )
    after = np.cumsum(dataset.stored_sizes(order.numbers(0, count)))
    cuts = [0]
    while cuts[-1] < count:
        at = cuts[-1]
        begun = int(after[at - 1]) if at else 0
        fits = int(np.searchsorted(after, begun + layout.size - 1024, side="right"))
        cuts.append(max(at + 1, min(fits, at + most, count)))
    return cuts


@dataclass(frozen=True, slots=True)
class Copy:
    """Function that yields the samples of a piece, read in bulk. It is sent to worker processes."""

    dataset: Dataset
    groups: list[Group]
    prefix: str = ""

    def __call__(self, piece: Piece) -> Iterator[Encoded]:
        encoding = Encoding(Encoder(), Taker())
        order, cut = self.groups[piece.group].order, bounded(self.dataset)
        for first in range(piece.first, piece.last, READ_SAMPLES):
            numbers = order.numbers(first, min(first + READ_SAMPLES, piece.last))
            for batch in cut(numbers):
                for sample in self.dataset.read_raw(numbers[batch]):
                    refuse_duplicate_parts(sample)
                    if self.prefix:
                        sample.key = self.prefix + sample.key
                    yield encoding(sample)

    def origins(self, verb: str) -> Callable[[Piece], Origins | None]:
        """Return a function that returns the lineage of the shard of a piece; None if samples are rows of no file."""
        stored, sizes = StoredRows.of(self.dataset), cache(size_of)

        def of(piece: Piece) -> Origins | None:
            origins = Origins(verb)
            numbers = self.groups[piece.group].order.numbers(piece.first, piece.last)
            return origins if add_samples(origins, stored, numbers, sizes) else None

        return of


Bounded = Callable[[Int64s], Iterator[slice]]
"""Function that divides sample numbers, int64[n], into consecutive slices that can be read at once."""


def bounded(dataset: Dataset) -> Bounded:
    """Return a function that divides sample numbers into slices of bounded size.

    It uses the stored size of each sample, or the mean size if the format does not know them.
    """
    known = dataset if isinstance(dataset, TarDataset | JsonlDataset) else None
    mean = _mean_size(dataset) if known is None else 0

    def cut(numbers: Int64s) -> Iterator[slice]:
        after = np.cumsum(np.full(len(numbers), mean) if known is None else known.stored_sizes(numbers))
        first = 0
        while first < len(numbers):
            fits = int(np.searchsorted(after, (after[first - 1] if first else 0) + READ_BYTES, side="right"))
            last = min(max(first + 1, fits), first + READ_SAMPLES, len(numbers))
            yield slice(first, last)
            first = last

    return cut


def _mean_size(dataset: Dataset) -> int:
    try:
        return int(dataset.describe().get("bytes") or 0) // max(1, len(dataset))
    except NotFound:  # a file is missing; reading it will raise
        return 0


def refuse_duplicate_parts(sample: Sample) -> None:
    """Raise `DataError` for a sample with two parts of the same name: one of them would be lost."""
    source = sample.source
    if len(source.names) > len(sample):
        twice = next(name for name in source.names if source.names.count(name) > 1)
        raise DataError(
            "the sample has this part twice: only one of them can be kept",
            file=source.where,
            offset=source.offset,
            record=twice,
            kind="duplicate-part",
            fix="Rename or remove one of the two members in the shard, and prepare it again.",
        )


def facts(dataset: Dataset, **options: Any) -> dict[str, Any]:
    """Return the identity of a job that copies this dataset with these options."""
    return {"source": dataset.url, "fingerprint": dataset.fingerprint(), **options}
