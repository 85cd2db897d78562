"""List, fill and clear the cache of remote data: the work of ``feedmill cache``.

Fill the cache before a run so that the run does not wait for the network; clear it to free space on the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.jobs.options import verb
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import VerbReport
from feedmill.loading.options import Cache
from feedmill.planning.given import bound_plan
from feedmill.planning.plan import Plan
from feedmill.planning.remote_reads import window_of
from feedmill.samples.text import human_size
from feedmill.storage.base import storage_error
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.folder import SIZE, Cached
from feedmill.storage.cache.reading import CacheUse
from feedmill.storage.cache.settings import DataCache, using_cache
from feedmill.storage.fetching.read_ahead import BUDGET, ReadAhead
from feedmill.storage.folders import cache_folder
from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

ACTIONS = ("list", "warm", "clear")


@dataclass(slots=True)
class CacheReport(VerbReport):
    """The objects in the cache, and the bytes that an action fetched or freed.

    Attributes:
        action: ``list``, ``warm`` or ``clear``.
        dir: folder of the data.
        objects: the objects by URL; after `warm` and `clear`, those that are now in the cache. Their kind is ``data``,
            ``index`` for copies of remote indices, or ``derived`` for computed files, which have paths instead of URLs.
            The last two kinds are in the cache folder, and are reported unless another folder is given.
        fetched: bytes that `warm` requested.
        freed: bytes that `clear` freed.
        seconds: duration.
    """

    action: str
    dir: str
    objects: list[Cached] = field(default_factory=list)
    fetched: int = 0
    freed: int = 0
    seconds: float = 0.0

    @property
    def present(self) -> int:
        """Return the total bytes of the objects in the cache."""
        return sum(item.present for item in self.objects)

    def of_kind(self, kind: str) -> list[Cached]:
        """Return the objects of one kind."""
        return [item for item in self.objects if item.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {**VerbReport.as_dict(self), "present": self.present}


@verb(Cache)
def cache(options: Cache) -> CacheReport:
    """Return the objects that are now in the cache. ``warm`` fetches the data and the indices of recipes or plans
    before a run, of endless ones their first `samples`; ``clear`` deletes cached data that no process uses.

    Raises:
        ConfigError: an unknown action, no recipe or no samples to fetch, no size, a plan without remote data or without
            an end, or data that is larger than the cache.
        FeedmillError: as `Recipe.load` and `Recipe.plan` do.
        StorageError: a request failed.
    """
    action = options.action
    if action not in ACTIONS:
        raise ConfigError(f"the action {action!r} is unknown", kind="bad-cache", fix=f"Use {', '.join(ACTIONS)}.")
    began = time.monotonic()
    if action == "warm":
        report = _warm(options)
    else:
        report = _list_or_clear(action, [str(target) for target in options.targets], options.dir)
    report.seconds = time.monotonic() - began
    return report


def _list_or_clear(action: str, prefixes: Sequence[str], dir: str | None) -> CacheReport:
    """Return the report of the action `list` or `clear`."""
    cache = disk_cache(cache_folder() if dir is None else Path(dir).expanduser())
    report = CacheReport(action, str(cache.folder))
    everything: list[str | None] = [None]
    if action == "clear":
        try:
            report.freed = sum([cache.clear(prefix) for prefix in prefixes or everything])
        except OSError as error:
            raise storage_error(error, str(cache.folder)) from None
    report.objects = [item for item in cache.list() if not prefixes or any(map(item.url.startswith, prefixes))]
    return report


def _warm(options: Cache) -> CacheReport:
    targets, dir, size, samples = options.targets, options.dir, options.size, options.samples
    if not targets:
        raise ConfigError("no recipe is given", kind="bad-cache", fix="Name the recipes whose data to fetch.")
    report = CacheReport("warm", "")
    filled: list[tuple[Plan, int, CacheUse]] = []
    for target in targets:
        plan, path = bound_plan(target, trust=options.trust)
        settings = plan.cache or DataCache.of(size, dir)
        if size is not None or dir is not None:
            settings = DataCache.of(settings.size if size is None else size, dir or str(settings.dir), settings.unit)
        use = settings.use()
        if use is None:
            raise ConfigError(
                "the size of the cache is missing",
                file=path,
                kind="bad-cache",
                fix=f"Give --size, set {SIZE}, or add 'cache' to the recipe.",
            )
        if not plan.is_remote:
            raise ConfigError(
                "the plan has no remote data", file=path, kind="unsupported", fix="Local data needs no cache."
            )
        with using_cache(settings):
            report.fetched += _copy_indices(plan, use)
        count = plan.length if samples is None else samples if plan.length is None else min(samples, plan.length)
        if count is None:
            raise ConfigError(
                "the plan never ends: the number of samples to fetch is required",
                file=path,
                kind="endless",
                fix="Give --samples N.",
            )
        if count < 1:
            raise ConfigError(f"samples={samples} fetches nothing", kind="bad-cache", fix="Give at least 1.")
        filled.append((plan, count, use))
        _fill(plan, count, use, report, options.progress)
        report.dir = str(settings.dir)
        copies = [] if use.cache is disk_cache(cache_folder()) else disk_cache(cache_folder()).list()
        report.objects = sorted([*copies, *use.cache.list()])
    for plan, count, use in filled:
        _check_present(plan, count, use)
    return report


def _check_present(plan: Plan, count: int, use: CacheUse) -> None:
    """Raise `ConfigError` unless the cache has the first samples of a plan, of which others may have been evicted."""
    window = window_of(plan)
    for first in range(0, count, window):
        for extents in plan.extents(np.arange(first, min(first + window, count), dtype=np.int64)):
            if not isinstance(extents.store, RangeStore):
                continue
            files = np.unique(extents.file)
            keys = [extents.store.key(extents.paths[number]) for number in files.tolist()]
            opened = use.open(extents.store, keys, len(extents.paths))
            for number, cached in zip(files.tolist(), opened, strict=True):
                rows = extents.file == number
                ranges = zip(extents.begins[rows].tolist(), extents.ends[rows].tolist(), strict=True)
                if cached is None or not all(cached.present(*pair) for pair in ranges):
                    raise _full(use, count, count, "made room for each other, or for other recipes, in")


def _copy_indices(plan: Plan, use: CacheUse) -> int:
    """Copy the indices of a plan's remote sources to this machine, and return the number of bytes fetched."""
    caches = {use.cache, disk_cache(cache_folder())}

    def present() -> dict[tuple[str, str, str], int]:
        items = [item for cache in caches for item in cache.list() if item.kind != "derived"]
        return {(item.url, item.version, item.kind): item.present for item in items}

    before = present()
    for source in plan.bases.datasets:
        source.copy_indices()
    return sum(max(0, size - before.get(item, 0)) for item, size in present().items())


