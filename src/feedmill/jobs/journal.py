"""The journal of a job on an output: its identity, its finished units, its staged outputs, and what is stale.

It is in the work folder: ``.feedmill-work/`` in an output folder, or ``.<name>.feedmill-work/`` beside an output file,
both on a local disk and in an object store:

    job.json   the job: a version, its identity, and recorded facts
    units      finished units, see `Units`
    parts/     marks of finished parts of a job array
    ...        staged outputs
    lock       see `feedmill.jobs.work`

A process without the lock may read it, to see what a killed job left. `feedmill.jobs.work` writes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, BinaryIO

import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import part_name, shared_work
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.work_folder import FOLDER, JOB
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.base import storage_error
from feedmill.storage.folders import cache_folder
from feedmill.storage.staging import sync

UNITS, LOCK = "units", "lock"
VERSION = 1
SCANNED = ".scanned"
"""Suffix of files that any job on the output can use, such as data read from it."""
_HEAD = struct.Struct("<QIQ")
_NUMBERED = re.compile(r"/\d{12}-[0-9a-f]{8}$")
_AT_ONCE = 16
"""Number of objects read or deleted concurrently."""


def place_of(target: Store, name: str = "") -> Store:
    """Return the work folder of an output, which may be absent.

    Args:
        target: the store of the output.
        name: name of a single file in the store; empty if the output is the folder.
    """
    return target.below(f".{name}{FOLDER}" if name else FOLDER)


def scratch_of(target: Store, name: str = "") -> Store:
    """Return the folder for the files of units, which may be absent.

    It is `place_of` if the output is local. For an output in an object store it is a folder on this machine's disk, or
    on an engine what all its machines reach: `place_of`, or a folder in the one that ``--work`` names.
    """
    place, shared = place_of(target, name), shared_work()
    if place.is_local or shared == "":
        return place
    return local_scratch_of(target, name) if shared is None else open_store(shared).below(_below(target, name))


def local_scratch_of(target: Store, name: str = "") -> LocalStore:
    """Return the folder in this machine's cache for unfinished work on an output in an object store."""
    return LocalStore(cache_folder()).below(_below(target, name))


def _below(target: Store, name: str) -> str:
    return f"work-{xxhash.xxh3_64_hexdigest(target.locate(name).encode())}"


