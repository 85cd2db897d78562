"""A job on an output: its journal (`feedmill.jobs.journal`), which it writes under the lock of the output.

Outputs that replace others are staged and published together (`Work.publish`). The renames and deletions are recorded
first, so that any later process can finish them.

On an engine, the work on an output in an object store is in the store as well (`Work.scratch`), so that its machines
need no folder in common: units write whole objects and read them, or the ranges that they need, directly. A file that
is mapped into memory is copied into the machine's cache under its URL and version (`feedmill.storage.cache.copies`), so
no machine reads what another has replaced. Nothing else is kept on the machines. Without an engine, files of units are
in the cache folder meanwhile.

If a job is killed, the same job resumes from its finished units. A different job raises an error, or deletes the
unfinished work first. The folder is removed when the job is done.

The lock of an output lets one process write to it at a time, or the parts of a job array together. It has two forms. On
a disk it is a file in the work folder, which the system releases when the process dies. In an object store it is an
object (`feedmill.storage.remote.locks`); work on this machine's disk has a lock file as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import orjson

from feedmill.errors import FeedmillError, StorageError
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import PARTS, UnitsFailed, current, is_alone, is_shared, part_name
from feedmill.jobs.journal import (
    LOCK,
    SCANNED,
    UNITS,
    VERSION,
    Journal,
    is_there,
    local_scratch_of,
    names,
    place_of,
    remove_all,
    scratch_of,
)
from feedmill.jobs.work_folder import JOB
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.locks import FileLock, boot_id
from feedmill.storage.remote.locks import ObjectLock, turn

_PATIENCE = 3.0
"""Seconds to wait for a process that is publishing outputs."""
_mine: set[tuple[int, str]] = set()
"""Thread and folder of each open block of `alone`, which can be nested: `repair` calls `prepare`."""


class Work(Journal):
    """Job on an output: a context manager that keeps unfinished work unless `finish` was called.

    Attributes:
        resumed: whether an earlier run began this job.

    Raises:
        StorageError: another process is writing this output (kind ``busy``), or the folder cannot be written.
        DataError: `job.json` is corrupt.
    """

    def __init__(self, target: Store, name: str = "") -> None:
        self.resumed = self._begun = self._beginning = False
        self._lock = OutputLock(target, name)
        try:
            super().__init__(target, name)
        except BaseException:
            self._lock.close()
            raise

    @property
    def folder(self) -> str:
        """Path or URL of `scratch`."""
        return self.scratch.url

    def refuse_other(self, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Raise `ConfigError` if another job is unfinished here, unless `overwrite` removes its work."""
        if not overwrite and self.job is not None and not self.is_of(identity):
            raise self.other_job()

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
                self.job = {"version": VERSION, "identity": orjson.loads(self._encoded(identity)), **facts}
            return self.resumed
        if self.resumed:
            if not durable and "boot" not in self.noted:
                self.note(boot=boot_id())  # from now on some of the work is not synced
            return True
        self.refuse_other(identity, overwrite=overwrite)
        self.roll_forward()
        if not (trusted and keep_staged):
            self.clear()  # an earlier job may have been killed while its work folder was removed
        self.job = {"version": VERSION, "identity": orjson.loads(self._encoded(identity))}
        self.note(**facts, **({} if durable else {"boot": boot_id()}))
        self._begun = True
        return False

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Let the parts of a job array begin one after another: the first begins the job, the others join it."""
        if is_alone() or self._beginning:
            yield
            return
        with self._lock.turn():
            self._beginning = True
            try:
                self.job = self._read()
                yield
            finally:
                self._beginning = False

    def note(self, **facts: Any) -> None:
        """Add facts to the job, durably. Raises `StorageError` if another process has taken over the job."""
        self._lock.check()
        job = {**(self.job or {"version": VERSION, "identity": None}), **facts}
        if active() is None:
            self._write(job)
        else:
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

    def sweep(self, keep: Collection[str]) -> None:
        """Delete all staged outputs except `keep`: those that other options or changed inputs left."""
        if is_alone():  # otherwise other parts may be writing
            self._remove({*keep, LOCK, JOB, UNITS, PARTS})

    def clear(self) -> None:
        """Delete the job and all its unfinished work."""
        if active() is not None:
            return
        self.units.clear()
        self.place.delete(JOB)
        if is_alone():
            self._remove({LOCK})
        self.job = None

    def finish(self) -> None:
        """Remove the work folder of a finished job: first the units, then `job.json`. Raises as `note`."""
        if active() is not None:
            return
        self._lock.check()
        if current() is not None:
            self._abort_uploads()
        self.clear()
        self.close()

    def abandon(self, *, keep: bool = False) -> None:
        """Close the work after an error. A resumed job, or any job with `keep`, is kept for the next run.

        The job of a job array is kept too, and one whose other units have ended.
        """
        keep = keep or isinstance(sys.exc_info()[1], UnitsFailed)
        if keep or self.resumed or not self._begun or not is_alone():
            self.close()
        else:
            self.finish()

    def close(self) -> None:
        """Release the lock. Unfinished work is kept for the next run; otherwise the folder is removed."""
        self.units.close()
        self._lock.close()

    def _abort_uploads(self) -> None:
        from feedmill.storage.remote.range_store import RangeStore

        for store in (self.place, self.scratch):
            if isinstance(store, RangeStore):
                store.abort_uploads()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, FeedmillError | OSError):
                self._lock.check()  # a missing file is explained by the process that removed it
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
    with contextlib.closing(OutputLock(target, name)):
        _mine.add(mine)
        try:
            Journal(target, name).roll_forward()
            yield place
        finally:
            _mine.discard(mine)


def settle(target: Store, name: str = "", *, indexed: bool = True) -> None:
    """Finish an interrupted publication on a local disk, where some files are old and some new.

    Args:
        indexed: whether an index lists the files of the dataset. Without an index, a folder with files of an unfinished
            job is an error.

    Raises:
        DataError: a running job is publishing its files, publication cannot be finished here, or there is no index.
    """
    if not target.is_local:
        return
    journal = Journal(target, name)
    if journal.noted.get("half"):
        interrupted = journal.interrupted()
        try:
            with contextlib.closing(OutputLock(target, name, patience=_PATIENCE)):
                journal = Journal(target, name)
                journal.roll_forward()
        except StorageError as error:
            raise interrupted from error
    if journal.job is not None and not (indexed or journal.noted.get("staged") or journal.noted.get("published")):
        raise journal.interrupted()


def tidy(target: Store, name: str = "", identity: Mapping[str, Any] | None = None) -> None:
    """Remove the work folder of a finished job (with this identity) whose process was killed while removing it."""
    if active() is not None:
        return
    places = [place_of(target, name), scratch_of(target, name)]
    places += [] if target.is_local else [local_scratch_of(target, name)]
    if any(map(is_there, places)):
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
    refuse_locked(scratch_of(target, name), target.locate(name))
    journal = Journal(target, name)
    if identity is not None and journal.is_of(identity):
        return journal.noted
    if journal.job is not None and not overwrite:
        raise journal.other_job()
    return {}


class OutputLock:
    """The lock of an output, for this machine and others. In a dry run it is only looked at.

    Args:
        target, name: see `place_of`.
        patience: seconds to wait for another process of this machine.

    Raises:
        StorageError: another process is writing this output (kind ``busy``), or the folder cannot be written.
    """

    def __init__(self, target: Store, name: str = "", *, patience: float = 0.0) -> None:
        self._target, self._name = target, name
        self._place, self._scratch = place_of(target, name), scratch_of(target, name)
        self._shared = not is_alone()
        self._file, self._fresh = target.locate(name), ""
        self._object: ObjectLock | None = None
        self._files: list[FileLock] = []
        self._open = active() is None
        if not self._open:
            refuse_locked(self._scratch, self._file)
            return
        try:
            if isinstance(self._scratch, LocalStore):
                self._lock_folder(self._scratch, patience)
            if not target.is_local:
                part = int(part_name()[1:]) if self._shared else None
                self._object = ObjectLock(target, name, part=part, lease=current() is not None)
        except BaseException:
            self._release(remove=isinstance(self._scratch, LocalStore) and {*names(self._scratch.root)} <= {LOCK})
            raise

    def _lock_folder(self, folder: LocalStore, patience: float) -> None:
        above = os.path.dirname(folder.root)
        self._fresh = "" if os.path.isdir(above) else above
        if os.path.lexists(folder.root) and not os.path.isdir(folder.root):
            raise StorageError(
                "a file has the name of the folder for unfinished work",
                file=folder.root,
                kind="enotdir",
                fix="Move or remove the file.",
            )
        what = "another process is writing here"
        self._files.append(folder.lock(LOCK, what=what, file=self._file, patience=patience, shared=self._shared))
        if self._shared:
            self._files.append(folder.lock(LOCK + part_name(), what="this part is already running", file=self._file))

    def check(self) -> None:
        """Raise `StorageError` if another process has taken over the lock of this one."""
        if self._object is not None:
            self._object.check()
        if self._files and self._files[0].held and not self._files[0].is_on(os.path.join(self._scratch.url, LOCK)):
            # Only where the file system has no locks: the other process was not kept out, and has ended.
            raise StorageError(
                "another process was writing here too, and has removed the unfinished work of this one",
                file=self._file,
                kind="busy",
                fix="Run one command at a time on an output: the file system does not lock files (docs/storage.md).",
            )

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Return a block that one part of a job array enters at a time. Raises as `OutputLock`, after a while."""
        if not isinstance(self._place, LocalStore):
            return turn(self._target, self._name)
        return self._place.exclusive("begin", what="another part is starting", file=self._file)

    def close(self) -> None:
        """Release the lock, and remove the folder if it has no unfinished work."""
        if not self._open:
            return
        self._open = False
        try:
            self.check()
            idle = not self._shared and self._is_idle()
        except FeedmillError:
            idle = False  # the object store does not answer, or the work is another's by now
        self._release(remove=idle)

    def _is_idle(self) -> bool:
        """Return whether there is no unfinished job.

        Remains of a finished job, whose process was killed while removing them, are deleted from an object store. On a
        disk they are in the folder that is removed.
        """
        if self._place.exists(JOB):
            return False
        for store in {store.url: store for store in (self._place, self._scratch) if not store.is_local}.values():
            remove_all(store, (), scanned=store.url == self._scratch.url)
        if not self._target.is_local:
            left = local_scratch_of(self._target, self._name)
            if left.url != self._scratch.url:
                left.remove_folder()  # a run without an engine was killed, and finished on one
        return True

    def _release(self, *, remove: bool) -> None:
        self._open = False
        if self._object is not None:
            self._object.close()
        if not isinstance(self._scratch, LocalStore):
            forget_copies()
        elif remove and self._files and not self._shared:
            self._remove_folder(self._scratch)
        for lock in reversed(self._files):
            lock.close()

    def _remove_folder(self, folder: LocalStore) -> None:
        if not any(name.endswith(SCANNED) for name in names(folder.root)):
            folder.remove_folder()
            if self._fresh:
                with contextlib.suppress(OSError):
                    os.rmdir(self._fresh)  # nothing was written


def refuse_locked(scratch: Store, file: str) -> None:
    """Raise `StorageError` if another process of this machine has the lock, without creating the lock file.

    Args:
        scratch: folder for the files of units; `file`: the output, for the error.
    """
    if not isinstance(scratch, LocalStore):
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        opened = os.open(os.path.join(scratch.root, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            FileLock.of(opened, shared=True).close()
        except BlockingIOError:
            fix = "Wait until it has ended, or stop it."
            raise StorageError("another process is writing here", file=file, kind="busy", fix=fix) from None
