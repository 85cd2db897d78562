"""Add parts to existing samples, from another dataset with the same keys or from a function."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from feedmill.errors import DataError, NotFound, refuse_empty
from feedmill.formats.base import Dataset
from feedmill.formats.energon import prepared as energon
from feedmill.formats.offsets import hash_words
from feedmill.formats.sample import Sample
from feedmill.formats.tar.dataset import TarDataset
from feedmill.jobs.dry_run import DryRun, active
from feedmill.jobs.options import verb
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.samples.encode import Encoder
from feedmill.samples.open import open as open_dataset
from feedmill.storage import open_store
from feedmill.writing.copying import Piece, bounded, open_source, read_by, refuse_duplicate_parts, scans_of
from feedmill.writing.destination import Destination
from feedmill.writing.encoding import Encoded, Encoding, Taker, is_about
from feedmill.writing.index import need_local, need_prepared
from feedmill.writing.options import AddParts
from feedmill.writing.rewrite import Change, Rewrite, RewriteReport, plan_rewrite
from feedmill.writing.shard import Layout, Shard, write_shard
from feedmill.writing.work import identity
from feedmill.writing.write import encoding_facts, write_shards

Make = Callable[[list[Sample]], Sequence[Mapping[str, Any]]]
"""Function that maps samples to the new parts of each (name -> value)."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Source of new parts. It is sent to worker processes."""

    source: Dataset | Make
    parts: tuple[str, ...] | None
    skips: bool
    overwrite: bool
    encoder: Encoder

    def of(self, samples: list[Sample]) -> Iterator[tuple[Sample, dict[str, Any]]]:
        """Yield each sample with its new parts."""
        if isinstance(self.source, Dataset):
            yield from self._looked_up(self.source, samples)
            return
        made = list(self.source(samples))
        if len(made) != len(samples):
            raise DataError(
                f"the function returned {len(made)} mappings of parts for {len(samples)} samples",
                kind="bad-hook",
                fix="Return one mapping for each sample, in the same order.",
            )
        for sample, parts in zip(samples, made, strict=True):
            yield sample, {name: value for name, value in parts.items() if not is_about(name)}

    def _looked_up(self, source: Dataset, samples: list[Sample]) -> Iterator[tuple[Sample, dict[str, Any]]]:
        numbers = [self._number(source, sample.key) for sample in samples]
        known = np.asarray([number for number in numbers if number is not None], np.int64)
        read = (found for batch in bounded(source)(known) for found in source.read_raw(known[batch]))
        for sample, number in zip(samples, numbers, strict=True):
            if number is None:
                yield sample, {}
                continue
            found = next(read)
            yield sample, {name: found.raw(name) for name in (found if self.parts is None else self.parts)}

    def matched(self, dry: DryRun, url: str, shards: Sequence[Sequence[str]]) -> list[int]:
        """Return how many samples of each shard, given by their keys, get parts, and add the source to a dry run.

        All keys are looked up, and the parts of the first sample of each shard. A function is called for these only.

        Raises as the real run for a key that the source lacks, and for a part that exists already.
        """
        if isinstance(self.source, Dataset):
            read_by(dry, self.source)
        counts, dataset = [], open_source(url)
        for keys in shards:
            known = [key for key in keys if not isinstance(self.source, Dataset) or self.has(key)]
            counts.append(len(known))
            first = [number for key in known[:1] if (number := _found(dataset, key)) is not None]
            for sample, new in self.of(dataset.read_raw(first)):
                refuse_existing(sample, new, self.overwrite)
        return counts

    def has(self, key: str) -> bool:
        """Return whether the source, a dataset, has a key."""
        assert isinstance(self.source, Dataset)
        return self._number(self.source, key) is not None

    def _number(self, source: Dataset, key: str) -> int | None:
        try:
            return source.find(key)
        except NotFound:
            if not self.skips:
                raise NotFound(
                    "the source has no sample with this key",
                    file=source.url,
                    record=key,
                    kind="no-such-sample",
                    fix="To leave such samples unchanged, pass on_error='skip' (--on-error skip).",
                ) from None
            return None


