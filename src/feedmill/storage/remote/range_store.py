"""The base of all remote stores: merge ranges, request them together, and use what was read ahead.

A subclass makes one request for one range (`RangeStore.request_once`) and classifies its errors (`reaction_to`,
`translate`). `fetching/fetch.py` decides about retries, `fetching/read_ahead.py` about what is requested ahead.

The threads and connections do not survive `fork`: a child would hang, and its parent with it. Requests in a forked
child therefore raise an error. Processes started by "spawn" or "forkserver" (as `feedmill.jobs` does) are not affected.

A store pins the versions of the files that it has read (`PinningStore`): a file that is replaced while a dataset is
open is an error.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import (
    Entry,
    InMemory,
    OnDisk,
    Ranges,
    has_suffix,
    is_disk_error,
    refuse_nul,
    too_short,
)
from feedmill.storage.cache.reading import on_disk
from feedmill.storage.fetching.fetch import Failed, fetcher, replaced, result_of
from feedmill.storage.fetching.ranges import OFFSET_BITS, Int64s, merged
from feedmill.storage.fetching.segments import HeldSegments, Segment, SegmentStore
from feedmill.storage.folders import spool_error, spool_folder
from feedmill.storage.remote.errors import AGAIN, CHECK
from feedmill.storage.remote.forking import guard_against_fork

_EMPTY = memoryview(b"")
_answered: set[str] = set()
"""Buckets and servers that have answered this process."""
SINGLE_LOOKUPS = 4
"""Up to this number of files, entries are requested one by one; more are listed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A small object as it was read or put.

    Attributes:
        data: its content.
        version: what identifies this version in a conditional request; empty if the store has no such requests.
        modified: time at which it was put, in seconds by the server's clock; None if unknown.
    """

    data: bytes
    version: Mapping[str, str] = field(default_factory=dict)
    modified: float | None = None


class PinningStore(SegmentStore):
    """A remote store that knows which version of each file it has read. Base class of `RangeStore`."""

    def __init__(self) -> None:
        self._versions: dict[str, str] | None = None
        self._entries: dict[str, Entry | None] = {}

    def pin_files(self) -> None:
        if self._versions is None:
            self._versions = {}

    def pin_version(self, key: str, version: str) -> None:
        """Pin the version of a file unless one is pinned already."""
        assert self._versions is not None
        self._versions.setdefault(key, version)

    def check_version(self, key: str, version: str) -> None:
        """Raise `DataError` if a pinned file has another version than before."""
        if self._versions is not None and self._versions.setdefault(key, version) != version:
            raise replaced(f"{self.url}/{key}")

    def forget(self, key: str) -> None:
        """Unpin a file that this store writes or deletes."""
        self._entries.pop(key, None)
        if self._versions is not None:
            self._versions.pop(key, None)

    def note_entry(self, entry: Entry) -> None:
        """Keep the entry of a pinned file that came with its bytes, so that `entries` makes no request for it."""
        if self._versions is not None and entry.path not in self._entries:
            self._entries[entry.path] = entry

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        self.pin_files()
        keys = [self.key(path) for path in paths]
        missing = [key for key in dict.fromkeys(keys) if key not in self._entries]
        if len(missing) > SINGLE_LOOKUPS and self.lists:
            self._list_entries(missing)
            missing = [key for key in missing if key not in self._entries]
        futures = [fetcher().run(0, self._look_up, key) for key in missing]
        for key, future in zip(missing, futures, strict=True):
            self._entries[key] = result_of(future)
        return [self._entries[key] for key in keys]

    def _look_up(self, key: str) -> Entry | None:
        """Return the entry of a file, with its version pinned; None if there is no such file."""
        try:
            entry = self.stat(key)
        except NotFound:
            return None
        self.pin_version(key, entry.version)
        return entry

    @property
    @abstractmethod
    def lists(self) -> bool:
        """Return whether the store can list its files."""

    @abstractmethod
    def _list_entries(self, keys: Sequence[str]) -> None:
        """Read the entries of files in one folder from listings, and pin their versions."""

    def key(self, path: str) -> str:
        """Return the key of a file below the store's URL. Raises `StorageError` for a folder."""
        key = "/".join(part for part in self.check_path(path).split("/") if part not in ("", "."))
        if not key:
            raise StorageError("this is a folder, a file was expected", file=self.url, kind="eisdir", fix=CHECK)
        return key


