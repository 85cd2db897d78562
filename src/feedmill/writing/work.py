"""Unfinished work on a dataset: who is at it, what it is, and which shards are done.

A folder ``.nv-meta/feedmill.work/`` (in the cache folder for a remote dataset): ``lock``, held while a process works;
``job.json``, what is being done; ``feedmill.shards.journal``, finished shards with their samples. It goes when the work
is done. The same work begun again finds its finished shards here; other work begins again and clears up first.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound, StorageError
from feedmill.formats.changing import FOLDER, JOB, clear, interrupted, take, work_place
from feedmill.formats.shard_journal import Journal
from feedmill.formats.sidecar import ShardRecord
from feedmill.storage import Store
from feedmill.storage.claims import Claim
from feedmill.writing.layout import Layout
from feedmill.writing.shard import Shard

__all__ = ["FOLDER", "JOURNAL", "NEW", "Work", "identity", "tidy", "unfinished"]

JOURNAL = "feedmill.shards.journal"
NEW = f"{FOLDER}/new"
"""Folder of shards that will replace others."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Work:
    """One piece of work; a context manager that keeps its notes unless `finish` was called.

    Args:
        store: the dataset.
        job: plain data that tells this work from other work.

    Attributes:
        job: as given, with what was noted since.
        resumed: whether this work was begun before.
        left: the job of other work that was not finished, if there is any; to be cleared up after, then `note`.

    Raises:
        StorageError: another process is at work on the dataset, or the folder cannot be written.
        DataError: other work was interrupted at a point where it has to be finished first.
    """

    def __init__(self, store: Store, job: Mapping[str, Any]) -> None:
        self.store = store
        plain = orjson.loads(self._encoded(job))
        self.place = work_place(store)
        self.folder = Path(self.place.root)
        self.left: dict[str, Any] | None = None
        self._lock = take(store)
        self._claim: Claim | None = None
        try:
            self._claim = Claim(store)
            self._begin(plain)
        except BaseException:
            self.close()
            raise

    def _begin(self, plain: dict[str, Any]) -> None:
        self.journal = Journal(self.place, JOURNAL)
        before = unfinished(self.store)
        self.resumed = before is not None and {key: before.get(key) for key in plain} == plain
        if self.resumed and before is not None:
            self.job = before
            return
        if before is not None and before.get("swapping"):
            raise interrupted(self.store, before)
        self.left = before
        self.place.delete(JOURNAL)
        self.job = plain
        if before is None:
            self.note()
        # else the caller clears up first, and notes its own job then

    def note(self, **facts: Any) -> None:
        """Add facts to the job, durably."""
        job = {**self.job, **facts}
        self.place.write_bytes(JOB, self._encoded(job))
        self.job = job

    def _encoded(self, job: Mapping[str, Any]) -> bytes:
        try:
            return orjson.dumps(job, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            raise ConfigError(
                f"a number or a name cannot be noted ({error})",
                file=self.store.url,
                kind="bad-number",
                fix="Give numbers of at most 64 bits, and rename files whose names are no UTF-8.",
            ) from None

    def finished(self, store: Store | None = None) -> dict[str, Shard]:
        """The shards that are done, and unchanged since; `store` is where they lie, the dataset by default."""
        store = store or self.store
        out = {}
        for path, (record, scan) in self.journal.read().items():
            with contextlib.suppress(NotFound):
                entry = store.stat(path)
                if (entry.size, entry.version) == (record.size, record.version):
                    out[path] = Shard(path, record, scan)
        return out

    def add(self, shard: Shard) -> None:
        """Note a finished shard."""
        self.journal.add(*shard)

    def finish(self) -> None:
        """The work is done: its files go, the one that says what it was at last. Killed before that, the same work
        begun again does some of it twice, and comes to the same end."""
        self.journal.close(remove=True)
        self.place.delete(JOB)
        clear(self.store)
        self.close()

    def close(self) -> None:
        """Close the journal and release the lock; unfinished work stays for the next run."""
        if hasattr(self, "journal"):
            self.journal.close(remove=False)
        if self._claim is not None:
            self._claim.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def identity(function: Callable[..., Any]) -> str:
    """Names a function, its text, and the plain values that go with it, so that work begun with another is not gone on
    with. The same in every process: no addresses."""
    if isinstance(function, partial):
        words = [identity(function.func), repr(function.args), repr(sorted(function.keywords.items()))]
        return f"partial {xxhash.xxh3_64_hexdigest(_ADDRESS.sub('', ' '.join(words)).encode())}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # made at run time, built in, or an object that is called
        text = repr(function)
        with contextlib.suppress(OSError, TypeError):
            text += inspect.getsource(type(function))
    text = _ADDRESS.sub("", f"{text} {_carried(function)}")
    where = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return f"{where} {xxhash.xxh3_64_hexdigest(text.encode('utf-8', 'surrogatepass'))}"


def _carried(function: Callable[..., Any]) -> list[str]:
    """Plain values that a function's text does not show: of its defaults, its closure and, of an object, its own."""
    found = [*(getattr(function, "__defaults__", None) or ()), *getattr(function, "__dict__", {}).values()]
    found += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            found.append(cell.cell_contents)
    return [repr(value) for value in found if isinstance(value, bool | int | float | str | bytes | None)]


def unfinished(store: Store) -> dict[str, Any] | None:
    """The job that was begun on a dataset and not finished; None where there is none. Raises `DataError` where its
    file is damaged."""
    place = work_place(store)
    if not place.exists(JOB):
        return None
    try:
        job: dict[str, Any] = orjson.loads(place.read(JOB))
        known = msgspec.convert(job, _Job)
        Layout(**job.get("layout", {}))
        if known.swapping and {"changed", "removed", "samples_out", "members_out", "facts"} - job.keys():
            raise ValueError("without the list of files to publish")
    except (ValueError, TypeError, msgspec.ValidationError, ConfigError):
        raise DataError(
            "this should say what an interrupted run was doing, and does not",
            file=place.locate(JOB),
            kind="bad-job",
            fix=f"Run 'feedmill check' on the dataset; if it finds no problems, remove {place.root}.",
        ) from None
    return job


def tidy(store: Store) -> None:
    """Remove the folder of work that is done, where its process was killed before it had removed all of it."""
    place = work_place(store)
    with contextlib.suppress(OSError):
        os.rmdir(place.root)  # where only the folder itself was left
    if place.exists("lock") and not place.exists(JOB):
        with contextlib.suppress(StorageError), place.lock("lock", what="", file=store.url):  # somebody may begin now
            if not place.exists(JOB):
                place.remove_folder()


class _Job(msgspec.Struct):
    """What `job.json` may hold that is acted upon; the rest only tells one job from another."""

    verb: str
    swapping: bool = False
    layout: Layout | None = None
    replaced: list[str] = []
    first: int = 0
    base: list[str] = []
    joins: dict[str, list[str]] = {}
    changed: dict[str, str] = {}
    removed: list[str] = []
    order: list[str] = []
    samples_out: list[str] = []
    members_out: list[str] = []
    records: dict[str, ShardRecord] = {}
    facts: dict[str, Any] = {}
