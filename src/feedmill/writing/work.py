"""The job of writing or changing a dataset: its finished shards, and the identity of its functions."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import xxhash

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.tar.finished import add_shard, finished_shards
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import is_alone
from feedmill.jobs.unfinished import FOLDER, damaged, place_of, unfinished, unfinished_job
from feedmill.jobs.work import Work
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import LocalStore, Store
from feedmill.storage.staging import TEMPORARY_SUFFIX
from feedmill.writing.shard import Layout, Shard

NEW = f"{FOLDER}/new"
"""Staging folder of shards that replace others."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class ShardWork(Work):
    """A job whose units are shards. Raises as `Work`, and `DataError` if `job.json` is invalid."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        try:
            job_of(store)
        except BaseException:
            self.close()
            raise

    def shards(self) -> dict[str, tuple[ShardRecord, ShardScan, int]]:
        """Return the record and scan of each finished shard, and the number of its turned media, by path."""
        return finished_shards(self.units.read())

    def finished(self, store: Store | None = None) -> dict[str, Shard]:
        """Return the finished shards that have not changed since, by path.

        Args:
            store: where they are; the dataset by default.
        """
        store = store or self.target
        out = {}
        for path, (record, scan, turned) in self.shards().items():
            with contextlib.suppress(NotFound):
                entry = store.stat(path)
                if (entry.size, entry.version) == (record.size, record.version):
                    out[path] = Shard(path, record, scan, turned)
        return out

    def add(self, shard: Shard) -> None:
        """Record a finished shard in the journal."""
        add_shard(self.units, *shard)


def begin(work: ShardWork, identity: Mapping[str, Any], clear_left: Callable[[Store, Mapping[str, Any]], None]) -> None:
    """Resume a job or begin it, after removing with `clear_left` what another unfinished job left in the dataset.

    Raises:
        ConfigError: the other job is a conversion.
    """
    with work.beginning():
        left = work.job
        if left is not None and not work.is_of(identity):
            if work.roll_forward():
                left = {**work.noted, "staged": True}  # so that `clear_left` removes nothing
            if left["identity"].get("verb") == "convert":
                raise unfinished_job(work.target.url)
            if active() is not None:
                work.begin(identity)
                return
            clear_left(work.target, left)
            if isinstance(work.target, LocalStore) and is_alone():
                work.target.sweep()
        work.begin(identity)


def job_of(store: Store) -> dict[str, Any] | None:
    """Return the unfinished job on a dataset, or None. Raises `DataError` if `job.json` is invalid."""
    job = unfinished(store)
    if job is None:
        return None
    try:
        msgspec.convert(job, _Job)
        Layout(**job["identity"].get("layout", {}))
    except (ValueError, TypeError, AttributeError, msgspec.ValidationError, ConfigError) as error:
        raise damaged(place_of(store), str(error)) from None
    return job


def in_job(path: str) -> str:
    """Return a path in the job's folder from the same path in the dataset.

    >>> in_job(".feedmill-work/new/0.tar")
    'new/0.tar'
    """
    return path.removeprefix(f"{FOLDER}/")


def below(store: LocalStore) -> list[str]:
    """Return every file of a folder, including hidden ones, except temporary files of dead processes."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(store.root) for name in names)
    return [os.path.relpath(path, store.root) for path in found if not path.endswith(TEMPORARY_SUFFIX)]


class _Job(msgspec.Struct):
    """The fields of `job.json` that are used; others only contribute to the identity."""

    identity: dict[str, Any]
    staged: bool = False
    published: bool = False
    replaced: list[str] = []
    first: int = 0
    units: int = 0
    base: list[str] = []
    joins: dict[str, list[str]] = {}
    facts: dict[str, Any] = {}


def identity(function: Callable[..., Any]) -> str:
    """Return a hash of a function's name, source and plain values, so that a job is not resumed with another function.

    It is the same in every process, because it contains no addresses.
    """
    if isinstance(function, partial):
        words = [identity(function.func), repr(function.args), repr(sorted(function.keywords.items()))]
        return f"partial {xxhash.xxh3_64_hexdigest(_ADDRESS.sub('', ' '.join(words)).encode())}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # defined at run time, built in, or a callable object
        text = repr(function)
        with contextlib.suppress(OSError, TypeError):
            text += inspect.getsource(type(function))
    text = _ADDRESS.sub("", f"{text} {_carried(function)}")
    where = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return f"{where} {xxhash.xxh3_64_hexdigest(text.encode('utf-8', 'surrogatepass'))}"


def _carried(function: Callable[..., Any]) -> list[str]:
    """Return the plain values of a function's defaults, closure and attributes, which its source does not show."""
    found = [*(getattr(function, "__defaults__", None) or ()), *getattr(function, "__dict__", {}).values()]
    found += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the cell is still empty
            found.append(cell.cell_contents)
    return [repr(value) for value in found if isinstance(value, bool | int | float | str | bytes | None)]
