"""One job on one output: its lock, what it is, its finished units, and its outputs that are not published yet.

A hidden folder, ``.feedmill-work/`` in a folder that is written to and ``.<name>.feedmill-work/`` beside a single file,
on a local disk and in an object store alike:

    lock       held while a process works; the system releases it when the process dies
    job.json   the job: a version, its identity, and facts noted since
    units      finished units, see `Units`
    ...        staged outputs

Outputs that replace others are staged, and put in place in one moment (`Work.publish`): the renames and
deletions are noted first, and whoever finds that note finishes them.

Killed at any moment, the same job restarted continues with what it finds there. Another job is refused, or removes
it first. The folder is removed when the job is done. A remote output is locked by an object, too
(`feedmill.storage.claims`); what has to be on this machine's disk meanwhile lies in the cache folder (`Work.scratch`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import orjson

from feedmill.errors import ConfigError, FeedmillError, NotFound, StorageError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.unfinished import (
    JOB,
    VERSION,
    boot,
    interrupted,
    place_of,
    read_job,
    refuse_old,
    roll_forward,
    scratch_of,
    unfinished,
    unfinished_job,
)
from feedmill.jobs.units import Units
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.claims import Claim

LOCK, UNITS = "lock", "units"
KEPT = ".scanned"
"""Ends the names of files that are of use to any job on the output: what was read of it."""
_PATIENCE = 3.0
"""Seconds to wait for a process that is putting outputs in place."""
_mine: set[tuple[int, str]] = set()
"""Thread and folder of each block of `alone`: `repair` prepares what it has repaired."""


class Work:
    """The job on an output; a context manager that keeps unfinished work unless `finish` was called.

    Args:
        target, name: see `place_of`.

    Attributes:
        place: the folder, which other machines may read where the output is in an object store.
        scratch: the same on this machine's disk, for what is mapped or read again and again.
        job: what an unfinished run has noted, or this one; None if there is nothing.
        resumed: whether this job was begun before.
        units: its finished units.

    Raises:
        StorageError: another process writes this output (kind ``busy``), or the folder cannot be written.
        DataError: `job.json` is damaged.
        ConfigError: an earlier release has left unfinished work.
    """

    def __init__(self, target: Store, name: str = "") -> None:
        self.target, self.name = target, name
        self.place, self.scratch = place_of(target, name), scratch_of(target, name)
        self.resumed = self._begun = False
        self._held = _Held(target, name)
        try:
            refuse_old(target, name)
            self.job = read_job(self.place)
            self.units = Units(self.place, UNITS)
        except BaseException:
            self._held.close()
            raise

    @property
    def noted(self) -> dict[str, Any]:
        """What is noted of the job; empty if there is none."""
        return self.job or {}

    @property
    def folder(self) -> str:
        """The path of `scratch`."""
        return self.scratch.root

    def is_of(self, identity: Mapping[str, Any]) -> bool:
        """Return whether the unfinished job, if there is one, is this one."""
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
        """Continue with the job where an earlier run has begun it, or begin it.

        Args:
            identity: plain data that decides the outputs.
            overwrite: remove the unfinished work of another job.
            durable: staged outputs are on the disk when they are named. Otherwise none of them are trusted after the
                machine was restarted.
            keep_staged: staged outputs of another job stay. Their names say all that decides them.
            facts: noted where the job is new.

        Returns:
            Whether it was begun before.

        Raises:
            ConfigError: another job is unfinished here, or the identity has a number of more than 64 bits.
        """
        trusted = self.job is not None and (durable or self.job.get("boot") == boot())
        self.resumed = trusted and self.is_of(identity)
        if self.resumed:
            return True
        self.refuse_other(identity, overwrite=overwrite)
        self.roll_forward()
        if not (trusted and keep_staged):
            self.clear()  # a job that was done may have been killed before all of it was removed
        self.job = {"version": VERSION, "identity": self._plain(identity)}
        self.note(**facts, **({} if durable else {"boot": boot()}))
        self._begun = True
        return False

    def note(self, **facts: Any) -> None:
        """Add facts to the job, durably."""
        job = {**(self.job or {"version": VERSION, "identity": None}), **facts}
        self.place.write_bytes(JOB, self._encoded(job))
        self.job = job

    def publish(self, moves: Sequence[tuple[str, str]], deletes: Sequence[str], **facts: Any) -> None:
        """Put staged outputs in place and remove files that they replace. Killed from now on, it is finished
        by the same job, or by whoever opens or writes the output next (see `settle`).

        Args:
            moves: name in the folder of the job, and path in the store, of each output; all are on the disk.
            deletes: paths in the store.
            facts: noted, for the report of a run that is killed meanwhile.
        """
        self.units.sync()
        self.note(half=True, moves=list(moves), deletes=list(deletes), **facts)
        self.roll_forward()

    def roll_forward(self) -> bool:
        """Finish publishing where that was begun; whether the outputs are in place."""
        if self.noted.get("half"):
            self.job = roll_forward(self.target, self.place, self.noted)
        return bool(self.noted.get("published"))

    def sweep(self, keep: Collection[str]) -> None:
        """Remove staged outputs but these: what other options or changed inputs have left."""
        keep = {*keep, LOCK, JOB, UNITS}
        stale = [name for name in _names(self.folder) if name not in keep and not name.endswith(KEPT)]
        # The system takes a tenth of a second to free a gigabyte of memory that files take.
        for _ in ordered_map(self._remove, stale, workers=available_cores(), in_flight=2 * available_cores()):
            pass
        if not self.place.is_local:
            for entry in _entries(self.place):
                if entry.path.split("/")[0] not in keep:
                    self.place.delete(entry.path)

    def clear(self) -> None:
        """Forget the job and all that it has left."""
        self.units.clear()
        self.place.delete(JOB)
        self.sweep(())
        self.job = None

    def finish(self) -> None:
        """The job is done: the folder is removed, what says which job it was first behind its units."""
        self.clear()
        self.close()

    def abandon(self, *, keep: bool = False) -> None:
        """Close it after an error: with a job that was begun before, or with `keep`, it stays for the next run."""
        if keep or self.resumed or not self._begun:
            self.close()
        else:
            self.finish()

    def close(self) -> None:
        """Release the lock. The work stays for the next run; without any, the folder is removed."""
        self.units.close()
        self._held.close()

    def _remove(self, name: str) -> None:
        if os.path.isdir(self.scratch.writable(name)):
            self.scratch.remove_folder(name)
        else:
            self.scratch.delete(name)

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
                fix="Give numbers of at most 64 bits, and rename files whose names are not UTF-8.",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Held:
    """The lock of an output, on this machine and for others."""

    def __init__(self, target: Store, name: str, patience: float = 0.0) -> None:
        self._place, self._scratch = place_of(target, name), scratch_of(target, name)
        self._above = os.path.dirname(self._scratch.root)
        self._fresh = not os.path.isdir(self._above)
        self._claim: Claim | None = None
        _refuse_file(self._scratch)
        self._lock = self._scratch.lock(
            LOCK, what="another process is writing here", file=target.locate(name), patience=patience
        )
        try:
            self._claim = Claim(target, name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release it, and remove the folder where no unfinished work is in it."""
        if not self._lock.held:
            return
        try:
            unfinished = self._claim is not None and self._is_unfinished()
        except FeedmillError:
            unfinished = True  # an object store that does not answer
        if self._claim is not None:
            self._claim.close()
        names = _names(self._scratch.root)
        if not unfinished and not any(name.endswith(KEPT) for name in names):
            self._scratch.remove_folder()
            if self._fresh:
                with contextlib.suppress(OSError):
                    os.rmdir(self._above)  # where nothing was written
        self._lock.close()

    def _is_unfinished(self) -> bool:
        """Return whether there is an unfinished job. Without one, what a killed process did not remove of the job that
        it had done is removed from an object store; on a disk it is in the folder that is removed."""
        if self._place.is_local:
            return self._place.exists(JOB)
        paths = [entry.path for entry in _entries(self._place)]
        if JOB not in paths:
            for path in paths:
                if not path.endswith(KEPT):
                    self._place.delete(path)
        return JOB in paths


