"""The `Store` contract: where bytes live.

A store is one folder or one bucket prefix. Paths inside it are relative, with ``/`` between their parts, and never
leave it. Reads are in bulk: `read_ranges` takes many ranges of one file and merges neighbors into one request.
Files appear under their final name only when complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a store: relative path, size in bytes, and a version that changes when the content does."""

    path: str
    size: int
    version: str


class Descriptor(Protocol):
    """A file that is open for as long as this is held."""

    fd: int


Int64s = npt.NDArray[np.int64]

Ranges = tuple[str, Sequence[int], Sequence[int]]
"""Ranges of a file: its path, and their offsets and lengths in bytes."""


class OnDisk(NamedTuple):
    """Ranges of files in a cache on this machine's disk.

    Attributes:
        descriptors: int64[n], descriptor of a file that has each range, at its own offset.
        unchanged: returns whether nothing was evicted since: what was read from the descriptors is right.
        owners: keep the descriptors open.
    """

    descriptors: Int64s
    unchanged: Callable[[], bool]
    owners: Sequence[object]


class InMemory(NamedTuple):
    """Ranges of files in memory.

    Attributes:
        addresses: int64[n], address of each range.
        owners: keep the memory.
    """

    addresses: Int64s
    owners: Sequence[object]


class Store(ABC):
    """A folder of files, local or remote.

    Attributes:
        url: the store's own location, without a slash at the end.
    """

    url: str

    @abstractmethod
    def files(self, prefix: str = "", *, suffixes: Sequence[str] = ()) -> Iterator[Entry]:
        """Yield every file below `prefix` (a folder), sorted by path. Raises `NotFound` if the folder does not exist.

        Skips files in folders that begin with a dot, unless `prefix` is such a folder, and files still being written.
        """

    @abstractmethod
    def stat(self, path: str) -> Entry:
        """Return the size and version of one file. Raises `NotFound`."""

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        """Return size and version of files, None for missing ones. A remote store makes few requests, and pins
        these versions, see `pin_files`."""
        found: list[Entry | None] = []
        for path in paths:
            try:
                found.append(self.stat(path))
            except NotFound:
                found.append(None)
        return found

    def preload(self, paths: Sequence[str]) -> None:  # noqa: B027
        """Read small files that are about to be looked at, or found absent, in one round trip instead of one each.

        A remote store answers `stat`, `exists` and `read` of them from memory until the next call; ``preload(())``
        ends that. It raises nothing: what could not be read is requested again when it is looked at.
        """

    @abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `offset`, or up to the end. Raises `NotFound`, and `DataError` if the file is too
        short for the range."""

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """Fill a writable buffer with the bytes at `offset`. Raises as `read`.

        Reading a file through one buffer is much faster than allocating new memory for each chunk.
        """
        buffer[:] = self.read(path, offset, len(buffer))

    @abstractmethod
    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Return many ranges of one file, in the given order; neighbors are fetched together."""

    def read_many(self, files: Sequence[Ranges]) -> list[list[bytes]]:
        """Return ranges of several files; a remote store fetches all of them at once. Raises as `read`."""
        return [self.read_ranges(*ranges) for ranges in files]

    def fill(self, files: Sequence[Ranges], buffer: memoryview) -> None:
        """Read ranges of several files, one behind the other, into a buffer of their size. Raises as `read`."""
        at = 0
        for blocks in self.read_many(files):
            for block in blocks:
                buffer[at : at + len(block)] = block
                at += len(block)

    def fetched(self, files: Sequence[Ranges]) -> OnDisk | InMemory | None:  # noqa: ARG002
        """Return where ranges of several files lie that were read ahead; None unless all were, to one kind of place.

        Waits for those that are being fetched.
        """
        return None

    @abstractmethod
    def below(self, folder: str) -> Store:
        """Return a folder of this store, which may be absent, as a store of its own."""

    def pin_files(self) -> None:  # noqa: B027
        """Reject, from now on, a file that another program replaces or rewrites after this store first opened it.

        Reads of it raise `DataError` of kind ``changed``, unless its old descriptor is still open; files that only grew
        are accepted. For readers that have an index of the files. Object stores have no state and ignore this.
        """

    def descriptors(self, paths: Sequence[str]) -> Sequence[Descriptor] | None:  # noqa: ARG002
        """Return open files for reading by system calls; None if the store is not local. Raises `NotFound`."""
        return None

    @abstractmethod
    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file to write. It appears under its name only if the block ends without an error."""

    @abstractmethod
    def build(self, path: str) -> AbstractContextManager[Path]:
        """Return a path on this machine where a library may write the file; it is published as `path` if the block ends
        without an error, and removed otherwise."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove one file, if it exists."""

    @abstractmethod
    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        """Return the file as a path on this machine, to map or open with a library: itself if the store is local,
        otherwise a temporary copy, removed when the block ends."""

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Return whether paths of this store are paths of this machine."""

    def locate(self, path: str) -> str:
        """Return the full path or URL of a file, as shown to people."""
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def exists(self, path: str) -> bool:
        """Return whether the file exists."""
        try:
            self.stat(path)
        except LookupError:
            return False
        return True

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a whole file atomically."""
        with self.write(path) as f:
            f.write(data)

    def write_note(self, path: str, data: bytes) -> None:
        """Write one small file that records finished work, without syncing it.

        After a power failure the file may be lost and the work is repeated, which costs less than waiting for the disk.
        """
        self.write_bytes(path, data)

    def check_path(self, path: str) -> str:
        """Raise an error for a path that would leave the store; return the path otherwise."""
        refuse_nul(path, self.url)
        if path.startswith("/") or ".." in path.split("/"):
            raise ConfigError(
                f"the path {path!r} leaves its folder",
                file=self.url,
                kind="path-escapes",
                fix="Use a path relative to the dataset, without '..'.",
            )
        return path


def refuse_nul(path: str, file: str | None = None) -> None:
    """Raise `ConfigError` for a path or URL with a NUL, for which system calls would raise a ValueError."""
    if "\0" in path:
        raise ConfigError(
            f"the path {path!r} has a NUL character, which file names cannot contain",
            file=file,
            kind="bad-path",
            fix="Remove it.",
        )


def refuse_odd_names(*names: str) -> None:
    """Raise `ConfigError` for the first name that is not UTF-8: journals and outputs are JSON."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                "the name is not valid UTF-8, and cannot be stored in journals and indexes",
                file=name.encode("utf-8", "backslashreplace").decode(),
                kind="bad-name",
                fix="Rename it.",
            ) from None


def too_short(file: str, offset: int, wanted: int, found: int) -> FeedmillError:
    """Return the error for a range that ends after the file does."""
    return DataError(
        f"the file is truncated (expected {wanted} bytes here, found {found})",
        file=file,
        offset=offset,
        kind="truncated",
        fix="The file changed after it was indexed, or was copied incompletely: copy it again, then run"
        " 'feedmill check' and 'feedmill prepare'.",
    )


def changed(file: str) -> FeedmillError:
    """Return the error for a file that was replaced or rewritten since it was first read."""
    return DataError(
        "the file changed while the dataset was open: its size or modification time differs",
        file=file,
        kind="changed",
        fix="Open the dataset again once no process writes to it.",
    )


def bad_range(file: str, offset: int, length: int) -> FeedmillError:
    """Return the error for a range that begins before the file, or has a negative length."""
    return DataError(
        f"invalid range: {length} bytes at offset {offset}",
        file=file,
        kind="bad-range",
        fix="The index that contains this range is corrupt: run 'feedmill prepare' again.",
    )