class RangeStore(PinningStore):
    """A store that answers requests for ranges of files.

    Args:
        url: as it is shown to users, and opened again in another process.
        target: the URL that requests go to, if it differs; see `feedmill.storage.remote.msc`.

    Raises:
        ConfigError: the URL has a NUL.
    """

    is_local = False

    def __init__(self, url: str, target: str | None = None) -> None:
        refuse_nul(url)
        super().__init__()
        self.url = url.rstrip("/")
        self.target = (url if target is None else target).rstrip("/")
        self.host = "/".join(self.target.split("/")[:3])
        self.held = HeldSegments()
        self.connection = 0
        self._renewing = threading.Lock()

    @abstractmethod
    def is_beyond_end(self, error: BaseException) -> bool:
        """Return whether a request failed because its range begins after the end of the file."""

    @abstractmethod
    def reconnect(self) -> None:
        """Connect again, with new credentials."""

    def renew(self, connection: int) -> None:
        with self._renewing:
            if connection == self.connection:
                self.reconnect()
                self.connection += 1

    @abstractmethod
    def download(self, path: str, file: BinaryIO) -> Entry:
        """Write a whole file, all of one version, into an open file; return the entry of that version."""

    @abstractmethod
    def abort_upload(self, url: str) -> bool:
        """Remove what a killed process left of an upload to this host; return False if some of it may be left.

        Args:
            url: as it was recorded (`feedmill.storage.remote.upload_records`).
        """

    @abstractmethod
    def abort_uploads(self) -> None:
        """Remove all unfinished uploads to this folder, which is about to be removed: a lost machine cannot do it."""

    def put_new(self, path: str, data: bytes) -> bool:  # noqa: ARG002
        raise StorageError(
            "the store does not support conditional writes",
            file=self.locate(path),
            kind="unsupported",
            fix="Write with one process at a time.",
        )

    def examine(self, path: str) -> Seen:
        """Return a small file with what identifies its version. Raises `NotFound` and `StorageError`."""
        return Seen(self.read(path))

    def put_over(self, path: str, data: bytes, seen: Seen) -> Seen | None:
        """Write one small file if it is still as `seen`, in one atomic request; return None otherwise.

        A store without conditional writes compares first, and then writes. Raises `StorageError`.
        """
        with contextlib.suppress(NotFound):
            if self.read(path) == seen.data:
                self.write_bytes(path, data)
                return self.examine(path)
        return None

    def request_url(self, path: str) -> str:
        """Return the URL that requests for a file go to."""
        return f"{self.target}/{path}" if path else self.target

    @property
    def has_answered(self) -> bool:
        """Return whether the server has answered this process."""
        return self.host in _answered

    def answered(self) -> None:
        """Record that the server answered; see `has_answered`."""
        _answered.add(self.host)

    @contextlib.contextmanager
    def requesting(self, path: str) -> Iterator[None]:
        """Translate the errors of requests in a block; every request runs in one."""
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

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return self.read_many([(path, offsets, lengths)])[0]

    def read_many(self, files: Sequence[Ranges]) -> list[list[bytes]]:
        return [[bytes(view) for view in views] for views in self._views(files)]

    def fill(self, files: Sequence[Ranges], buffer: memoryview) -> None:
        position = 0
        for views in self._views(files):
            for view in views:
                buffer[position : position + len(view)] = view
                position += len(view)

    def fetched(
        self, paths: Sequence[str], files: Int64s, offsets: Int64s, lengths: Int64s
    ) -> OnDisk | InMemory | None:
        located = self.held.locate(paths, self.key, files, offsets, lengths)
        if located is None:
            return None
        origins = located.origins()
        if origins is None:
            found = on_disk(located, offsets, lengths)
            if found is not None:
                return found
            segments, _ = located.segments()
            if any(segment.cacheable for segment in segments):
                return None
            for segment in segments:
                if segment.origin is None:
                    segment.start()
            origins = located.wait()
        return None if origins is None else InMemory(origins + offsets, [located.table])

    def any_fetched(
        self, path: str, offsets: Sequence[int], length: int, seconds: float
    ) -> tuple[int, bytes | memoryview] | None:
        found = enumerate(self.held.find(self.key(path), offsets, [length] * len(offsets)))
        held = [(number, segment) for number, segment in found if segment is not None]
        there = [(number, segment) for number, segment in held if segment.wait(0)]
        for number, segment in there or held[:1]:
            if segment.wait(seconds):
                view = segment.view(offsets[number], offsets[number] + length)
                if view is not None:
                    return number, view
        return None

    def holds_any(self, path: str, offsets: Sequence[int], length: int) -> bool:
        return any(self.held.find(self.key(path), offsets, [length] * len(offsets)))

    def _views(self, files: Sequence[Ranges]) -> list[list[memoryview]]:
        """Return the bytes of ranges, from segments that were read ahead and from new requests."""
        views: list[list[memoryview]] = [[_EMPTY] * len(offsets) for _, offsets, _ in files]
        waiting: list[tuple[int, int, int, int, Segment]] = []
        missing: list[list[int]] = [[] for _ in files]
        for number, (path, offsets, lengths) in enumerate(files):
            for range_number, segment in enumerate(self.held.find(self.key(path), offsets, lengths)):
                if segment is None:
                    missing[number].append(range_number)
                    continue
                begin, end = offsets[range_number], offsets[range_number] + lengths[range_number]
                if segment.data is None:
                    waiting.append((number, range_number, begin, end, segment))
                else:
                    views[number][range_number] = segment.data[begin - segment.begin : end - segment.begin]
        for *_, segment in waiting:
            segment.start()
        for number, range_number, begin, end, segment in waiting:
            view = segment.view(begin, end)
            if view is None:
                missing[number].append(range_number)
            else:
                views[number][range_number] = view
        self._request_missing(files, missing, views)
        return views

    def _request_missing(
        self, files: Sequence[Ranges], missing: Sequence[list[int]], views: list[list[memoryview]]
    ) -> None:
        """Request ranges that were not read ahead: for each file those with the numbers `missing`.

        Puts their bytes into `views`.
        """
        to_request = [
            (number, range_number, offsets[range_number], lengths[range_number])
            for number, ((_, offsets, lengths), range_numbers) in enumerate(zip(files, missing, strict=True))
            for range_number in range_numbers
        ]
        paths = [path for path, _, _ in files]
        for number, _, offset, length in to_request:
            if offset >= 0 and length >= 0 and 1 << OFFSET_BITS <= offset + length < 1 << 63:
                raise self._beyond_end(*files[number])
        ranges = [(number, offset, length) for number, _, offset, length in to_request]
        requests, positions = merged([self.locate(path) for path in paths], ranges, fetcher().gap())
        requested = {number for number, _, _ in requests}
        for number, (path, _, lengths) in enumerate(files):
            if number not in requested and not any(lengths):
                self.stat(path)  # raises `NotFound`: empty ranges make no request
        blocks = self._fetch([(paths[number], begin, end) for number, begin, end in requests], files)
        for (number, range_number, offset, length), (request, start) in zip(to_request, positions, strict=True):
            view = blocks[request][start : start + length] if length else _EMPTY
            if len(view) != length:
                raise too_short(self.locate(paths[number]), int(offset), int(length), len(view))
            views[number][range_number] = view

    def _fetch(self, requests: Sequence[tuple[str, int, int]], files: Sequence[Ranges]) -> list[memoryview]:
        """Return the bytes of requests (path, begin and end); `files` are the ranges that they are for."""
        if not requests:
            return []
        with self.requesting(requests[0][0]):
            try:
                blocks = fetcher().fetch(self, [(self.key(path), begin, end) for path, begin, end in requests])
                return [memoryview(block) for block in blocks]
            except Failed as failed:
                beyond = requests[failed.number][0]
                with self.requesting(beyond):  # again, so that the error has this file
                    if not self.is_beyond_end(failed.error):
                        raise failed.error from None
        raise self._beyond_end(*next(ranges for ranges in files if ranges[0] == beyond))

    def _beyond_end(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> FeedmillError:
        """Return the error for ranges of which one begins after the end of the file."""
        size = self.stat(path).size
        for offset, length in zip(offsets, lengths, strict=True):
            if offset + length > size:
                return too_short(self.locate(path), int(offset), int(length), max(0, int(size - offset)))
        return StorageError("the server rejected a range that lies within the file", file=self.locate(path), fix=AGAIN)

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
        """Open a file in this machine's temporary folder for writing; it is uploaded when the block ends."""
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
        """Upload a file of this machine."""


def is_listed(below: str, suffixes: tuple[str, ...], hidden: bool) -> bool:
    """Return whether `Store.files` yields a file, by its path below the listed folder."""
    folder, _, name = below.rpartition("/")
    visible = hidden or not (folder.startswith(".") or "/." in folder)
    return visible and has_suffix(name, suffixes, hidden)
