"""Compute the statistics of a whole robotics dataset: read in parallel, aggregate in chunks, write at the end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.npz.arrays import read_npz
from feedmill.formats.sample import locate
from feedmill.formats.sniff import open_raw
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.samples.robotics.relative import SUFFIX, PoseGroup, advice, computed, sources
from feedmill.samples.robotics.statistics import Statistics, collect, write_statistics
from feedmill.samples.robotics.view import FUTURE_MASK, LOWDIM, PAST_MASK, anchor_of
from feedmill.samples.vla.text import bad_sample

_AT_ONCE = 64


def compute_statistics(
    url: str,
    output: str | None = None,
    *,
    fields: Sequence[str] | None = None,
    groups: Sequence[PoseGroup] = (),
    progress: bool = True,
) -> Statistics:
    """Compute the statistics of a robotics dataset.

    Args:
        url: Path or URL of the dataset.
        output: File to write the statistics to (``stats.json``); None writes no file.
        fields: Names of the fields; by default all numeric fields of the first sample, and the relative fields of all
            groups.
        groups: Poses from which relative fields (``X_relative``) are computed.
        progress: Show a progress bar.

    Raises:
        DataError: A sample's fields are missing, differ from those of other samples, or are not finite.
        ConfigError: The dataset has no samples, its samples are not VLA Foundry robotics samples, or all their steps
            are masked.
    """
    dataset, found_there = open_raw(url)
    if not len(dataset):
        raise ConfigError("the dataset has no samples", file=url, kind="empty-source")
    first = dataset.read_raw([0])[0]
    if LOWDIM not in first:
        raise ConfigError(
            f"the samples have no {LOWDIM} (they have: {', '.join(sorted(first)) or 'nothing'})"
            + (": this is a LeRobot dataset" if found_there.kind == "lerobot" else ""),
            file=url,
            kind="no-parts",
            fix="Make windows of a LeRobot dataset with 'feedmill compat vla windows', or with VLA Foundry's"
            " preprocessing.",
        )
    with Progress("statistics", len(dataset), "samples", enabled=progress) as bar:
        try:
            with closing(_fields(dataset, fields, groups, bar)) as read:
                statistics = collect(read, fields)
        except DataError as error:
            if error.kind == "missing-field":
                error.fix = " ".join(one for name in fields or () if (one := advice(name, groups))) or error.fix
            if error.file is None and error.record is not None:
                raise locate(error, dataset.locate(dataset.find(error.record)), error.record) from None
            raise
    if statistics and not any(field.count.any() for field in statistics.values()):
        raise ConfigError(
            f"all steps of its {len(dataset):,} samples are masked: past_mask and future_mask are false everywhere",
            file=url,
            kind="empty-source",
            fix="Fix the masks: statistics use only the steps where a mask is true.",
        )
    if output is not None:
        write_statistics(output, statistics)
    return statistics


def _fields(
    dataset: Dataset, fields: Sequence[str] | None, groups: Sequence[PoseGroup], bar: Progress
) -> Generator[tuple[str, dict[str, npt.NDArray[Any]]], None, None]:
    starts = range(0, len(dataset), _AT_ONCE)
    names = None if fields is None else (*fields, *sources(fields, groups), PAST_MASK, FUTURE_MASK)
    relative = [
        f"{field}{SUFFIX}" for group in groups for field in (group.position, group.rotation) if field is not None
    ]
    if fields is not None:
        relative = [name for name in fields if name.endswith(SUFFIX)]
    work = partial(_read, dataset, names, relative, groups)
    threads = available_cores()
    for batch in ordered_map(work, starts, workers=threads, in_flight=2 * threads):
        yield from batch
        bar.advance(len(batch))


def _read(
    dataset: Dataset, names: Sequence[str] | None, relative: Sequence[str], groups: Sequence[PoseGroup], start: int
) -> list[tuple[str, dict[str, npt.NDArray[Any]]]]:
    out = []
    for sample in dataset.read_raw(range(start, min(start + _AT_ONCE, len(dataset)))):
        try:
            lowdim = read_npz(sample.raw(LOWDIM), names, writable=False)
            if relative:
                lowdim |= computed(lowdim, relative, groups, anchor_of(sample))
        except FeedmillError:
            raise
        except Exception as error:  # NumPy and zlib raise many kinds of errors for corrupt bytes
            raise bad_sample(sample, f"{LOWDIM} cannot be read: {error}") from error
        out.append((sample.key, lowdim))
    return out
