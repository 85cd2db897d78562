"""The job of writing or changing a dataset: what it replaces, its finished shards, and the identity of its functions.

On a local disk, outputs that replace others are staged in ``.feedmill-work/new/`` and published by renaming, so the old
ones can be read until then. Object stores cannot rename, so there the old outputs are deleted first.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import msgspec
import xxhash

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.tar.finished import add_shard, finished_shards
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import Policy, Where, is_alone
from feedmill.jobs.journal import Journal
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.work import Work
from feedmill.jobs.work_folder import FOLDER
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import LocalStore, Store
from feedmill.storage.staging import TEMPORARY_SUFFIX
from feedmill.structs import convert_as
from feedmill.writing.shard import Layout, Shard

STAGED = "new"
"""Staging folder of outputs that replace others, in the work folder."""
NEW = f"{FOLDER}/{STAGED}"
Result = TypeVar("Result")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class OutputWork(Work):
    """A job that writes outputs, which may replace others, and whose units may be shards.

    Its facts are ``staged``, whether outputs are staged, and ``replaced``, the files that they replace.

    Raises:
        DataError: `job.json` is invalid. Other errors are those of `Work`.
    """

    def __init__(self, target: Store, name: str = "") -> None:
        super().__init__(target, name)
        try:
            _check(self)
        except BaseException:
            self.close()
            raise

    @property
    def staging(self) -> Store:
        """Where outputs are staged."""
        return self.place.below(STAGED)

    @property
    def outputs(self) -> Store:
        """Where outputs are written."""
        return self.staging if self.noted.get("staged") else self.target

    def clear_away(self) -> None:
        """Delete what is replaced, if it cannot stay until the outputs are published."""
        if self.noted.get("replaced") and not self.noted.get("staged") and active() is None:
            for path in self.noted["replaced"]:
                self.target.delete(path)
            self.note(replaced=[])

    def publish_staged(self, paths: Sequence[str]) -> None:
        """Give staged outputs their final names, and delete what they replace."""
        deletes = sorted(set(self.noted.get("replaced", ())) - set(paths))
        self.publish([(f"{STAGED}/{path}", path) for path in paths], deletes)

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

    def add_shard(self, shard: Shard) -> None:
        """Record a finished shard in the journal."""
        add_shard(self.units, *shard)


def finish_units(
    function: Callable[..., Result],
    units: Sequence[Any],
    finished: Mapping[int, Result],
    *,
    record: Callable[[Result], None],
    bar: Progress,
    steps: Sequence[int],
    stage: tuple[str, str, Store] | None = None,
    shared: Any = None,
    workers: int | None = None,
    preload: Sequence[str] = (),
) -> Generator[Result, None, None]:
    """Yield the result of every unit, in order. Those that an earlier run has not finished run now, and are recorded.

    Args:
        finished: number of a unit -> its result.
        bar, steps: the progress, and the steps that each unit counts.
        stage: name, key and folder of the stage, if an engine may run it; see `feedmill.jobs.engine.Where`.
        function, shared, workers, preload: see `feedmill.jobs.run.run`.
    """
    todo = [number for number in range(len(units)) if number not in finished]
    bar.advance(sum(steps) - sum(steps[number] for number in todo))
    bar.of_sizes([steps[number] for number in todo])
    where = None if stage is None else Where(*stage, numbers=todo, record=record)
    options: dict[str, Any] = {"workers": workers, "preload": preload, "policy": Policy(shared=shared), "where": where}
    with closing(run(function, [units[number] for number in todo], progress=bar, **options)) as results:
        for number in range(len(units)):
            if number in finished:
                yield finished[number]
            else:
                result = next(results)
                record(result)
                yield result


def begin(
    work: OutputWork, identity: Mapping[str, Any], clear_left: Callable[[Store, Mapping[str, Any]], None]
) -> None:
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
                raise work.other_job()
            if active() is not None:
                work.begin(identity)
                return
            clear_left(work.target, left)
            if isinstance(work.target, LocalStore) and is_alone():
                work.target.sweep()
        work.begin(identity)


def job_of(store: Store) -> dict[str, Any] | None:
    """Return the unfinished job on a dataset, or None. Raises `DataError` if `job.json` is invalid."""
    journal = Journal(store)
    _check(journal)
    return journal.job


def _check(journal: Journal) -> None:
    """Raise `DataError` if a job is invalid."""
    try:
        if journal.job is not None:
            convert_as(journal.job, _Job)
            Layout(**journal.job["identity"].get("layout", {}))
    except (ValueError, TypeError, AttributeError, msgspec.ValidationError, ConfigError) as error:
        raise journal.damaged(str(error)) from None


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
    writes: tuple[list[str], str] = ([], "")
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
