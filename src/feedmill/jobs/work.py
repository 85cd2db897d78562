"""One job on one output: its lock, what it is, its finished units, and its outputs that are not published yet.

A hidden folder, ``.feedmill-work/`` in a folder that is written to and ``.<name>.feedmill-work/`` beside a single file;
for a remote output in the cache folder:

    lock       held while a process works; the system releases it when the process dies
    job.json   the job: a version, its identity, and facts noted since
    units      finished units, see `Units`
    ...        staged outputs

Outputs that replace others are staged, and put in place in one moment (`Work.publish`): the renames and
deletions are noted first, and whoever finds that note finishes them.

Killed at any moment, the same job begun again continues with what it finds there. Another job is refused, or removes
it first. The folder is removed when the job is done. A remote output is locked by an object, too
(`feedmill.storage.claims`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.units import Units
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache import cache_folder
from feedmill.storage.claims import Claim
from feedmill.storage.staging import sync

FOLDER = ".feedmill-work"
LOCK, JOB, UNITS = "lock", "job.json", "units"
KEPT = ".scanned"
"""Ends the names of files that are of use to any job on the output: what was read of it."""
VERSION = 1
_PATIENCE = 3.0
"""Seconds to wait for a process that is putting outputs in place."""
_OLD = (".nv-meta/feedmill.work/job.json", ".feedmill-convert/job.json")
_OLD_FILES = (".{}.feedmill-job", ".{}.feedmill-convert/job.json", ".{}.feedmill-work/job")
"""Where releases before this one kept unfinished work, in a folder and beside a file."""
_mine: set[tuple[int, str]] = set()
"""Thread and folder of each block of `alone`: `repair` prepares what it has repaired."""


def place_of(target: Store, name: str = "") -> LocalStore:
    """The folder of unfinished work on an output, which may be absent.

    Args:
        target: the store of the output.
        name: of a single file in it; empty where the output is the folder.
    """
    if isinstance(target, LocalStore):
        return target.below(f".{name}{FOLDER}" if name else FOLDER)
    return LocalStore(cache_folder()).below(f"work-{xxhash.xxh3_64_hexdigest(target.locate(name).encode())}")


class Work:
    """The job on an output; a context manager that keeps unfinished work unless `finish` was called.

    Args:
        target, name: see `place_of`.

    Attributes:
        place: the folder.
        job: what an unfinished run has noted, or this one; None where there is nothing.
        resumed: whether this job was begun before.
        units: its finished units.

    Raises:
        StorageError: another process writes this output (kind ``busy``), or the folder cannot be written.
        DataError: `job.json` is damaged.
        ConfigError: an earlier release has left unfinished work.
    """

    def __init__(self, target: Store, name: str = "") -> None:
        self.target, self.name = target, name
        self.place = place_of(target, name)
        self.resumed = self._begun = False
        self._held = _Held(target, name, self.place)
        try:
            _refuse_old(target, name)
            self.job = _read(self.place)
            self.units = Units(self.place, UNITS)
        except BaseException:
            self._held.close()
            raise

    @property
    def noted(self) -> dict[str, Any]:
        """What is noted of the job; empty where there is none."""
        return self.job or {}

    @property
    def folder(self) -> str:
        """Its path on this machine."""
        return self.place.root

    def is_of(self, identity: Mapping[str, Any]) -> bool:
        """Whether the unfinished job, if there is one, is this one."""
        return self.job is not None and self.job["identity"] == self._plain(identity)

    def refuse_other(self, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Raise `ConfigError` where another job is unfinished here, unless `overwrite` removes its work."""
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
            self.job = _roll_forward(self.target, self.place, self.noted)
        return bool(self.noted.get("published"))

    def sweep(self, keep: Collection[str]) -> None:
        """Remove staged outputs but these: what other options or changed inputs have left."""
        keep = {*keep, LOCK, JOB, UNITS}
        stale = [name for name in _names(self.folder) if name not in keep and not name.endswith(KEPT)]
        # The system takes a tenth of a second to free a gigabyte of memory that files take.
        for _ in ordered_map(self._remove, stale, workers=available_cores(), in_flight=2 * available_cores()):
            pass

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
        if os.path.isdir(self.place.writable(name)):
            self.place.remove_folder(name)
        else:
            self.place.delete(name)

    def _plain(self, identity: Mapping[str, Any]) -> Any:
        return orjson.loads(self._encoded(identity))

    def _encoded(self, job: Mapping[str, Any]) -> bytes:
        try:
            return orjson.dumps(job, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            raise ConfigError(
                f"a number or a name cannot be noted ({error})",
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

    def __init__(self, target: Store, name: str, place: LocalStore, patience: float = 0.0) -> None:
        self._place = place
        self._above = os.path.dirname(place.root)
        self._fresh = not os.path.isdir(self._above)
        self._claim: Claim | None = None
        self._lock = place.lock(
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
        if self._claim is not None:
            self._claim.close()
        names = _names(self._place.root)
        if JOB not in names and not any(name.endswith(KEPT) for name in names):
            self._place.remove_folder()
            if self._fresh:
                with contextlib.suppress(OSError):
                    os.rmdir(self._above)  # where nothing was written
        self._lock.close()


@contextlib.contextmanager
def alone(target: Store, name: str = "") -> Iterator[LocalStore]:
    """A block in which nobody else writes an output; its folder of unfinished work.

    Raises:
        StorageError: another process writes it (kind ``busy``).
    """
    place = place_of(target, name)
    mine = threading.get_ident(), place.root
    if mine in _mine or (isinstance(target, LocalStore) and not os.path.isdir(target.root)):
        yield place  # there is nothing to lock, which the caller says
        return
    held = _Held(target, name, place)
    _mine.add(mine)
    try:
        job = unfinished(target, name)
        if job is not None and job.get("half"):
            _roll_forward(target, place, job)
        yield place
    finally:
        _mine.discard(mine)
        held.close()


def unfinished(target: Store, name: str = "") -> dict[str, Any] | None:
    """The job on an output that is not finished; None where there is none. Raises as `Work`."""
    _refuse_old(target, name)
    return _read(place_of(target, name))


def settle(target: Store, name: str = "", *, indexed: bool = True) -> None:
    """Finish what an interrupted job was putting in place on a local disk: some files are old and some new.

    Args:
        indexed: whether an index says which files belong to the dataset. Without one, a folder in which a job has
            written some of its files is refused.

    Raises:
        DataError: a running job is doing so, it cannot be done here, or there is no index.
    """
    job = unfinished(target, name) if target.is_local else None
    if job is not None and job.get("half"):
        try:
            with contextlib.closing(_Held(target, name, place_of(target, name), patience=_PATIENCE)):
                job = unfinished(target, name)
                if job is not None and job.get("half"):
                    job = _roll_forward(target, place_of(target, name), job)
        except StorageError as error:
            raise interrupted(target, job or {"half": True}) from error
    if job is not None and not (indexed or job.get("staged") or job.get("published")):
        raise interrupted(target, job)


def _roll_forward(target: Store, place: LocalStore, job: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(target, LocalStore)
    try:
        facts = msgspec.convert(job, _Published)
    except msgspec.ValidationError as error:
        raise damaged(place, str(error)) from None
    for path in facts.deletes:
        target.delete(path)
    for staged, path in facts.moves:
        if place.exists(staged):  # else it is in place already
            target.rename(place, staged, path)
    folders = {os.path.dirname(target.locate(path)) for path in facts.deletes}
    folders |= {os.path.dirname(place.locate(staged)) for staged, _ in facts.moves}
    for folder in folders:  # the note must not outlast what it is about
        with contextlib.suppress(OSError):
            sync(folder)
    job = {name: value for name, value in job.items() if name not in ("half", "moves", "deletes")} | {"published": True}
    place.write_bytes(JOB, orjson.dumps(job))
    return job


class _Published(msgspec.Struct):
    moves: list[tuple[str, str]]
    deletes: list[str]


def interrupted(target: Store, job: Mapping[str, Any]) -> DataError:
    """The error, for readers and writers, for a folder that a job is changing or has been interrupted in."""
    half, identity = bool(job.get("half")), job.get("identity") or {}
    verb = identity.get("verb", "write") if isinstance(identity, dict) else "write"
    return DataError(
        f"a '{verb}' is {'putting changed files in place' if half else 'writing this'}, or was interrupted",
        file=target.url,
        kind="unfinished-change" if half else "unfinished-write",
        fix="Wait; if nothing is running, run that command again, as it was: it finishes what is left.",
    )


def tidy(target: Store, name: str = "", identity: Mapping[str, Any] | None = None) -> None:
    """Remove the folder of a job that is done (with this identity), where its process was killed before it had removed
    all of it."""
    if os.path.isdir(place_of(target, name).root):
        with contextlib.suppress(FeedmillError), Work(target, name) as work:  # another process may begin now
            if work.job is None or (identity is not None and work.is_of(identity)):
                work.clear()


def is_unfinished(target: Store, name: str, identity: Mapping[str, Any]) -> bool:
    """Whether this very job is unfinished on an output. Raises as `Work`."""
    job = unfinished(target, name)
    return job is not None and job["identity"] == identity


def unfinished_job(file: str) -> ConfigError:
    """The error for an output on which another job is unfinished."""
    return ConfigError(
        "another job that writes here was not finished (or its inputs changed since)",
        file=file,
        kind="unfinished-job",
        fix="Run that command again to finish it, or add --overwrite to begin this one.",
    )


def damaged(place: LocalStore, found: str) -> DataError:
    """The error for a `job.json` that is no description of a job."""
    return DataError(
        f"this should say what an interrupted run was doing, and does not ({found})",
        file=place.locate(JOB),
        kind="bad-job",
        fix=f"Run 'feedmill check' on the output; if it finds no problems, remove {place.root}.",
    )


def boot() -> str:
    """An id of this boot of the machine; empty where the system gives none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""


def _read(place: LocalStore) -> dict[str, Any] | None:
    try:
        job = orjson.loads(place.read(JOB))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        job = None
    if isinstance(job, dict) and job.get("version") == VERSION and "identity" in job:
        return job
    raise damaged(place, f"a JSON object of version {VERSION} was expected")


def _refuse_old(target: Store, name: str) -> None:
    if not isinstance(target, LocalStore):
        return
    for path in (old.format(name) for old in _OLD_FILES) if name else _OLD:
        if os.path.exists(os.path.join(target.root, path)):
            raise ConfigError(
                "an earlier release of Feedmill was interrupted here, and has left unfinished work",
                file=target.locate(path),
                kind="unfinished-job",
                fix="Finish it with that release, or remove the output and this.",
            )


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
