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

from feedmill.errors import ConfigError, FeedmillError, NotFound, StorageError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import PARTS, current, is_alone, is_shared, part_name
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
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.boot import boot_id
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.locks import FileLock
from feedmill.storage.remote.claims import Claim, beginning

BEGIN, UNITS = "begin", "units"
_PATIENCE = 3.0
"""Seconds to wait for a process that is publishing outputs."""
_mine: set[tuple[int, str]] = set()
"""Thread and folder of each open block of `alone`, which can be nested: `repair` calls `prepare`."""
LOCK = "lock"
KEPT = ".scanned"
"""Suffix of files that any job on the output can use, such as data read from it."""
_AT_ONCE = 16
"""Number of objects deleted concurrently."""


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
                kind="bad-option",
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


def foresee(
    target: Store, name: str = "", identity: Mapping[str, Any] | None = None, *, overwrite: bool = True
) -> dict[str, Any]:
    """Return the recorded facts of a job with this identity, if it is unfinished, for a plan. Nothing is locked.

    Raises:
        ConfigError: another job is unfinished here, and there is no `overwrite`. Other errors are those of `Work`.
    """
    _refuse_locked(scratch_of(target, name), target.locate(name))
    job = unfinished(target, name)
    if job is not None and job["identity"] == identity:
        return job
    if job is not None and not overwrite:
        raise unfinished_job(target.locate(name))
    return {}


def _refuse_locked(scratch: Store, file: str) -> None:
    """Raise `StorageError` if another process of this machine has the lock, without creating the lock file."""
    if not isinstance(scratch, LocalStore):
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        opened = os.open(os.path.join(scratch.root, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            FileLock.of(opened, shared=True).close()
        except BlockingIOError:
            fix = "Wait until it has ended, or stop it."
            raise StorageError("another process is writing here", file=file, kind="busy", fix=fix) from None


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


class Held:
    """Lock of an output, for this machine and others."""

    def __init__(self, target: Store, name: str, patience: float = 0.0) -> None:
        self._place, self._scratch = place_of(target, name), scratch_of(target, name)
        self._left = None if target.is_local else local_scratch_of(target, name)
        self._shared = not is_alone()
        self._fresh, self._open, self._file = "", True, target.locate(name)
        self._claim: Claim | None = None
        self._locks: list[FileLock] = []
        if active() is not None:
            self._open = False
            _refuse_locked(self._scratch, target.locate(name))
            return
        try:
            if isinstance(self._scratch, LocalStore):
                self._lock_folder(self._scratch, target.locate(name), patience)
            part = int(part_name()[1:]) if self._shared else None
            self._claim = Claim(target, name, part=part, lease=current() is not None)
        except BaseException:
            self.close()
            raise

    def _lock_folder(self, scratch: LocalStore, file: str, patience: float) -> None:
        above = os.path.dirname(scratch.root)
        self._fresh = "" if os.path.isdir(above) else above
        _refuse_file(scratch)
        what = "another process is writing here"
        self._locks.append(scratch.lock(LOCK, what=what, file=file, patience=patience, shared=self._shared))
        if self._shared:
            self._locks.append(scratch.lock(LOCK + part_name(), what="this part is already running", file=file))

    def check(self) -> None:
        """Raise `StorageError` if another process has taken over the lock of this one."""
        if self._claim is not None:
            self._claim.check()
        if self._locks and self._locks[0].held and not self._locks[0].is_on(os.path.join(self._scratch.url, LOCK)):
            # Only where the file system has no locks: the other process was not kept out, and has ended.
            raise StorageError(
                "another process was writing here too, and has removed the unfinished work of this one",
                file=self._file,
                kind="busy",
                fix="Run one command at a time on an output: the file system does not lock files (docs/storage.md).",
            )

    def close(self) -> None:
        """Release the lock, and remove the folder if it has no unfinished work."""
        if not self._open:
            return
        self._open = False
        try:
            self.check()
            unfinished = self._claim is None or self._shared or self._is_unfinished()
        except FeedmillError:
            unfinished = True  # the object store does not answer, or the work is another's by now
        if self._claim is not None:
            self._claim.close()
        if isinstance(self._scratch, LocalStore):
            nothing = self._claim is None and set(names(self._scratch.root)) <= {LOCK}
            if self._locks and not self._shared and (nothing or not unfinished):
                self._remove_folder(self._scratch)
        else:
            forget_copies()
        for lock in reversed(self._locks):
            lock.close()

    def _remove_folder(self, scratch: LocalStore) -> None:
        if not any(name.endswith(KEPT) for name in names(scratch.root)):
            scratch.remove_folder()
            if self._fresh:
                with contextlib.suppress(OSError):
                    os.rmdir(self._fresh)  # nothing was written

    def _is_unfinished(self) -> bool:
        """Return whether there is an unfinished job.

        If there is none, remains of a finished job, whose process was killed while removing them, are deleted from an
        object store. On a disk they are in the folder that is removed.
        """
        unfinished = self._place.exists(JOB)
        if not unfinished:
            for store in remote(self._place, self._scratch):
                delete_all(store, (), kept=store.url == self._scratch.url)
            if self._left is not None and self._left.url != self._scratch.url:
                self._left.remove_folder()  # a run without an engine was killed, and finished on one
        return unfinished


def remote(*stores: Store) -> list[Store]:
    """Return the stores that are not local, each once."""
    return list({store.url: store for store in stores if not store.is_local}.values())


def delete_all(store: Store, keep: Collection[str], *, kept: bool) -> None:
    """Delete the objects of a work folder, except those below the names `keep`, and with `kept` those that any job can
    use."""
    firsts = ((entry.path, entry.path.split("/")[0]) for entry in entries(store))
    stale = [path for path, first in firsts if first not in keep and not (kept and first.endswith(KEPT))]
    for _ in ordered_map(store.delete, stale, workers=_AT_ONCE, in_flight=2 * _AT_ONCE):
        pass


def _refuse_file(place: LocalStore) -> None:
    if os.path.lexists(place.root) and not os.path.isdir(place.root):
        raise StorageError(
            "a file has the name of the folder for unfinished work",
            file=place.root,
            kind="enotdir",
            fix="Move or remove the file.",
        )


def entries(place: Store) -> list[Entry]:
    """Return the files of a work folder, which may be absent."""
    try:
        return list(place.files())
    except NotFound:
        return []


def names(folder: str) -> list[str]:
    """Return the names in a folder of this machine, sorted; none if it is absent."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
