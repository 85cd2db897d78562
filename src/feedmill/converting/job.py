"""Work folder of a conversion, see `feedmill.jobs.work`.

It holds 16 bytes per sample of each finished output (``000012.hashes``), the chunks that are joined to a single file,
and in ``new/`` the staged result that replaces an old one.
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
    """A skipped sample: its number in the source, its key if known, and the reason."""

    index: int
    key: str
    reason: str


def bad_sample(index: int, key: str, reason: str) -> Bad:
    """Return a `Bad` whose key and reason are valid Unicode: lone surrogates in a key may be why it is skipped."""
    key, reason = (text.encode("utf-8", "backslashreplace").decode() for text in (key, reason))
    return Bad(index, key, reason)


class Done(msgspec.Struct, frozen=True):
    """A finished output.

    Attributes:
        number: number of the unit of work.
        path: path in the destination, or in the work folder for a chunk of a single file; empty if it has no samples.
        size, version: size in bytes and version of the file.
        samples: number of samples.
        bad: skipped samples.
        extra: data of the target format.
        hashes: xxh3 digest of the file of sample hashes, which is not synced.
        rows: ranges ``[begin, end)`` of the samples' numbers, see `Source.numbers`.
    """

    number: int
    path: str
    size: int
    version: str
    samples: int
    bad: list[Bad] = []
    extra: dict[str, Any] = {}
    hashes: str = ""
    rows: list[tuple[int, int]] = []

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of the samples in what the unit reads, int64[samples]."""
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in self.rows)])


class _Job(msgspec.Struct):
    """The fields of ``job.json`` that a conversion uses."""

    identity: dict[str, Any]
    writes: tuple[list[str], str] = ([], "")
    staged: bool = False
    replace: list[str] = []


class ConvertWork(Work):
    """Work folder and journal of one conversion.

    Args:
        destination: path or URL.
        is_file: whether the destination is a file.

    Raises:
        DataError: ``job.json`` is invalid. Other errors are those of `Work`.
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
        """Return the identity of the unfinished conversion; empty if there is none."""
        found = dict(self.noted.get("identity", {}))
        return found if found.pop("verb", None) == VERB else {}

    def done(self, store: Store) -> dict[int, Done]:
        """Return the finished outputs by unit number, without those whose files have changed since."""
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
        if not self.place.is_local:  # an object store needs no sync
            return True
        return _digest(self.place.read(_name(done.number))) == done.hashes

    def _stat(self, store: Store, path: str) -> Entry:
        name = path.rpartition("/")[2]  # raises NotFound if another machine wrote the chunk
        return self.scratch.stat(name) if path.endswith(PIECE) else store.stat(path)

    def add(self, done: Done) -> None:
        """Record a finished output in the journal."""
        self.units.add(str(done.number), msgspec.json.encode(done))

    def forget(self, number: int) -> None:
        """Remove an output from the journal, so that it is written again: verification found it to differ."""
        self.units.add(str(number), b"")

    def hashes(self, number: int) -> Hashes:
        """Return the hashes of the samples of an output. uint8[samples, 16]."""
        return read_hashes(self.place.url, number)


def place_of(destination: str, *, is_file: bool) -> tuple[Store, str]:
    """Return the store of a destination and, for a file, its name in the store; otherwise an empty name."""
    if not is_file:
        return open_store(destination), ""
    folder, name = split_url(destination)
    return open_store(folder), name


def write_hashes(notes: str, number: int, hashes: bytes) -> str:
    """Write the hashes of an output to the work folder `notes` (a URL), unsynced, and return their digest.

    Called by the process that wrote the output. After a power failure the digest shows whether they were lost.
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
