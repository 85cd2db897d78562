"""The lock of an output: one process writes to it at a time, or the parts of a job array together.

It has two forms. On a disk it is a file in the work folder, which the system releases when the process dies. In an
object store it is an object (`feedmill.storage.remote.locks`); work on this machine's disk has a lock file as well.
"""

from __future__ import annotations

import contextlib
import os

from feedmill.errors import FeedmillError, StorageError
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import current, is_alone, part_name
from feedmill.jobs.journal import LOCK, SCANNED, local_scratch_of, names, place_of, remove_all, scratch_of
from feedmill.jobs.unit_files import JOB
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.locks import FileLock
from feedmill.storage.remote.locks import ObjectLock, turn


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
