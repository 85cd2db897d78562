"""What a conversion has finished, so that the same command resumes after a kill.

A hidden folder, ``.feedmill-convert/`` in the destination (``.<name>.feedmill-convert/`` beside one that is a file; in
the cache folder for a remote one): ``lock``, held while a process works; ``job.json``, what is being done; and for each
output that is whole ``000012.json`` (a `Done`) and ``000012.hashes`` (16 bytes for each sample); ``new/``, a result
that will replace an old one. It goes at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.storage import Entry, Store, open_store, split_url
from feedmill.storage.cache import cache_folder
from feedmill.storage.claims import Claim
from feedmill.storage.local import LocalStore

FOLDER = ".feedmill-convert"
Hashes = npt.NDArray[np.uint8]
"""uint8[n, 16]: xxh3-128 of each sample, in order."""


class Bad(msgspec.Struct, frozen=True):
    """A sample that was left out: its number in the source, its key where it is known, and why."""

    index: int
    key: str
    reason: str


def bad_sample(index: int, key: str, reason: str) -> Bad:
    """A `Bad` of names that need not be text: a key may be bad for that very reason."""
    key, reason = (text.encode("utf-8", "backslashreplace").decode() for text in (key, reason))
    return Bad(index, key, reason)


class Done(msgspec.Struct, frozen=True):
    """An output that is whole.

    Attributes:
        number: of the unit of work.
        path: in the destination (or in the notes, for pieces that are put together); empty where it had no samples.
        size, version: of the file.
        samples: how many it holds.
        bad: what was left out.
        extra: what the format wants to remember.
    """

    number: int
    path: str
    size: int
    version: str
    samples: int
    bad: list[Bad] = []
    extra: dict[str, Any] = {}


class _Job(msgspec.Struct):
    """The shape of ``job.json``."""

    identity: dict[str, Any] = {}
    writes: tuple[list[str], str] = ([], "")
    staged: bool = False
    replace: list[str] = []
    proof: dict[str, Any] = {}


class Notes:
    """The notes of one conversion.

    Args:
        destination: path or URL.
        is_file: whether the destination is a file.

    Raises:
        StorageError: another process converts to this place, or it cannot be written.
    """

    def __init__(self, destination: str, *, is_file: bool) -> None:
        self.destination = destination
        self.store = notes_store(destination, is_file=is_file)
        self.folder = Path(self.store.root)
        self._fresh = not self.folder.parent.exists()
        self._lock = self.store.lock("lock", what="another process is converting to this place", file=destination)
        try:
            folder, name = split_url(destination) if is_file else (destination, "")
            self._claim = Claim(open_store(folder), name)
        except BaseException:
            self._lock.close()
            raise

    def read_job(self) -> dict[str, Any] | None:
        """The job that was begun here and not finished. Raises `DataError` where it is of another shape."""
        try:
            job = orjson.loads(self.store.read("job.json"))
        except (NotFound, orjson.JSONDecodeError):
            return None
        if not isinstance(job, dict):
            return None
        try:
            msgspec.convert(job, _Job)
        except msgspec.ValidationError as error:
            raise self.damaged(str(error)) from None
        return job

    def damaged(self, found: str) -> DataError:
        """The error for notes that Feedmill has not written like this."""
        return DataError(
            f"this is no note of a conversion ({found})",
            file=self.store.locate("job.json"),
            kind="bad-notes",
            fix="Remove the folder that it is in, and run the command again with --overwrite.",
        )

    def write_job(self, job: Mapping[str, Any]) -> None:
        """Note what is being done; the order of names is kept: that of columns depends on it."""
        self.store.write_bytes("job.json", orjson.dumps(job))

    def done(self, store: Store) -> dict[int, Done]:
        """The outputs that are whole, and unchanged since."""
        found = {}
        for path in sorted(self.folder.glob("[0-9]*.json")):
            try:
                done = msgspec.json.decode(path.read_bytes(), type=Done)
                entry = self._stat(store, done.path) if done.path else None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotFound):
                continue
            if entry is None or (entry.size, entry.version) == (done.size, done.version):
                found[done.number] = done
        return found

    def _stat(self, store: Store, path: str) -> Entry:
        folder, name = split_url(path)
        return self.store.stat(name) if folder == str(self.folder) else store.stat(path)

    def hashes(self, number: int) -> Hashes:
        """The hashes of the samples of an output."""
        return np.frombuffer((self.folder / f"{number:06d}.hashes").read_bytes(), np.uint8).reshape(-1, 16)

    def clear(self) -> None:
        """Forget all that is noted."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                self.store.remove_folder(path.name)
            elif path.name != "lock":
                self.store.delete(path.name)

    def forget(self, number: int) -> None:
        """An output is not what it should be: it is made again."""
        self.store.delete(f"{number:06d}.json")

    def finish(self) -> None:
        """The work is done, or was never begun: the notes go, and a folder that was made for them alone."""
        self.store.delete("job.json")  # first: without it the others mean nothing
        self.store.remove_folder()

    def close(self) -> None:
        """Let go; what is noted stays, and nothing at all where nothing was begun."""
        if not self._lock.held:
            return
        self._claim.close()
        if not (self.folder / "job.json").exists():
            self.finish()
            if self._fresh:
                with contextlib.suppress(OSError):
                    self.folder.parent.rmdir()
        self._lock.close()


def note_done(folder: str, done: Done, hashes: bytes) -> None:
    """Note an output as whole; called by the process that wrote it."""
    store = LocalStore(folder)
    store.write_bytes(f"{done.number:06d}.hashes", hashes)
    store.write_bytes(f"{done.number:06d}.json", msgspec.json.encode(done))


def notes_store(destination: str, *, is_file: bool) -> LocalStore:
    """Where the notes of a destination lie. Raises `StorageError` where links lead there."""
    store = open_store(destination)
    if not isinstance(store, LocalStore):
        return LocalStore(cache_folder()).below(f"convert-{xxhash.xxh3_64_hexdigest(destination.encode())}")
    if not is_file:
        return store.below(FOLDER)
    folder, name = split_url(destination)
    return LocalStore(folder).below(f".{name}{FOLDER}")


def unfinished(destination: str) -> ConfigError:
    """The error for a place where another conversion was not finished."""
    return ConfigError(
        "another conversion to this place was not finished (or its source has changed since)",
        file=destination,
        kind="unfinished-job",
        fix="Run that command again to finish it, or add --overwrite to begin this one.",
    )
