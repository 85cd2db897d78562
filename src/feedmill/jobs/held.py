"""The lock of an output while a process works on it, and what is removed from its work folder when it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import current, is_alone, part_name
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.unfinished import JOB, local_scratch_of, place_of, scratch_of
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.locks import FileLock
from feedmill.storage.remote.claims import Claim

LOCK = "lock"
KEPT = ".scanned"
"""Suffix of files that any job on the output can use, such as data read from it."""
_AT_ONCE = 16
"""Number of objects deleted concurrently."""


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
            self._refuse_busy(target.locate(name))
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

    def _refuse_busy(self, file: str) -> None:
        """Raise `StorageError` if another process of this machine has the lock, without creating the lock file."""
        if not isinstance(self._scratch, LocalStore):
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            opened = os.open(os.path.join(self._scratch.root, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                FileLock.of(opened, shared=True).close()
            except BlockingIOError:
                fix = "Wait until it has ended, or stop it."
                raise StorageError("another process is writing here", file=file, kind="busy", fix=fix) from None

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
