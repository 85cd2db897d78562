"""A job on an output: its lock, identity, journal of finished units, and staged outputs.

The work folder is ``.feedmill-work/`` in an output folder, or ``.<name>.feedmill-work/`` next to an output file, both
on a local disk and in an object store:

    lock       locked while a process works (or the parts of a job array); the system releases it when the process dies
    job.json   the job: a version, its identity, and recorded facts
    units      finished units, see `Units`
    parts/     marks of finished parts of a job array
    ...        staged outputs

Outputs that replace others are staged and published together (`Work.publish`). The renames and deletions are recorded
first, so that any later process can finish them.

On an engine, the work on an output in an object store is in the store as well (`Work.scratch`), so that its machines
need no folder in common: units write whole objects and read them, or the ranges that they need, directly. A file that
is mapped into memory is copied into the machine's cache under its URL and version (`feedmill.storage.cache.copies`), so
no machine reads what another has replaced. Nothing else is kept on the machines.

If a job is killed, the same job resumes from its finished units. A different job raises an error, or deletes the
unfinished work first. The folder is removed when the job is done. A remote output is locked by objects instead
(`feedmill.storage.remote.claims`). Without an engine, files of units are in the cache folder meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import orjson

from feedmill.errors import ConfigError, FeedmillError, StorageError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import PARTS, current, is_alone, is_shared, part_name
from feedmill.jobs.held import KEPT, LOCK, Held, delete_all, entries, names, remote
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.unfinished import (
    JOB,
    VERSION,
    interrupted,
    local_scratch_of,
    place_of,
    read_job,
    roll_forward,
    scratch_of,
    unfinished,
    unfinished_job,
)
from feedmill.jobs.units import Units
from feedmill.storage import LocalStore, Store
from feedmill.storage.boot import boot_id
from feedmill.storage.remote.claims import beginning

BEGIN, UNITS = "begin", "units"
_PATIENCE = 3.0
"""Seconds to wait for a process that is publishing outputs."""
_mine: set[tuple[int, str]] = set()
"""Thread and folder of each open block of `alone`, which can be nested: `repair` calls `prepare`."""


class Work:
    """Job on an output: a context manager that keeps unfinished work unless `finish` was called.

    Args:
        target, name: see `place_of`.

    Attributes:
        place: the work folder. In an object store, other machines can read it.
        scratch: folder for the files of units: on this machine's disk, or one that all machines of the engine reach.
        job: the recorded job, of this run or an unfinished one; None if there is none.
        resumed: whether an earlier run began this job.
        units: finished units of the job.

    Raises:
        StorageError: another process is writing this output (kind ``busy``), or the folder cannot be written.
        DataError: `job.json` is corrupt.
    """

    def __init__(self, target: Store, name: str = "") -> None:
        self.target, self.name = target, name
        self.place, self.scratch = place_of(target, name), scratch_of(target, name)
        self.resumed = self._begun = self._beginning = False
        self._held = Held(target, name)
        try:
            self.job = read_job(self.place)
            self.units = Units(self.place, UNITS, part_name())
        except BaseException:
            self._held.close()
            raise

    @property
    def noted(self) -> dict[str, Any]:
        """Return the recorded facts of the job; empty if there is none."""
        return self.job or {}

    @property
    def folder(self) -> str:
        """Path or URL of `scratch`."""
        return self.scratch.url

    def is_of(self, identity: Mapping[str, Any]) -> bool:
        """Return whether there is an unfinished job with this identity."""
        return self.job is not None and self.job["identity"] == self._plain(identity)

    def refuse_other(self, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Raise `ConfigError` if another job is unfinished here, unless `overwrite` removes its work."""
        if not overwrite and self.job is not None and not self.is_of(identity):
            raise unfinished_job(self.target.locate(self.name))

    def begin(
        self,
        identity: Mapping[str, Any],
        *,
        overwrite: bool = True,
        durable: bool = True,
        keep_staged: bool = False,
        **facts: Any,
    ) -> bool:
        """Resume the job if an earlier run began it; otherwise begin it.

        Args:
            identity: plain data that determines the outputs.
            overwrite: remove the unfinished work of another job.
            durable: staged outputs are synced before they are recorded. Otherwise they are discarded after a restart of
                the machine.
            keep_staged: keep the staged outputs of another job, if their names identify their content.
            facts: recorded if the job is new.

        Returns:
            Whether an earlier run began the job.

        Raises:
            ConfigError: another job is unfinished here, or the identity contains a number of more than 64 bits.
        """
        with self.beginning():
            return self._begin(identity, overwrite, durable, keep_staged, facts)

    def _begin(
        self, identity: Mapping[str, Any], overwrite: bool, durable: bool, keep_staged: bool, facts: Mapping[str, Any]
    ) -> bool:
        durable = durable or is_shared()
        trusted = self.job is not None and self.job.get("boot", boot_id()) == boot_id()
        self.resumed = trusted and self.is_of(identity)
        if active() is not None:
            if not self.resumed:
                self.refuse_other(identity, overwrite=overwrite)
                self.job = {"version": VERSION, "identity": self._plain(identity), **facts}
            return self.resumed
        if self.resumed:
            if not durable and "boot" not in self.noted:
                self.note(boot=boot_id())  # from now on some of the work is not synced
            return True
        self.refuse_other(identity, overwrite=overwrite)
        self.roll_forward()
        if not (trusted and keep_staged):
            self.clear()  # an earlier job may have been killed while its work folder was removed
        self.job = {"version": VERSION, "identity": self._plain(identity)}
        self.note(**facts, **({} if durable else {"boot": boot_id()}))
        self._begun = True
        return False

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Let the parts of a job array begin one after another: the first begins the job, the others join it."""
        if is_alone() or self._beginning:
            yield
            return
        with self._one_part():
            self._beginning = True
            try:
                self.job = read_job(self.place)
                yield
            finally:
                self._beginning = False

    def _one_part(self) -> contextlib.AbstractContextManager[None]:
        if not isinstance(self.place, LocalStore):
            return beginning(self.target, self.name)
        return self.place.exclusive(BEGIN, what="another part is starting", file=self.target.locate(self.name))

    def note(self, **facts: Any) -> None:
        """Add facts to the job, durably. Raises `StorageError` if another process has taken over the job."""
        self._held.check()
        job = {**(self.job or {"version": VERSION, "identity": None}), **facts}
        if active() is None:
            self.place.write_bytes(JOB, self._encoded(job))
        self.job = job

    def publish(self, moves: Sequence[tuple[str, str]], deletes: Sequence[str], **facts: Any) -> None:
        """Publish staged outputs and delete the files that they replace.

        If the process is killed during publication, the same job, or the next process that opens or writes the output,
        finishes it (see `settle`).

        Args:
            moves: name in the work folder, and path in the store, of each output; all must be synced.
            deletes: paths in the store to delete.
            facts: recorded for the report of the run that finishes publication.
        """
        self.units.sync()
        self.note(half=True, moves=list(moves), deletes=list(deletes), **facts)
        self.roll_forward()

    def roll_forward(self) -> bool:
        """Finish an interrupted publication. Return whether the outputs are published."""
        if self.noted.get("half") and active() is not None:
            raise interrupted(self.target, self.noted)
        if self.noted.get("half"):
            self.job = roll_forward(self.target, self.place, self.noted)
        return bool(self.noted.get("published"))

    def sweep(self, keep: Collection[str]) -> None:
        """Delete all staged outputs except `keep`: those that other options or changed inputs left."""
        if is_alone() and active() is None:  # otherwise other parts may be writing
            self._remove_all({*keep, LOCK, JOB, UNITS, PARTS})

    def _remove_all(self, keep: Collection[str]) -> None:
        if isinstance(self.scratch, LocalStore):
            parts = f"{UNITS}-"  # of a job array
            stale = [
                name
                for name in names(self.folder)
                if name not in keep and not name.endswith(KEPT) and not (UNITS in keep and name.startswith(parts))
            ]
            # The system takes a tenth of a second to free a gigabyte of page cache.
            for _ in ordered_map(
                partial(_remove, self.scratch), stale, workers=available_cores(), in_flight=2 * available_cores()
            ):
                pass
        for store in remote(self.place, self.scratch):
            delete_all(store, keep, kept=store.url == self.folder)

    def clear(self) -> None:
        """Delete the job and all its unfinished work."""
        if active() is not None:
            return
        self.units.clear()
        self.place.delete(JOB)
        if is_alone():
            self._remove_all({LOCK})
        self.job = None

    def finish(self) -> None:
        """Remove the work folder of a finished job: first the units, then `job.json`. Raises as `note`."""
        if active() is not None:
            return
        self._held.check()
        if current() is not None:
            _abort_uploads(self.place, self.scratch)
        self.clear()
        self.close()

    def abandon(self, *, keep: bool = False) -> None:
        """Close the work after an error. A resumed job, or any job with `keep`, is kept for the next run.

        The job of a job array is kept too.
        """
        if keep or self.resumed or not self._begun or not is_alone():
            self.close()
        else:
            self.finish()

    def close(self) -> None:
        """Release the lock. Unfinished work is kept for the next run; otherwise the folder is removed."""
        self.units.close()
        self._held.close()

    def _plain(self, identity: Mapping[str, Any]) -> Any:
        return orjson.loads(self._encoded(identity))

    def _encoded(self, job: Mapping[str, Any]) -> bytes:
        try:
            return orjson.dumps(job, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            raise ConfigError(
                f"a number or a name cannot be stored in the journal ({error})",
                file=self.target.locate(self.name),
                kind="bad-number",
                fix="Use numbers of at most 64 bits, and rename files whose names are not UTF-8.",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, FeedmillError | OSError):
                self._held.check()  # a missing file is explained by the process that removed it
        finally:
            self.close()


@contextlib.contextmanager
def alone(target: Store, name: str = "") -> Iterator[Store]:
    """Lock an output inside a block; yield its folder for the files of units (`Work.scratch`).

    Raises:
        StorageError: another process is writing it (kind ``busy``).
    """
    place = scratch_of(target, name)
    mine = threading.get_ident(), place.url
    if mine in _mine or (isinstance(target, LocalStore) and not os.path.isdir(target.root)):
        yield place  # the output does not exist; the caller reports that
        return
    held = Held(target, name)
    _mine.add(mine)
    try:
        job = unfinished(target, name)
        if job is not None and job.get("half") and active() is not None:
            raise interrupted(target, job)
        if job is not None and job.get("half"):
            roll_forward(target, place_of(target, name), job)
        yield place
    finally:
        _mine.discard(mine)
        held.close()


def settle(target: Store, name: str = "", *, indexed: bool = True) -> None:
    """Finish an interrupted publication on a local disk, where some files are old and some new.

    Args:
        indexed: whether an index lists the files of the dataset. Without an index, a folder with files of an unfinished
            job is an error.

    Raises:
        DataError: a running job is publishing its files, publication cannot be finished here, or there is no index.
    """
    job = unfinished(target, name) if target.is_local else None
    if job is not None and job.get("half"):
        if active() is not None:
            raise interrupted(target, job)
        try:
            with contextlib.closing(Held(target, name, patience=_PATIENCE)):
                job = unfinished(target, name)
                if job is not None and job.get("half"):
                    job = roll_forward(target, place_of(target, name), job)
        except StorageError as error:
            raise interrupted(target, job or {"half": True}) from error
    if job is not None and not (indexed or job.get("staged") or job.get("published")):
        raise interrupted(target, job)


def tidy(target: Store, name: str = "", identity: Mapping[str, Any] | None = None) -> None:
    """Remove the work folder of a finished job (with this identity) whose process was killed while removing it."""
    if active() is not None:
        return
    places = [place_of(target, name), scratch_of(target, name)]
    places += [] if target.is_local else [local_scratch_of(target, name)]
    if any(os.path.isdir(p.root) if isinstance(p, LocalStore) else entries(p) for p in places):
        with contextlib.suppress(FeedmillError), Work(target, name) as work:  # another process may start now
            if work.job is None or (identity is not None and work.is_of(identity)):
                work.clear()


def _remove(place: LocalStore, name: str) -> None:
    if os.path.isdir(place.writable(name)):
        place.remove_folder(name)
    else:
        place.delete(name)


def _abort_uploads(*stores: Store) -> None:
    from feedmill.storage.remote.range_store import RangeStore

    for store in remote(*stores):
        if isinstance(store, RangeStore):
            store.abort_uploads()