class Journal:
    """The journal of the job on an output, as it is stored now.

    Args:
        target, name: see `place_of`.

    Attributes:
        place: the work folder. In an object store, other machines can read it.
        scratch: folder for the files of units: on this machine's disk, or one that all machines of the engine reach.
        job: the recorded job; None if there is none.
        units: finished units of the job.

    Raises:
        DataError: `job.json` is corrupt.
    """

    def __init__(self, target: Store, name: str = "") -> None:
        self.target, self.name = target, name
        self.place = place_of(target, name)
        self.scratch = self.place if self.place.is_local else scratch_of(target, name)
        self.job = self._read()
        self.units = Units(self.place, UNITS, part_name())

    @property
    def noted(self) -> dict[str, Any]:
        """Return the recorded facts of the job; empty if there is none."""
        return self.job or {}

    def is_of(self, identity: Mapping[str, Any]) -> bool:
        """Return whether there is an unfinished job with this identity."""
        return self.job is not None and self.job["identity"] == orjson.loads(self._encoded(identity))

    def roll_forward(self) -> bool:
        """Finish an interrupted publication on a local disk, under the lock. Return whether the outputs are published.

        Raises:
            DataError: `job.json` is corrupt, or this is a dry run, which changes nothing.
        """
        if self.noted.get("half"):
            if active() is not None:
                raise self.interrupted()
            self._finish_publication()
        return bool(self.noted.get("published"))

    def _finish_publication(self) -> None:
        target, place = self.target, self.place
        assert isinstance(target, LocalStore) and isinstance(place, LocalStore)
        import msgspec  # not for those who only look for a journal

        from feedmill.structs import convert_as

        try:
            moves = convert_as(self.noted.get("moves"), list[tuple[str, str]])
            deletes = convert_as(self.noted.get("deletes"), list[str])
        except msgspec.ValidationError as error:
            raise self.damaged(str(error)) from None
        for path in deletes:
            target.delete(path)
        for staged, path in moves:
            if place.exists(staged):  # otherwise it is already published
                target.rename(place, staged, path)
        folders = {os.path.dirname(target.locate(path)) for path in deletes}
        folders |= {os.path.dirname(place.locate(staged)) for staged, _ in moves}
        for folder in folders:  # the renames must be durable before the journal entry is removed
            with contextlib.suppress(OSError):
                sync(folder)
        left = {name: value for name, value in self.noted.items() if name not in ("half", "moves", "deletes")}
        self._write({**left, "published": True})

    def _read(self) -> dict[str, Any] | None:
        try:
            job = orjson.loads(self.place.read(JOB))
        except NotFound:
            return None
        except orjson.JSONDecodeError:
            job = None
        if isinstance(job, dict) and job.get("version") == VERSION and "identity" in job:
            return job
        raise self.damaged(f"expected a JSON object of version {VERSION}")

    def _write(self, job: Mapping[str, Any]) -> None:
        self.place.write_bytes(JOB, self._encoded(job))
        self.job = dict(job)

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

    def _remove(self, keep: Collection[str]) -> None:
        """Delete the content of the work folders, except the names `keep` and what any job on the output can use."""
        for store in {store.url: store for store in (self.place, self.scratch)}.values():
            remove_all(store, keep, scanned=store.url == self.scratch.url)

    def interrupted(self) -> DataError:
        """Return the error, for readers and writers, for a folder that a running or interrupted job is changing."""
        half, identity = bool(self.noted.get("half")), self.noted.get("identity") or {}
        verb = identity.get("verb", "write") if isinstance(identity, dict) else "write"
        return DataError(
            f"a '{verb}' is {'publishing changed files' if half else 'writing this'}, or was interrupted",
            file=self.target.url,
            kind="unfinished-job",
            fix="Wait until it has ended. If it is not running, run the same command again to finish it.",
        )

    def other_job(self) -> ConfigError:
        """Return the error for an output on which another job is unfinished."""
        return ConfigError(
            "another job that writes here was not finished (or its inputs changed since)",
            file=self.target.locate(self.name),
            kind="unfinished-job",
            fix="Run that command again to finish it, or add --overwrite to start this one.",
        )

    def damaged(self, found: str) -> DataError:
        """Return the error for an invalid `job.json`."""
        return DataError(
            f"the journal of an interrupted run is corrupt ({found})",
            file=self.place.locate(JOB),
            kind="bad-job",
            fix=f"Run 'feedmill check' on the output; if it finds no problems, remove {self.place.url}.",
        )


