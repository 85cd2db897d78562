"""Dry runs of verbs that copy samples to new shards: names and sizes of the shards, and the checks of their samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import Sample
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.write import END
from feedmill.jobs.dry_run import DryRun, active
from feedmill.kernels.files.tar import ShardScan
from feedmill.samples.description import declared_map, unreadable
from feedmill.writing.copying import READ_SAMPLES, Copy, Piece, refuse_duplicate_parts
from feedmill.writing.destination import Destination
from feedmill.writing.present import present_shards
from feedmill.writing.writer import Keys, WriteReport


def plan_copies(target: Destination, work: Sequence[tuple[Copy, Piece]]) -> WriteReport:
    """Add to the current dry run what copying these pieces, one shard each, would write; return the expected report.

    Args:
        work: function and piece of each shard, in order.

    Raises:
        DataError: a key occurs twice, or the declared sample type cannot read a sample. Of sources without an index
            of their parts, only the first samples are checked.
    """
    dry = active()
    assert dry is not None
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
    target.plan(sizes)
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
