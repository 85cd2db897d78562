"""Reshard a dataset: write its samples into shards of another size or order."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON, database
from feedmill.formats.energon.sidecar import Splits, read_splits
from feedmill.formats.offsets import hash_words
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.jobs.dry_run import perform
from feedmill.jobs.options import verb
from feedmill.storage import Store, canonical_location
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.limits import parse_size
from feedmill.writing.copying import Copy, Group, Piece, facts, groups_of, open_source, pieces_of, plan_copies
from feedmill.writing.destination import Destination
from feedmill.writing.index import Media
from feedmill.writing.options import Reshard
from feedmill.writing.shard import PATTERN, Layout
from feedmill.writing.write import WriteReport, write_shards

_DESCRIPTION = ("dataset.yaml", "sample_loader.py")


@verb(Reshard)
def reshard(options: Reshard) -> WriteReport:
    """No shard mixes splits; splits keep their names, and the description is copied. Excluded shards and samples are
    skipped and reported. The output does not depend on `workers`.

    Raises:
        ConfigError: no limit is given, `url` is inside the source, or a dataset exists already.
        DataError: the source is corrupt, or a key occurs twice.
        StorageError: the dataset cannot be written.
    """
    source = os.fspath(options.source)
    url = os.fspath(options.url)
    began = time.perf_counter()
    if options.max_shard_samples is None and options.max_shard_size is None:
        raise ConfigError(
            "no shard limit was given",
            kind="bad-option",
            fix="Pass max_shard_samples (--max-shard-samples) or max_shard_size (--max-shard-size).",
        )
    if f"{canonical_location(url)}/".startswith(f"{canonical_location(source)}/"):
        raise ConfigError("a dataset cannot be re-sharded into itself", file=url, fix="Write to another folder.")
    layout = Layout(options.pattern or PATTERN, options.max_shard_samples, parse_size(options.max_shard_size))
    dataset = open_source(source)
    if options.overwrite:
        _keep_source(dataset, url)
    groups = groups_of(dataset, options.shuffle)
    if any(dataset.splits.values()) and not any(group.splits for group in groups):
        raise ConfigError(
            f"the splits of {dataset.format} would be lost",
            file=source,
            kind="loses-content",
            fix="'feedmill convert --to webdataset' keeps them.",
        )
    pieces = pieces_of(dataset, groups, layout)
    target = Destination(
        url,
        layout,
        job={
            "verb": "reshard",
            "prefix": options.prefix,
            **facts(dataset, shuffle=options.shuffle, splits=_split_hash(groups)),
        },
        overwrite=options.overwrite,
        media=_media(source, options.prefix),
    )
    copy = Copy(dataset, groups, options.prefix)

    def execute() -> WriteReport:
        _copy_description(source, target.store)
        how: dict[str, Any] = {"splits": _splits(dataset, groups, pieces), "origins": copy.origins("reshard")}
        report = write_shards(target, pieces, copy, workers=options.workers, progress=options.progress, **how)
        report.seconds = round(time.perf_counter() - began, 3)
        return report

    with closing(target):
        report = perform(lambda dry: plan_copies(dry, target, [(copy, piece) for piece in pieces]), execute)
    report.warnings += _left_out(dataset)
    return report


def _split_hash(groups: Sequence[Group]) -> str:
    """Return a hash that distinguishes these splits from others of the same samples."""
    return hash_words([f"{g.splits} {g.order.begins.tobytes().hex()} {g.order.ends.tobytes().hex()}" for g in groups])


def _keep_source(dataset: Dataset, url: str) -> None:
    """Raise `ConfigError` if the dataset to replace contains shards of the source."""
    if not isinstance(dataset, TarDataset):
        return
    folder = canonical_location(url)
    for shard in dataset.table.shards:
        place = dataset.store.locate(shard)
        if canonical_location(place).startswith(f"{folder}/"):
            raise ConfigError(
                "this shard of the source is part of the dataset to be replaced",
                file=place,
                kind="input-is-output",
                fix="Write to another folder.",
            )


def _splits(dataset: Dataset, groups: Sequence[Group], pieces: Sequence[Piece]) -> dict[str, list[int]]:
    """Return split -> numbers of the pieces that are in it; empty splits are kept."""
    names = dict.fromkeys((*dataset.splits, *(name for group in groups for name in group.splits)))
    return {name: [n for n, piece in enumerate(pieces) if name in groups[piece.group].splits] for name in names}


def _media(source: str, prefix: str) -> Media | None:
    found = sniff(source)
    if found.format is not ENERGON or not found.store.exists(database.INDEX):
        return None
    return Media(cached_copy(found.store, database.INDEX), prefix)


def _copy_description(source: str, store: Store) -> None:
    found = sniff(source)
    if found.format is not ENERGON:
        return
    for name in _DESCRIPTION:
        path = f"{database.META}/{name}"
        if found.store.exists(path):
            store.write_bytes(path, found.store.read(path))


def _left_out(dataset: Dataset) -> list[str]:
    """Return warnings about excluded data of the source that was not written."""
    if not isinstance(dataset, TarDataset) or sniff(dataset.url).format is not ENERGON:
        return []
    splits = read_splits(dataset.store) or Splits()
    out = []
    if splits.shards_out:
        out.append(f"{len(splits.shards_out)} shards excluded by the split file were skipped")
    excluded = int(dataset.table.counts.sum()) - len(dataset)
    if excluded:
        out.append(f"{excluded} samples excluded by the split file were skipped")
    return out
