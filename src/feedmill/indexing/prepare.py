"""Create the index of a dataset: the verb `prepare`, by the kind of data.

For a JSONL file, it indexes the lines, and divides them into splits if requested.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.jsonl import index as jsonl
from feedmill.formats.jsonl import splits as jsonl_splits
from feedmill.formats.jsonl.splits import LineSplits, Pieces
from feedmill.formats.offsets import Int64s
from feedmill.indexing import splitting
from feedmill.indexing.options import Prepare
from feedmill.indexing.prepare_tars import prepare_tars
from feedmill.indexing.report import PrepareReport
from feedmill.jobs.dry_run import DryRun, active
from feedmill.jobs.engine import current
from feedmill.jobs.options import verb
from feedmill.jobs.work import alone
from feedmill.samples.media import MediaFilter  # noqa: F401 - type of an option, which `verb` looks up here
from feedmill.storage import Store, is_local_file, is_local_folder, open_store, split_url


@verb(Prepare)
def prepare(options: Prepare) -> PrepareReport:
    """An indexed dataset opens fast and supports random access. For a metadataset or recipe (``.yaml``), prepare its
    joins; its datasets must be prepared first. A dry run reads the archives, but does not hash them.

    Raises:
        DataError: a shard cannot be indexed, a key occurs twice, or the job that wrote the dataset was interrupted.
        ConfigError: splits or description are invalid for this data.
        NotFound, StorageError: the folder is missing, empty, or cannot be written.
    """
    url = os.fspath(options.url)
    began = time.perf_counter()
    folder = is_local_folder(url)
    if url.endswith(".jsonl") and not folder:
        report = prepare_jsonl(url, options)
    elif url.endswith((".yaml", ".yml")) and not folder:
        from feedmill.indexing.prepare_joins import prepare_joins  # imported here because it loads the planning room

        report = PrepareReport(url)
        report.joins, report.samples, report.warnings = prepare_joins(url)
    elif is_local_file(url):
        raise ConfigError(
            "unsupported kind of file: expected a folder of tar shards, a .jsonl file or a metadataset (.yaml)",
            file=url,
            kind="unknown-format",
            fix="For a tar, give its folder. Token files and datasets of other tools need no preparation.",
        )
    else:
        report = prepare_tars(url, options)
    report.seconds = time.perf_counter() - began
    return report


BLOCKS = 1000
"""Number of blocks of consecutive lines that are shuffled before the file is divided."""
_OF_TARS = ("split_parts", "exclude", "tar_index_only", "sample_type", "field_map", "media")
CRUDE = "CrudeWebdataset"


def prepare_jsonl(url: str, options: Prepare) -> PrepareReport:
    """Write ``<file>.jsonl.idx``, and ``<file>.jsonl.split.yaml`` if a ratio is given or the file exists already.

    Options for tar shards are rejected, unless `energon_exact` is set, which also ignores the ratio with a warning.

    Raises:
        DataError: a line is not an object, or lines that belong to splits changed and no ratio is given.
        ConfigError: an option is not for JSONL, or the ratio is invalid.
    """
    split_ratio = options.split_ratio
    if not options.energon_exact:
        _refuse(url, {name: getattr(options, name) for name in _OF_TARS})
    folder, name = split_url(url)
    store = open_store(folder)
    report = PrepareReport(url, shards=1, scanned=1, parts=["json"])
    if options.energon_exact and split_ratio is not None:
        split_ratio = None
        report.warnings.append(
            f"{url}: the split ratio was ignored, because Energon does not support splits of JSONL files."
            " Use 'feedmill prepare' to write splits."
        )
    numbers = None if split_ratio is None else splitting.ratio_of(split_ratio)  # fails before the file is read
    entry, idx, dry = store.stat(name), jsonl.idx_name(name), active()
    with alone(store, name) as work, _built(store, idx, dry) as path:
        with open(path, "r+b") as out:
            for piece in jsonl.scan_lines(store, entry, jsonl.Facts(), None if current() is None else work):
                out.write(piece.astype("<i8", copy=False).data)
        offsets = np.memmap(path, "<i8", "r")
        splits = _splits(store, name, offsets, numbers, options.shuffle_tars)
        if splits is not None:  # before the index, which marks the file as prepared
            if dry is None:
                jsonl_splits.write_splits(store, name, splits)
            else:
                dry.writes(store, jsonl_splits.splits_name(name))
            report.splits = {split: len(pieces) for split, pieces in splits.parts.items()}
            if numbers is not None:
                report.warnings += splitting.empty_splits(report.splits, numbers, "lines")
        report.samples, report.bytes = len(offsets) - 1, entry.size
        if dry is not None:
            dry.reads([entry.size])
            dry.writes(store, idx, offsets.nbytes)
            dry.counts["samples"] = report.samples
    return report


@contextlib.contextmanager
def _built(store: Store, path: str, dry: DryRun | None) -> Iterator[Path]:
    """Yield the path of an empty file that is published at the end of the block, or in a dry run deleted."""
    if dry is None:
        with store.build(path) as file:
            file.touch()
            yield file
        return
    with tempfile.NamedTemporaryFile(prefix="feedmill-") as temporary:
        yield Path(temporary.name)


def _splits(
    store: Store, name: str, offsets: Int64s, ratio: Sequence[Fraction] | None, shuffle: bool
) -> LineSplits | None:
    if ratio is not None:
        return divide(offsets, ratio, shuffle=shuffle)
    splits = jsonl_splits.read_splits(store, name)
    if splits is None:
        return None
    if not splits.fits(offsets):
        raise jsonl_splits.unfitting(store, name, splits, offsets)
    return splits.extended(offsets)


def divide(offsets: Int64s, ratio: Sequence[Fraction], *, shuffle: bool) -> LineSplits:
    """Return splits of the lines at `offsets`, int64[n + 1], with sizes nearest to the ratio.

    With `shuffle`, consecutive lines stay together in at most 1,000 blocks (single lines in a file of up to 1,000), so
    that the number of ranges does not grow with the file.
    """
    count = len(offsets) - 1
    edges = [count * i // BLOCKS for i in range(BLOCKS + 1)] if count > BLOCKS else list(range(count + 1))
    blocks = list(pairwise(edges))
    if shuffle:
        Random(42).shuffle(blocks)
    parts, at, taken = {}, 0, 0  # current block, and number of lines of it already assigned
    for name, wanted in splitting.sizes_by_ratio(count, ratio).items():
        ranges = []
        while wanted:
            begin, end = blocks[at]
            size = min(wanted, end - begin - taken)
            ranges.append((begin + taken, begin + taken + size))
            wanted, taken = wanted - size, taken + size
            if begin + taken == end:
                at, taken = at + 1, 0
        parts[name] = Pieces(sorted(ranges))
    return LineSplits(count, int(offsets[-2]), parts)


def _refuse(url: str, options: dict[str, Any]) -> None:
    if options.get("sample_type") == CRUDE:
        options = {name: value for name, value in options.items() if name != "sample_type"}
    given = [name for name, value in options.items() if value]
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot be used with a JSONL file: each of its samples has one part, json",
            file=url,
            kind="bad-option",
            fix="Remove the option. To divide the lines into splits, use --split-ratio.",
        )