@contextlib.contextmanager
def alone(target: Store, name: str = "") -> Iterator[LocalStore]:
    """A block in which nobody else writes an output; the folder of unfinished work on this machine's disk.

    Raises:
        StorageError: another process writes it (kind ``busy``).
    """
    place = scratch_of(target, name)
    mine = threading.get_ident(), place.root
    if mine in _mine or (isinstance(target, LocalStore) and not os.path.isdir(target.root)):
        yield place  # there is nothing to lock, which the caller says
        return
    held = _Held(target, name)
    _mine.add(mine)
    try:
        job = unfinished(target, name)
        if job is not None and job.get("half"):
            roll_forward(target, place_of(target, name), job)
        yield place
    finally:
        _mine.discard(mine)
        held.close()


def settle(target: Store, name: str = "", *, indexed: bool = True) -> None:
    """Finish what an interrupted job was putting in place on a local disk: some files are old and some new.

    Args:
        indexed: whether an index says which files belong to the dataset. Without one, a folder in which a job has
            written some of its files is refused.

    Raises:
        DataError: a running job is publishing its files, that cannot be finished here, or there is no index.
    """
    job = unfinished(target, name) if target.is_local else None
    if job is not None and job.get("half"):
        try:
            with contextlib.closing(_Held(target, name, patience=_PATIENCE)):
                job = unfinished(target, name)
                if job is not None and job.get("half"):
                    job = roll_forward(target, place_of(target, name), job)
        except StorageError as error:
            raise interrupted(target, job or {"half": True}) from error
    if job is not None and not (indexed or job.get("staged") or job.get("published")):
        raise interrupted(target, job)


def tidy(target: Store, name: str = "", identity: Mapping[str, Any] | None = None) -> None:
    """Remove the work folder of a finished job (with this identity) whose process was killed while removing it."""
    if os.path.isdir(scratch_of(target, name).root) or (not target.is_local and _entries(place_of(target, name))):
        with contextlib.suppress(FeedmillError), Work(target, name) as work:  # another process may begin now
            if work.job is None or (identity is not None and work.is_of(identity)):
                work.clear()


def _refuse_file(place: LocalStore) -> None:
    if os.path.lexists(place.root) and not os.path.isdir(place.root):
        raise StorageError(
            "there is a file where a folder for unfinished work is needed",
            file=place.root,
            kind="enotdir",
            fix="Move or remove that file.",
        )


def _entries(place: Store) -> list[Entry]:
    try:
        return list(place.files())
    except NotFound:
        return []


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