@verb(AddParts)
def add_parts(options: AddParts) -> RewriteReport:
    """Without `into`, every shard is rewritten with the new parts. This needs free disk space of the dataset's size,
    and joins must be prepared again. With `into`, the dataset is not changed: the new dataset has the same keys and
    one shard per old shard, for use as auxiliary data.

    Raises:
        EmptyResult: no sample would get a part.
        NotFound: the source lacks a key or part.
        DataError: a sample already has such a part, or a value cannot be stored.
        ConfigError: options are invalid, or shards in an object store would change.
        StorageError: the dataset cannot be written.
    """
    url = os.fspath(options.url)
    began = time.perf_counter()
    skip = skips(on_error_policy(options.on_error))
    store = open_store(url)
    need_prepared(store, url)
    parts = (options.parts,) if isinstance(options.parts, str) else options.parts
    source = options.source
    dataset = open_source(os.fspath(source)) if isinstance(source, str | os.PathLike) else source
    column = _Column(dataset, None if parts is None else tuple(parts), skip, options.overwrite, Encoder(options.encode))
    if isinstance(dataset, Dataset):
        named = dataset.url, dataset.fingerprint()
    else:
        named = "function", identity(dataset)
    chosen = [*named, *(parts or ()), "skip" if skip else "error", str(options.overwrite)]
    job = {"from": hash_words(chosen), **encoding_facts(None, options.encode)}
    if options.into is not None:
        report = _into(url, options.into, column, job, options.workers, options.progress)
    else:
        need_local(store, url, "add-parts")
        report = _in_place(url, column, job, options.workers, options.progress, allow_empty=options.allow_empty)
    report.seconds = round(time.perf_counter() - began, 3)
    return report


def _in_place(
    url: str, column: _Column, job: Mapping[str, Any], workers: int | None, progress: bool | None, *, allow_empty: bool
) -> RewriteReport:
    report = RewriteReport(url)
    with Rewrite(url, "add-parts", job) as change:
        if change.swapping:
            change.finish(report)
            return report
        if column.skips and not allow_empty:
            _refuse_disjoint_keys(change.shards, url, column)
        if (dry := active()) is not None:
            matched = column.matched(dry, url, [shard.scan.keys for shard in change.shards])
            plan_rewrite(dry, change, dict.fromkeys(shard.path for shard in change.shards))
            dry.counts |= {"samples with new parts": sum(matched)}
            report.rewritten = report.shards = len(change.shards)
            report.samples = sum(len(shard.scan.keys) for shard in change.shards)
            return report
        todo = {shard.path: None for shard in change.shards}
        before = {shard.path: len(shard.scan.parts) for shard in change.shards}
        make = _Adder(column)
        made = change.make(todo, make, workers=workers, progress=progress, label="adding parts")
        report.rewritten = report.shards = len(made)
        report.bytes = sum(shard.record.size for shard in made)
        report.samples = sum(len(shard.scan.keys) for shard in made)
        added = sum(len(shard.scan.parts) - count for shard, count in zip(made, before.values(), strict=True))
        report.warnings.append(f"{added} parts were added to {report.samples} samples")
        changed = {old.path: new.path for old, new in zip(change.shards, made, strict=True)}
        new = _new_parts(column, change.shards, made)
        report.warnings += change.swap(changed, [], parts_in=new, facts=report.as_dict())
    return report


def _new_parts(column: _Column, old: Sequence[Shard], made: Sequence[Shard]) -> set[str]:
    """Return the names of all parts that may be new or overwritten."""
    if column.parts is not None:
        return set(column.parts)
    before, after = (Counter(part for shard in shards for part in shard.scan.parts) for shards in (old, made))
    return {part for part, count in after.items() if column.overwrite or count > before[part]}


def _refuse_disjoint_keys(shards: Sequence[Shard], url: str, column: _Column) -> None:
    """Raise `EmptyResult` if the source has none of the dataset's keys: rewriting the shards would change nothing."""
    if isinstance(column.source, Dataset):
        keys = [key for shard in shards for key in shard.scan.keys]
        if not any(column.has(key) for key in keys):
            why = {"the source lacks the key": len(keys)}
            refuse_empty(0, len(keys), "sample", file=url, skipped=why, fix="Check that both have the same keys.")