def _fill(plan: Plan, count: int, use: CacheUse, report: CacheReport, progress: bool | None) -> None:
    """Fetch the bytes of the first samples of a plan into the cache."""
    _warn_of_size(plan, count, use)
    reader = ReadAhead(BUDGET, use)
    has_ranges, window = False, window_of(plan)
    with closing(reader), Progress("fetching", count, "samples", enabled=progress) as bar:
        for step, first in enumerate(range(0, count, window)):
            positions = np.arange(first, min(first + window, count), dtype=np.int64)
            for extents in plan.extents(positions):
                if isinstance(extents.store, RangeStore):
                    has_ranges = True
                    steps = np.full(len(extents.file), step, np.int64)
                    ranges = extents.file, extents.begins, extents.ends, steps
                    reader.want(extents.store, extents.paths, *ranges, None)
            reader.finish()
            reader.done(step)
            bar.advance(len(positions))
            if use.refused or use.fetched > use.cache.capacity():
                raise _full(use, first + len(positions), count)
    if not has_ranges:
        raise ConfigError(
            "the data of these formats cannot be fetched ahead: the byte ranges of their samples are unknown",
            kind="unsupported",
            fix="Start the run: files of these formats are copied when they are opened.",
        )
    report.fetched += use.fetched


def _warn_of_size(plan: Plan, count: int, use: CacheUse) -> None:
    """Log that the cache is too small for samples before hours are spent on filling it, by the sizes of the first ones.

    Bytes between samples are not counted, and samples that a mixture repeats are.
    """
    once = min(count, sum(map(len, plan.sources)))  # later epochs need the same bytes again
    first, room = min(once, window_of(plan)), use.cache.capacity()
    extents = plan.extents(np.arange(first, dtype=np.int64))
    sizes = [int((each.ends - each.begins).sum()) for each in extents if isinstance(each.store, RangeStore)]
    about = sum(sizes) * once // max(1, first)
    if about > room:
        logger.warning(
            "%s samples take about %s, and the cache holds %s: fetching ends with an error if it becomes full. Give a"
            " larger --size, or fewer --samples.",
            f"{once:,}",
            human_size(about),
            human_size(room),
        )


def _full(use: CacheUse, samples: int, count: int, why: str = "are larger than") -> ConfigError:
    """Return the error for data that does not fit into the cache, or for a cache that is disabled."""
    folder = str(use.cache.folder)
    if use.cache.disabled:
        return ConfigError(
            "the cache cannot be written to", file=folder, kind="bad-cache", fix="See the log for the reason."
        )
    return ConfigError(
        f"the first {samples:,} samples of {count:,} {why} the cache of {use.cache.capacity():,} bytes",
        file=folder,
        kind="bad-cache",
        fix="Give a larger --size, or fewer --samples.",
    )
