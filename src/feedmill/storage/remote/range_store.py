"""What stores that answer requests have in common: ranges are merged, asked for together, and found if read ahead.

A store of this kind makes one request for one range (`RangeStore.request_once`), and says what its errors mean.
`fetching/fetch.py` decides about further tries, `fetching/read_ahead.py` what is requested ahead.

The threads and connections do not survive `fork`: a child would hang and its parent with it, so requests in a forked
child raise an error. Processes started by "spawn" or "forkserver" (as `feedmill.jobs` does) are not affected.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Entry, Ranges, Store, refuse_nul, too_short
from feedmill.storage.cache.paged import OnDisk, on_disk
from feedmill.storage.fetching.fetch import Failed, fetcher, replaced
from feedmill.storage.fetching.lanes import MOST
from feedmill.storage.fetching.ranges import OFFSET_BITS, merged
from feedmill.storage.fetching.segments import Held, Segment
from feedmill.storage.local import is_disk_error, storage_error
from feedmill.storage.remote.errors import AGAIN, CHECK, Reaction
from feedmill.storage.remote.options import Patience

if TYPE_CHECKING:
    from obstore import Bytes

    Body: TypeAlias = "Bytes | bytes"

_EMPTY = memoryview(b"")
FEW = 4
"""Files whose entries are requested one by one; those of more are listed."""

_process = {"requested": False, "forked": False}
_answered: set[str] = set()
"""Buckets and servers that have answered this process."""


class RangeStore(Store):
    """A store that answers requests for ranges of files.

    Args:
        url: as it is shown to people, and opened again in another process.
        target: the URL that requests go to, if it differs; see `feedmill.storage.remote.msc`.

    Attributes:
        host: scheme and server, or bucket: requests to the same one share the limits of how many are in flight.
        at_once: requests to the host in flight at most.
        held: what was read ahead.
        connection: how often the store connected again.

    Raises `ConfigError` if the URL has a NUL.
    """

    is_local = False
    at_once = MOST

    def __init__(self, url: str, target: str | None = None) -> None:
        refuse_nul(url)
        self.url = url.rstrip("/")
        self.target = (url if target is None else target).rstrip("/")
        self.host = "/".join(self.target.split("/")[:3])
        self._versions: dict[str, str] | None = None
        self._entries: dict[str, Entry | None] = {}
        self.held = Held()
        self.connection = 0
        self._renewing = threading.Lock()

    @abstractmethod
    def request_once(self, key: str, begin: int, end: int, *, brisk: bool = False) -> Body:
        """Request a range of a file, or with the end `WHOLE` all of it, with one try; any error may be raised.

        Args:
            brisk: give the request up sooner, if the store can.
        """

    @abstractmethod
    def reaction_to(self, error: BaseException) -> Reaction:
        """Return what to do about an error of `request_once`."""

    @abstractmethod
    def translate(self, error: BaseException, where: str) -> FeedmillError | None:
        """Convert an error of a request to one with a fix; None if it is not about storage."""

    @abstractmethod
    def is_beyond_end(self, error: BaseException) -> bool:
        """Return whether a request failed because its range begins after the end of the file."""

    @abstractmethod
    def reconnect(self) -> None:
        """Connect again, so that credentials are read and requested again."""

    def renew(self, connection: int) -> None:
        """Connect again, unless that was done since a request was sent: many in flight are denied at once.

        Args:
            connection: number of the connection (`connection`) when the denied request was sent.
        """
        with self._renewing:
            if connection == self.connection:
                self.reconnect()
                self.connection += 1

    @abstractmethod
    def patience(self) -> Patience:
        """Return how often and how long a failed request for a range is tried again."""

    @abstractmethod
    def download(self, path: str, file: BinaryIO) -> Entry:
        """Write one whole file, of one version, into an open file; return the entry of that version."""

    @property
    @abstractmethod
    def lists(self) -> bool:
        """Return whether the store can list its files."""

    @abstractmethod
    def _list_entries(self, keys: Sequence[str]) -> None:
        """Note the entries of files in one folder from listings, as long as these find enough of them."""

    def put_new(self, path: str, data: bytes) -> bool:  # noqa: ARG002
        """Write one small file unless it exists, in one atomic request; return whether it was written.

        Raises `StorageError` of kind ``not-supported`` if the server has no conditional writes."""
        raise StorageError(
            "this store cannot write a file on the condition that it is absent",
            file=self.locate(path),
            kind="not-supported",
            fix="Write with one process at a time.",
        )

    def place(self, path: str) -> str:
        """Return the URL of a file that requests go to."""
        return f"{self.target}/{path}" if path else self.target

    def key(self, path: str) -> str:
        """Return the key of a file below the store's URL. Raises `StorageError` for a folder."""
        key = "/".join(part for part in self.check_path(path).split("/") if part not in ("", "."))
        if not key:
            raise StorageError("this is a folder, a file was expected", file=self.url, kind="eisdir", fix=CHECK)
        return key

    @property
    def has_answered(self) -> bool:
        """Return whether the server has answered this process."""
        return self.host in _answered

    def note_version(self, key: str, version: str) -> None:
        """Pin the version of a file, unless another one is."""
        assert self._versions is not None
        self._versions.setdefault(key, version)

    def pin_files(self) -> None:
        if self._versions is None:
            self._versions = {}

    def answered(self) -> None:
        """Note that the server answered."""
        _answered.add(self.host)

    def forget(self, key: str) -> None:
        """Forget the version of a file that this store writes or deletes."""
        self._entries.pop(key, None)
        if self._versions is not None:
            self._versions.pop(key, None)

    def check_version(self, key: str, version: str) -> None:
        """Raise `DataError` if a pinned file has another version than before."""
        if self._versions is not None and self._versions.setdefault(key, version) != version:
            raise replaced(f"{self.url}/{key}")

    @contextlib.contextmanager
    def asking(self, path: str) -> Iterator[None]:
        """Convert the errors of a request; every request runs inside this block."""
        guard_against_fork(self.url)
        try:
            yield
            _answered.add(self.host)
        except FeedmillError:
            raise
        except BaseException as error:
            translated = self.translate(error, self.locate(path))
            if translated is None:
                raise
            raise translated from None

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        self.pin_files()
        keys = [self.key(path) for path in paths]
        missing = [key for key in dict.fromkeys(keys) if key not in self._entries]
        if len(missing) > FEW and self.lists:
            self._list_entries(missing)
            missing = [key for key in missing if key not in self._entries]
        futures = [fetcher().run(0, self._find, key) for key in missing]
        for key, future in zip(missing, futures, strict=True):
            self._entries[key] = future.result()
        return [self._entries[key] for key in keys]

    def _find(self, key: str) -> Entry | None:
        try:
            entry = self.stat(key)
        except NotFound:
            return None
        self.note_version(key, entry.version)
        return entry

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return self.read_many([(path, offsets, lengths)])[0]

    def read_many(self, files: Sequence[Ranges]) -> list[list[bytes]]:
        return [[bytes(view) for view in views] for views in self._views(files)]

    def fill(self, files: Sequence[Ranges], buffer: memoryview) -> None:
        at = 0
        for views in self._views(files):
            for view in views:
                buffer[at : at + len(view)] = view
                at += len(view)

    def on_disk(self, files: Sequence[Ranges]) -> OnDisk | None:
        found: list[Segment] = []
        for path, offsets, lengths in files:
            for segment in self.held.find(self.key(path), offsets, lengths):
                if segment is None or not segment.paged:
                    return None
                found.append(segment)
        for segment in found:
            segment.start()
        return on_disk(found) if found else None

    def _views(self, files: Sequence[Ranges]) -> list[list[memoryview]]:
        """Return the bytes of ranges: those that were read ahead, and the others with requests of their own."""
        found: list[list[memoryview]] = [[_EMPTY] * len(offsets) for _, offsets, _ in files]
        waiting: list[tuple[int, int, int, int, Segment]] = []
        missing: list[list[int]] = [[] for _ in files]
        for number, (path, offsets, lengths) in enumerate(files):
            for place, segment in enumerate(self.held.find(self.key(path), offsets, lengths)):
                if segment is None:
                    missing[number].append(place)
                    continue
                begin, end = offsets[place], offsets[place] + lengths[place]
                if segment.data is None:
                    waiting.append((number, place, begin, end, segment))
                else:
                    found[number][place] = segment.data[begin - segment.begin : end - segment.begin]
        for *_, segment in waiting:
            segment.start()
        for number, place, begin, end, segment in waiting:
            view = segment.view(begin, end)
            if view is None:
                missing[number].append(place)
            else:
                found[number][place] = view
        self._ask(files, missing, found)
        return found

    def _ask(self, files: Sequence[Ranges], missing: Sequence[list[int]], found: list[list[memoryview]]) -> None:
        """Request the ranges at the places `missing` of each file, and put them in `found`."""
        rows = [
            (number, place, offsets[place], lengths[place])
            for number, ((_, offsets, lengths), places) in enumerate(zip(files, missing, strict=True))
            for place in places
        ]
        paths = [path for path, _, _ in files]
        for number, _, offset, length in rows:
            if offset >= 0 and length >= 0 and 1 << OFFSET_BITS <= offset + length < 1 << 63:
                raise self._beyond_end(*files[number])
        ranges = [(number, offset, length) for number, _, offset, length in rows]
        requests, parts = merged([self.locate(path) for path in paths], ranges, fetcher().gap())
        asked = {number for number, _, _ in requests}
        for number, (path, _, lengths) in enumerate(files):
            if number not in asked and not any(lengths):
                self.stat(path)  # nothing is requested of it, and it may not exist
        views = self._fetch([(paths[owner], begin, end) for owner, begin, end in requests], files)
        for (number, place, offset, length), (part, start) in zip(rows, parts, strict=True):
            view = views[part][start : start + length] if length else _EMPTY
            if len(view) != length:
                raise too_short(self.locate(paths[number]), int(offset), int(length), len(view))
            found[number][place] = view

    def _fetch(self, requests: Sequence[tuple[str, int, int]], files: Sequence[Ranges]) -> list[memoryview]:
        """Return the bytes of requests; `files` are the ranges that they are for."""
        if not requests:
            return []
        with self.asking(requests[0][0]):
            try:
                blocks = fetcher().fetch(self, [(self.key(path), begin, end) for path, begin, end in requests])
                return [memoryview(block) for block in blocks]
            except Failed as failed:
                beyond = requests[failed.number][0]
                with self.asking(beyond):  # which names this file
                    if not self.is_beyond_end(failed.error):
                        raise failed.error from None
        raise self._beyond_end(*next(ranges for ranges in files if ranges[0] == beyond))

    def _beyond_end(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> FeedmillError:
        size = self.stat(path).size
        for offset, length in zip(offsets, lengths, strict=True):
            if offset + length > size:
                return too_short(self.locate(path), int(offset), int(length), max(0, int(size - offset)))
        return StorageError("the server refused a range that the file has", file=self.locate(path), fix=AGAIN)

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        name = self.key(path).rpartition("/")[2]
        with spool_folder() as folder:
            copy = folder / name
            try:
                with copy.open("wb") as f:
                    self.download(path, f)
            except OSError as error:
                raise spool_error(error) from None
            yield copy

    @contextlib.contextmanager
    def build(self, path: str) -> Iterator[Path]:
        name = self.key(path).rpartition("/")[2]
        with spool_folder() as folder:
            file = folder / name
            file.touch()
            yield file
            self.put_file(path, file)

    @contextlib.contextmanager
    def write_spooled(self, path: str) -> Iterator[BinaryIO]:
        """Write a file of this machine's temporary folder, which is put at the end; see `write`."""
        name = self.key(path).rpartition("/")[2]
        with spool_folder() as folder:
            file = folder / name
            try:
                with file.open("wb") as spool:
                    yield spool
            except OSError as error:
                if is_disk_error(error):
                    raise spool_error(error) from None
                raise  # the error comes from the caller's own code
            self.put_file(path, file)

    @abstractmethod
    def put_file(self, path: str, file: Path) -> None:
        """Put a file of this machine."""


@contextlib.contextmanager
def spool_folder() -> Iterator[Path]:
    """Make a folder in this machine's temporary folder for the time of a block."""
    try:
        folder = tempfile.mkdtemp(prefix="feedmill-")
    except OSError as error:
        raise spool_error(error) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spool_error(error: OSError) -> FeedmillError:
    """Return the error for a failure of the local disk rather than the store."""
    translated = storage_error(error, tempfile.gettempdir())
    if translated.kind in ("enospc", "edquot"):
        translated.fix = "Free some space there, or set TMPDIR to a folder on a larger disk."
    return translated


def is_listed(below: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether `Store.files` yields a file at this path below the listed folder."""
    folder = below.rpartition("/")[0]
    hidden = folder.startswith(".") or "/." in folder
    return not hidden and (not suffixes or below.endswith(suffixes))


def guard_against_fork(url: str) -> None:
    """Raise `StorageError` in a child that was forked after requests were made."""
    if _process["forked"]:
        raise StorageError(
            "this process was forked after its parent had read from an object store: requests would hang",
            file=url,
            kind="forked",
            fix="Start processes with 'spawn' or 'forkserver' (for a torch DataLoader: multiprocessing_context=...).",
        )
    if not _process["requested"]:
        _process["requested"] = True
        os.register_at_fork(after_in_child=lambda: _process.update(forked=True))