class Units:
    """Finished units in the file `name` of a folder: read once, then appended to. The file has a frame for each:

        u64 length of name and facts, u32 length of the name, u64 xxh3 of both, name (UTF-8), facts

    An object store cannot append to objects. There, each frame is a numbered object below that name.

    A torn or foreign tail is ignored, and the next frame overwrites it. Frames are synced only by `sync`: a unit lost
    in a power failure is processed again. A job that cannot process it again must call `sync`.

    Args:
        part: suffix of this process's own file, where several processes append: the parts of a job array.

    Attributes:
        place: the folder.
    """

    def __init__(self, place: Store, name: str, part: str = "") -> None:
        self._stem, self._suffix = os.path.splitext(name)
        self.place = place
        self._name = f"{self._stem}{part}{self._suffix}" if place.is_local else name  # objects have names of their own
        self._file: BinaryIO | None = None
        self._whole = 0
        self._next: int | None = None
        self._run = os.urandom(4).hex()

    def read(self) -> dict[str, bytes]:
        """Return the facts of each finished unit; the later facts if a unit was finished twice."""
        found: dict[str, bytes] = {}
        paths, workers = self._paths(), 0 if self.place.is_local else _AT_ONCE
        self._whole = 0
        for path, data in zip(
            paths, ordered_map(self._frames, paths, workers=workers, in_flight=2 * workers), strict=True
        ):
            whole = _read_frames(data, found)
            if path == self._name:
                self._whole = whole
        return found

    def _frames(self, path: str) -> memoryview:
        with contextlib.suppress(NotFound):  # another process has removed it meanwhile
            return memoryview(self.place.read(path))
        return memoryview(b"")

    def _paths(self) -> list[str]:
        """Return the files of all parts of a job array, this process's own last, or the objects in order."""
        if isinstance(self.place, LocalStore):
            of_parts = re.compile(rf"{re.escape(self._stem)}(-\d+)?{re.escape(self._suffix)}")
            found = [name for name in names(self.place.root) if of_parts.fullmatch(name)]
            return sorted(found, key=lambda name: (name == self._name, name))
        found = [path for path in _paths(self.place, self._name) if _NUMBERED.search(path)]
        self._next = 1 + (int(found[-1].rpartition("/")[2][:12]) if found else -1)
        return found

    def add(self, unit: str, facts: bytes, *, flush: bool = True) -> None:
        """Append a finished unit. Raises `StorageError`.

        A unit whose name is not UTF-8 is not recorded, so it is processed again. In a dry run nothing is.

        Args:
            flush: hand it to the system, where it outlives this process. A caller that adds many at once flushes the
                last of them.
        """
        if active() is not None:
            return
        try:
            name = unit.encode()
        except UnicodeEncodeError:
            return
        digest = xxhash.xxh3_64(name)
        digest.update(facts)
        head = _HEAD.pack(len(name) + len(facts), len(name), digest.intdigest())
        if not isinstance(self.place, LocalStore):
            if self._next is None:
                self._paths()
            number = self._next or 0
            self.place.write_bytes(f"{self._name}/{number:012d}-{self._run}", head + name + facts)
            self._next = number + 1
            return
        try:
            if self._file is None:
                self._file = self.place.append(self._name)
                self._file.truncate(self._whole)
            self._file.write(head + name + facts)
            if flush:
                self._file.flush()
        except OSError as error:
            self._abandon()
            raise storage_error(error, self.place.locate(self._name)) from None
        self._whole += len(head) + len(name) + len(facts)

    def _abandon(self) -> None:
        """Close the file without the unwritten rest of a frame, which closing would try to write again."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()

    def sync(self) -> None:
        """Wait until every frame is on the disk. Raises `StorageError`."""
        if not self.place.is_local:
            return
        path = self.place.locate(self._name)
        try:
            if os.path.exists(path):
                sync(path)
                sync(os.path.dirname(path))
        except OSError as error:
            raise storage_error(error, path) from None

    @property
    def exist(self) -> bool:
        """Return whether any unit is finished, in this run or an earlier one."""
        return bool(self._paths())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def clear(self) -> None:
        """Delete all units."""
        self.close()
        if active() is not None:
            return
        for path in self._paths():
            self.place.delete(path)
        self._whole, self._next = 0, None


def _read_frames(data: memoryview, into: dict[str, bytes]) -> int:
    """Read the whole frames at the beginning of a file; return their length in bytes."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, named, digest = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(body) < length or named > length or xxhash.xxh3_64_intdigest(body) != digest:
            break
        with contextlib.suppress(UnicodeDecodeError):
            into[str(body[:named], "utf-8")] = bytes(body[named:])
        at += _HEAD.size + length
    return at


def remove_all(store: Store, keep: Collection[str], *, scanned: bool) -> None:
    """Delete the content of a work folder, except the names `keep`, and with `scanned` what any job can use."""
    local = isinstance(store, LocalStore)
    paths = names(store.root) if isinstance(store, LocalStore) else _paths(store)

    def stays(name: str) -> bool:
        of_part = UNITS in keep and name.startswith(f"{UNITS}-")  # of a job array
        return name in keep or of_part or (scanned and name.endswith(SCANNED))

    stale = [path for path in paths if not stays(path.split("/")[0])]
    # The system takes a tenth of a second to free a gigabyte of page cache.
    workers = available_cores() if local else _AT_ONCE
    for _ in ordered_map(partial(_remove_one, store), stale, workers=workers, in_flight=2 * workers):
        pass


def _remove_one(store: Store, path: str) -> None:
    if isinstance(store, LocalStore) and os.path.isdir(store.writable(path)):
        store.remove_folder(path)
    else:
        store.delete(path)


def names(folder: str) -> list[str]:
    """Return the names in a folder of this machine, sorted; none if it is absent."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _paths(store: Store, folder: str = "") -> list[str]:
    """Return the objects of a work folder, or of a folder in it, which may be absent."""
    try:
        return [entry.path for entry in store.files(folder)]
    except NotFound:
        return []


def is_there(store: Store) -> bool:
    """Return whether a work folder has files; on a disk, whether it exists."""
    return os.path.isdir(store.root) if isinstance(store, LocalStore) else bool(_paths(store))
