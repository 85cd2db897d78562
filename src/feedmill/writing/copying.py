"""Copy samples of existing datasets into new shards: plan which samples form a shard, and read them.

A dry run describes the shards instead: their names and sizes, and the checks of their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from feedmill.documents.lineage.samples import StoredRows, add_samples, size_of
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON
from feedmill.formats.energon.sidecar import read_splits
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import Sample
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.write import END
from feedmill.jobs.dry_run import DryRun
from feedmill.kernels.files.tar import ShardScan
from feedmill.planning.permutation import derive, permute
from feedmill.samples.description import declared_map, unreadable
from feedmill.samples.encode import Encoder
from feedmill.samples.open import open as open_dataset
from feedmill.writing.destination import Destination
from feedmill.writing.encoding import Encoded, Encoding, Taker
from feedmill.writing.index import present_shards
from feedmill.writing.shard import Layout, cut
from feedmill.writing.write import Keys, WriteReport

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
        count, sizes, size = len(group.order), None, None
        if layout.size is not None:
            sizes, size = _stored_sizes(dataset, group.order.numbers(0, count)), layout.size - len(END)
        out += [Piece(number, first, last) for first, last in pairwise(cut(count, sizes, layout.samples, size))]
    return out


def _stored_sizes(dataset: Dataset, numbers: Int64s) -> Int64s:
    if not isinstance(dataset, TarDataset):
        raise ConfigError(
            f"shards cannot be limited in bytes: {dataset.format} data does not store the sizes of samples",
            file=dataset.url,
            kind="bad-option",
            fix="Limit the number of samples instead (--max-shard-samples).",
        )
    return dataset.stored_sizes(numbers)


@dataclass(frozen=True, slots=True)
class Copy:
    """Function that yields the samples of a piece, read in bulk. It is sent to worker processes."""

    dataset: Dataset
    groups: list[Group]
    prefix: str = ""

    def __call__(self, piece: Piece) -> Iterator[Encoded]:
        encoding = Encoding(Encoder(), Taker())
        order, slices = self.groups[piece.group].order, bounded(self.dataset)
        for first in range(piece.first, piece.last, READ_SAMPLES):
            numbers = order.numbers(first, min(first + READ_SAMPLES, piece.last))
            for batch in slices(numbers):
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
    mean = mean_size(dataset) if known is None else 0

    def slices(numbers: Int64s) -> Iterator[slice]:
        after = np.cumsum(np.full(len(numbers), mean) if known is None else known.stored_sizes(numbers))
        first = 0
        while first < len(numbers):
            fits = int(np.searchsorted(after, (after[first - 1] if first else 0) + READ_BYTES, side="right"))
            last = min(max(first + 1, fits), first + READ_SAMPLES, len(numbers))
            yield slice(first, last)
            first = last

    return slices


def mean_size(dataset: Dataset) -> int:
    """Return the mean stored bytes of a sample; 0 if they are unknown."""
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


def plan_copies(dry: DryRun, target: Destination, work: Sequence[tuple[Copy, Piece]]) -> WriteReport:
    """Add to a dry run what copying these pieces, one shard each, would write; return the expected report.

    Args:
        work: function and piece of each shard, in order.

    Raises:
        DataError: a key occurs twice, or the declared sample type cannot read a sample. Of sources without an index
            of their parts, only the first samples are checked.
    """
    sizes: dict[str, int | None] = {}
    samples = 0
    for number, (copy, piece) in enumerate(work):
        numbers = copy.groups[piece.group].order.numbers(piece.first, piece.last)
        sizes[target.layout.shard(number)] = _stored(copy.dataset, numbers)
        samples += len(numbers)
    keys = Keys(target.url, target.base)
    field_map = declared_map(target.home) if target.append else {}
    for copy in {id(copy): copy for copy, _ in work}.values():
        read_by(dry, copy.dataset)
        _check(copy, keys, field_map, target.url)
    target.plan(dry, sizes)
    dry.counts = {"samples": samples, **dry.counts}
    known = [size for size in sizes.values() if size is not None]
    return WriteReport(target.url, samples, len(sizes), sum(known), reused=len(target.done))


def read_by(dry: DryRun, dataset: Dataset) -> None:
    """Add the files of a dataset to what is read."""
    about = dataset.describe()
    files = about.get("shards") or about.get("files") or 1
    dry.files += files if isinstance(files, int) else 1
    dry.bytes += int(about.get("bytes") or 0)


def _stored(dataset: Dataset, numbers: Int64s) -> int | None:
    """Return the size of a shard of these samples: that of the source, so new headers may make it a little smaller."""
    if isinstance(dataset, TarDataset):
        return int(dataset.stored_sizes(numbers).sum()) + len(END)
    return None


def _check(copy: Copy, keys: Keys, field_map: Mapping[str, str], url: str) -> None:
    for found, file in scans_of(copy.dataset):
        scan = replace(found, keys=[copy.prefix + key for key in found.keys])
        keys.add_all(scan.keys)
        problem = unreadable(field_map, scan, file) if field_map else None
        if problem is not None:
            raise _nothing_done(problem, url)


def _nothing_done(problem: DataError, url: str) -> DataError:
    problem.file, problem.offset = url, None
    problem.fix = f"Nothing was appended. {problem.fix}"
    return problem


def scans_of(dataset: Dataset) -> Iterator[tuple[ShardScan, str]]:
    """Yield keys and parts of the samples to copy: all that the index knows, else the first ones."""
    if isinstance(dataset, TarDataset) and sniff(dataset.url).format is ENERGON:
        places = {shard: place for place, shard in enumerate(dataset.table.shards)}
        chosen = [shard for shard in present_shards(dataset.store) if shard.path in places]
        for path, _, scan, _ in chosen:
            local = np.arange(len(scan.keys))
            kept = dataset.numbers(np.full(len(local), places[path]), local) >= 0
            yield _of_samples(scan, kept), dataset.store.locate(path)
        return
    first = dataset.read_raw(np.arange(min(READ_SAMPLES, len(dataset))))
    for sample in first:
        refuse_duplicate_parts(sample)
    yield _scan_of(first), dataset.url


def _of_samples(scan: ShardScan, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> ShardScan:
    """Return a scan without the samples that are excluded."""
    if kept.all():
        return scan
    members = kept[scan.sample]
    number = np.cumsum(kept) - 1
    return ShardScan(
        [key for key, keep in zip(scan.keys, kept.tolist(), strict=True) if keep],
        np.append(scan.starts[:-1][kept], scan.starts[-1]),
        number[scan.sample[members]].astype(np.int32),
        [part for part, keep in zip(scan.parts, members.tolist(), strict=True) if keep],
        scan.data[members],
        scan.sizes[members],
    )


def _scan_of(samples: Iterable[Sample]) -> ShardScan:
    """Return keys and parts of samples as the scan of a shard, without positions."""
    listed = list(samples)
    owners = [number for number, sample in enumerate(listed) for _ in sample]
    parts = [part for sample in listed for part in sample]
    none = np.zeros(len(parts), np.int64)
    starts = np.zeros(len(listed) + 1, np.int64)
    return ShardScan([sample.key for sample in listed], starts, np.asarray(owners, np.int32), parts, none, none)
