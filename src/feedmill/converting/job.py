"""The job of a conversion, see `feedmill.jobs.work`.

Its folder holds 16 bytes for each sample of an output that is whole (``000012.hashes``), the pieces of a single file,
and in ``new/`` a result that will replace an old one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import NotFound
from feedmill.jobs.unfinished import damaged
from feedmill.jobs.work import Work
from feedmill.storage import Entry, Store, open_store, split_url

VERB, PIECE = "convert", ".piece"
Hashes = npt.NDArray[np.uint8]
"""uint8[n, 16]: xxh3-128 of each sample, in order."""


class Bad(msgspec.Struct, frozen=True):
    """A sample that was left out: its number in the source, its key where it is known, and why."""

    index: int
    key: str
    reason: str


def bad_sample(index: int, key: str, reason: str) -> Bad:
    """Return a `Bad` of names that need not be text: a key may be bad for that very reason."""
    key, reason = (text.encode("utf-8", "backslashreplace").decode() for text in (key, reason))
    return Bad(index, key, reason)


class Done(msgspec.Struct, frozen=True):
    """An output that is whole.

    Attributes:
        number: of the unit of work.
        path: in the destination, or for a piece that is put together in the folder of the job; empty without samples.
        size, version: of the file.
        samples: how many it holds.
        bad: what was left out.
        extra: what the format wants to remember.
        hashes: the xxh3 of its samples' hashes, which are not synced.
    """

    number: int
    path: str
    size: int
    version: str
    samples: int
    bad: list[Bad] = []
    extra: dict[str, Any] = {}
    hashes: str = ""


class _Job(msgspec.Struct):
    """What ``job.json`` may hold that is acted upon."""

    identity: dict[str, Any]
    writes: tuple[list[str], str] = ([], "")
    staged: bool = False
    replace: list[str] = []


class ConvertWork(Work):
    """The job of one conversion. Raises as `Work`, and `DataError` where `job.json` cannot be acted upon.

    Args:
        destination: path or URL.
        is_file: whether the destination is a file.
    """

    def __init__(self, destination: str, *, is_file: bool) -> None:
        self.destination = destination
        super().__init__(*place_of(destination, is_file=is_file))
        try:
            if self.job is not None:
                msgspec.convert(self.job, _Job)
        except msgspec.ValidationError as error:
            self.close()
            raise damaged(self.place, str(error)) from None

    def identity(self) -> dict[str, Any]:
        """That of the unfinished conversion; empty if there is none."""
        found = dict(self.noted.get("identity", {}))
        return found if found.pop("verb", None) == VERB else {}

    def done(self, store: Store) -> dict[int, Done]:
        """Return the outputs that are whole, and unchanged since."""
        found = {}
        for facts in self.units.read().values():
            with contextlib.suppress(msgspec.MsgspecError, NotFound):
                done = msgspec.json.decode(facts, type=Done)
                entry = self._stat(store, done.path) if done.path else None
                same = entry is None or (entry.size, entry.version) == (done.size, done.version)
                if same and self._has_hashes(done):
                    found[done.number] = done
        return found

    def _has_hashes(self, done: Done) -> bool:
        if not self.place.is_local:  # then they were synced
            return True
        return _digest(self.place.read(_name(done.number))) == done.hashes

    def _stat(self, store: Store, path: str) -> Entry:
        name = path.rpartition("/")[2]  # a piece may have been made on another machine, and then it is not here
        return self.scratch.stat(name) if path.endswith(PIECE) else store.stat(path)

    def add(self, done: Done) -> None:
        """Note an output that is whole."""
        self.units.add(str(done.number), msgspec.json.encode(done))

    def forget(self, number: int) -> None:
        """An output is not what it should be: it is made again."""
        self.units.add(str(number), b"")

    def hashes(self, number: int) -> Hashes:
        """Return the hashes of the samples of an output."""
        return read_hashes(self.place.url, number)


def place_of(destination: str, *, is_file: bool) -> tuple[Store, str]:
    """Return the store of a destination, and its name there where it is a file."""
    if not is_file:
        return open_store(destination), ""
    folder, name = split_url(destination)
    return open_store(folder), name


def write_hashes(notes: str, number: int, hashes: bytes) -> str:
    """Write the hashes of an output to the folder of a job (a URL), unsynced, and return their digest.

    Called by the process that wrote the output. After a power failure the digest shows whether they are lost.
    """
    open_store(notes).write_note(_name(number), hashes)
    return _digest(hashes)


def read_hashes(notes: str, number: int) -> Hashes:
    """Return what `write_hashes` wrote. uint8[samples, 16]."""
    return np.frombuffer(open_store(notes).read(_name(number)), np.uint8).reshape(-1, 16)


def _name(number: int) -> str:
    return f"{number:06d}.hashes"


def _digest(hashes: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(hashes)