@dataclass(frozen=True, slots=True)
class _Adder:
    """Function that rewrites a shard with the new parts added."""

    column: _Column

    def __call__(self, change: Change) -> Shard:
        encoding = Encoding(self.column.encoder, Taker())
        both = chain.from_iterable(map(self.column.of, _samples_of(change)))
        samples = (encoding.of(sample.key, self._with(sample, new).items()) for sample, new in both)
        shard = write_shard(open_store(change.url), change.new, samples)
        assert shard is not None
        return shard

    def _with(self, sample: Sample, added: Mapping[str, Any]) -> dict[str, Any]:
        refuse_duplicate_parts(sample)
        refuse_existing(sample, added, self.column.overwrite)
        return {name: sample.raw(name) for name in sample} | dict(added)


def _found(dataset: Dataset, key: str) -> int | None:
    """Return the number of a sample; None if a split excludes it."""
    try:
        return dataset.find(key)
    except NotFound:
        return None


def refuse_existing(sample: Sample, added: Mapping[str, Any], overwrite: bool) -> None:
    """Raise `DataError` if a sample has one of the new parts already, unless they are replaced."""
    both = [name for name in added if name in sample]
    if both and not overwrite:
        raise DataError(
            f"the sample already has a part {both[0]!r}",
            file=sample.source.where,
            record=sample.key,
            kind="duplicate-part",
            fix="Do not add this part, or replace it with overwrite=True (--overwrite).",
        )


def _samples_of(change: Change) -> Iterator[list[Sample]]:
    """Yield all samples of one shard, including those that a split excludes."""
    dataset = open_source(change.url)
    assert isinstance(dataset, TarDataset)
    whole = one_shard(dataset, change.shard.path)
    yield from _read(whole, 0, len(whole))


def _read(dataset: Dataset, first: int, last: int) -> Iterator[list[Sample]]:
    numbers = np.arange(first, last)
    for batch in bounded(dataset)(numbers):
        yield dataset.read_raw(numbers[batch])


def one_shard(dataset: TarDataset, path: str) -> TarDataset:
    """Return a dataset of all samples of one shard of a prepared dataset."""
    info = energon.read_info(dataset.store)
    table = energon.PreparedShards(dataset.store, info, [path], None, None)
    return TarDataset(dataset.store, table, name=dataset.url)


@dataclass(frozen=True, slots=True)
class _New:
    """Function that yields samples with only the new parts, under the old keys."""

    dataset: Dataset
    column: _Column

    def __call__(self, piece: Piece) -> Iterator[Encoded]:
        encoding = Encoding(self.column.encoder, Taker())
        for samples in _read(self.dataset, piece.first, piece.last):
            for sample, added in self.column.of(samples):
                if added:
                    yield encoding.of(sample.key, added.items())


def _into(
    url: str, into: str, column: _Column, job: Mapping[str, Any], workers: int | None, progress: bool | None
) -> RewriteReport:
    dataset = open_dataset(url, raw=True, decode=None)
    assert isinstance(dataset, TarDataset)
    bounds = dataset.shard_bounds.tolist()
    pieces = [Piece(0, first, last) for first, last in pairwise(bounds)]
    description = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    facts = {"verb": "add-parts", "of": dataset.fingerprint(), **job}
    target = Destination(into, Layout(samples=None, size=None), job=facts, description=description)
    with closing(target):
        if (dry := active()) is not None:
            keys = {file: scan.keys for scan, file in scans_of(dataset)}
            matched = column.matched(dry, url, [keys[dataset.store.locate(shard)] for shard in dataset.table.shards])
            shards = [target.layout.shard(number) for number, count in enumerate(matched) if count]
            target.plan(dry, dict.fromkeys(shards))
            dry.counts = {"samples with new parts": sum(matched), **dry.counts}
            return RewriteReport(into, sum(matched), shards=len(shards))
        written = write_shards(target, pieces, _New(dataset, column), workers=workers, progress=progress)
    report = RewriteReport(into, written.samples, 0, 0, written.shards, written.bytes)
    if written.samples < len(dataset):
        report.warnings.append(f"{len(dataset) - written.samples} samples got no part")
    return report
