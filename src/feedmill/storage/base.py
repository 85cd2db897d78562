"""The class `Store`, which all storage implements, and the errors that stores have in common.

A store is one folder or one bucket prefix. Paths in it are relative, use ``/``, and cannot leave it. Reads are in bulk:
`read_ranges` takes many ranges of one file and merges neighbors into one request. A file appears under its final name
only when it is complete.

Errors of the operating system as errors with a fix.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.storage.limits import DESCRIPTION, refuse_large
from feedmill.storage.reasons import copy_again

if TYPE_CHECKING:  # commands load their tokenizer before numpy
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


class Entry(NamedTuple):
    """One file of a store: relative path, size in bytes, and a version that changes when the content does."""

    path: str
    size: int
    version: str


class Descriptor(Protocol):
    """A file that stays open as long as this object is referenced.

    Attributes:
        fd: its descriptor.
    """

    fd: int


Ranges = tuple[str, Sequence[int], Sequence[int]]
"""Ranges of a file: its path, their offsets, and their lengths in bytes."""


class OnDisk(NamedTuple):
    """Ranges of files in a cache on this machine's disk, cut into parts that lie in one file each.

    Attributes:
        descriptors, offsets, lengths: int64[m], a file, and where the part lies in it.
        rows: int64[m], which of the ranges each part belongs to.
        starts: int64[m], offset of the part in its range; int64[1] if all are 0.
        owners: keep the descriptors open.
    """

    descriptors: Int64s
    offsets: Int64s
    lengths: Int64s
    rows: Int64s
    starts: Int64s
    owners: Sequence[object]


class InMemory(NamedTuple):
    """Ranges of files in memory.

    Attributes:
        addresses: int64[n], address of each range.
        owners: keep the memory.
    """

    addresses: Int64s
    owners: Sequence[object]


def has_suffix(name: str, suffixes: tuple[str, ...], hidden: bool) -> bool:
    """Return whether `Store.files` yields a file of a listed folder, by its name."""
    return not suffixes or (name.endswith(suffixes) and (hidden or not name.startswith(".") or name in suffixes))


class Store(ABC):
    """A folder of files, local or remote.

    Attributes:
        url: path or URL of the folder, without a slash at the end.
    """

    url: str

    @abstractmethod
    def files(self, prefix: str = "", *, suffixes: Sequence[str] = (), hidden: bool = False) -> Iterator[Entry]:
        """Yield every file below a folder, sorted by path.

        Skips files in folders that begin with a dot, unless `prefix` is such a folder, and files still being written.
        With suffixes, it also skips files whose own names begin with a dot, as the shell and other readers do: they are
        what programs left that were killed, or what macOS has written.

        Args:
            prefix: the folder; by default the whole store.
            suffixes: suffixes, or whole names, of the files to yield; empty for all.
            hidden: also yield the files in folders that begin with a dot, and such files.

        Raises:
            NotFound: the folder does not exist.
        """

    @abstractmethod
    def stat(self, path: str) -> Entry:
        """Return path, size and version of one file. Raises `NotFound`."""

    @abstractmethod
    def is_folder(self, path: str = "") -> bool:
        """Return whether a folder exists, by default the whole store. Object stores have only folders with files."""

    @abstractmethod
    def modified(self, path: str) -> float:
        """Return the time at which a file was last changed, in seconds since 1970. Raises `NotFound`."""

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        """Return the entries of files; None for missing files.

        A remote store makes few requests, and pins these versions; see `pin_files`.
        """
        entries: list[Entry | None] = []
        for path in paths:
            try:
                entries.append(self.stat(path))
            except NotFound:
                entries.append(None)
        return entries

    def preload(self, paths: Sequence[str], heads: Sequence[str] = ()) -> None:  # noqa: B027
        """Read small files that will be needed soon, in one round trip instead of one for each file.

        Until ``preload(())``, a remote store answers `stat`, `exists` and `read` for them from memory, for missing
        files, too; of large files and of `heads` it keeps the beginning. It raises nothing: a file whose request
        failed is requested when it is needed.
        """

    @abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file.

        Args:
            offset: first byte.
            length: number of bytes; None for all up to the end.

        Raises:
            NotFound: the file does not exist.
            DataError: the file is too short for the range.
            StorageError: the file cannot be read.
        """

    def read_small(self, path: str, most: int = DESCRIPTION) -> bytes:
        """Return all bytes of a file that describes data: a card, settings, a list of shards.

        What comes with data of others is read into memory only up to a limit.

        Args:
            most: largest size in bytes.

        Raises:
            DataError: the file is larger (kind ``too-large``).
            NotFound, StorageError: as `read`.
        """
        refuse_large(self.stat(path).size, self.locate(path), most)
        return self.read(path)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """Fill a writable buffer with the bytes at `offset`. Raises as `read`.

        Reading a file through one buffer is much faster than allocating new memory for each chunk.
        """
        buffer[:] = self.read(path, offset, len(buffer))

    @abstractmethod
    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Return many ranges of one file, in the given order; neighbors are fetched together. Raises as `read`."""

    def read_many(self, files: Sequence[Ranges]) -> list[list[bytes]]:
        """Return ranges of several files. A remote store fetches all of them at once. Raises as `read`."""
        return [self.read_ranges(*ranges) for ranges in files]

    def fill(self, files: Sequence[Ranges], buffer: memoryview) -> None:
        """Read ranges of several files into a buffer of their total size, without gaps. Raises as `read`."""
        position = 0
        for blocks in self.read_many(files):
            for block in blocks:
                buffer[position : position + len(block)] = block
                position += len(block)

    def fetched(
        self,
        paths: Sequence[str],  # noqa: ARG002
        files: Int64s,  # noqa: ARG002
        offsets: Int64s,  # noqa: ARG002
        lengths: Int64s,  # noqa: ARG002
    ) -> OnDisk | InMemory | None:
        """Return where ranges lie that were read ahead: in the cache on disk or in memory. None if one of them is not.

        Waits for ranges that are being fetched.

        Args:
            paths: paths of files: the same object at each call, because what is known about them is kept.
            files, offsets, lengths: int64[n], number of each range's file in `paths`, its offset and its length.
        """
        return None

    def any_fetched(
        self,
        path: str,  # noqa: ARG002
        offsets: Sequence[int],  # noqa: ARG002
        length: int,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> tuple[int, bytes | memoryview] | None:
        """Return the number and the bytes of one of several ranges of a file that was read ahead; None if none was.

        Makes no request.

        Args:
            seconds: time to wait for a range that is being fetched, unless another one is there.
        """
        return None

    def holds_any(self, path: str, offsets: Sequence[int], length: int) -> bool:  # noqa: ARG002
        """Return whether one of several ranges of a file was read ahead or is being fetched."""
        return False

    @abstractmethod
    def below(self, folder: str) -> Store:
        """Return the store for a subfolder, which need not exist."""

    def pin_files(self) -> None:  # noqa: B027
        """From now on, reject a file that another program replaces or rewrites after this store first opened it.

        Readers that have an index of the files call this. Reading such a file raises `DataError` of kind ``changed``,
        unless its old descriptor is still open. Local files that only grew are accepted.
        """

    def descriptors(self, paths: Sequence[str]) -> Sequence[Descriptor] | None:  # noqa: ARG002
        """Return open files for reading by system calls; None if the store is not local. Raises `NotFound`."""
        return None

    @abstractmethod
    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing. It appears under its name only if the block ends without an error."""

    @abstractmethod
    def build(self, path: str) -> AbstractContextManager[Path]:
        """Return a path on this machine at which a library can write a file.

        The file is published as `path` if the block ends without an error, and removed otherwise.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete one file, if it exists."""

    @abstractmethod
    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        """Return a path on this machine at which a file can be mapped, or opened by a library.

        This is the file itself if the store is local, else a temporary copy, which is removed when the block ends.
        """

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Return whether the store is a folder of this machine."""

    def locate(self, path: str) -> str:
        """Return the full path or URL of a file, as shown to users."""
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def exists(self, path: str) -> bool:
        """Return whether the file exists."""
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a whole file atomically."""
        with self.write(path) as f:
            f.write(data)

    @abstractmethod
    def put_new(self, path: str, data: bytes) -> bool:
        """Write a whole file unless its name is taken, in one atomic step; return whether it was written.

        Of several processes that write the same name at once, exactly one gets True.

        Raises:
            StorageError: it cannot be written; of kind ``unsupported`` if the store has no such step.
        """

    def write_together(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write small files one after another, each atomically; all are on the disk when this returns."""
        for path, data in files:
            self.write_bytes(path, data)

    def write_note(self, path: str, data: bytes) -> None:
        """Write one small file that records finished work, without syncing it.

        After a power failure the file may be lost, and the work is repeated. That costs less than waiting for the disk.
        """
        self.write_bytes(path, data)

    def check_path(self, path: str) -> str:
        """Return a path; raise `ConfigError` if it would leave the store."""
        refuse_nul(path, self.url)
        if path.startswith("/") or ".." in path.split("/"):
            raise ConfigError(
                f"the path {path!r} leaves its folder",
                file=self.url,
                kind="unsafe-name",
                fix="Use a path relative to the dataset, without '..'.",
            )
        return path


def refuse_nul(path: str, file: str | None = None) -> None:
    """Raise `ConfigError` for a path or URL with a NUL, for which system calls would raise a `ValueError`."""
    if "\0" in path:
        raise ConfigError(
            f"the path {path!r} has a NUL character, which file names cannot contain",
            file=file,
            kind="bad-url",
            fix="Remove it.",
        )


def refuse_non_utf8(*names: str) -> None:
    """Raise `ConfigError` if a name is not valid UTF-8, because journals and outputs are JSON."""
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


def too_short(file: str, offset: int, expected: int, available: int) -> FeedmillError:
    """Return the error for a range that ends after the end of the file.

    Args:
        file: path or URL, for the message.
        offset: first byte of the range.
        expected: bytes of the range.
        available: bytes of the file from `offset` on.
    """
    return DataError(
        f"the file is truncated (expected {expected} bytes here, found {available})",
        file=file,
        offset=offset,
        kind="truncated",
        fix="The file changed after it was indexed, or is incomplete. "
        + copy_again()
        + " Then run 'feedmill check' and 'feedmill prepare'.",
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
    """Return the error for a range with a negative offset or length, or one beyond the largest file."""
    return DataError(
        f"invalid range: {length} bytes at offset {offset}",
        file=file,
        kind="bad-data",
        fix="The index that contains this range is corrupt: run 'feedmill prepare' again.",
    )


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE}


def storage_error(error: OSError, file: str | None = None) -> FeedmillError:
    """Convert an `OSError` to an error with a fix.

    Args:
        file: path for the message; None for the file name in the `OSError`.
    """
    if file is None and isinstance(error.filename, str | bytes | os.PathLike):
        file = os.fsdecode(error.filename)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound("there is no such file or folder", file=file, fix="Check the path.")
    reasons = {
        errno.EACCES: ("permission denied", "Change its permissions or run as a user who has access."),
        errno.EPERM: ("permission denied", "Change its permissions or run as a user who has access."),
        errno.EROFS: ("the file system is read-only", "Write to another folder or mount it writable."),
        errno.ENOSPC: ("the disk is full", "Free disk space and run the same command again; finished work is kept."),
        errno.EDQUOT: ("the disk quota is used up", "Free disk space and run the same command again."),
        errno.ELOOP: ("its symbolic links form a loop", "Remove the link that points back to itself."),
        errno.EISDIR: ("this is a folder, a file was expected", "Check the path."),
        errno.EMFILE: ("too many files are open", "Raise the limit with 'ulimit -n'."),
        errno.ENFILE: ("too many files are open on this machine", "Stop other programs, or raise the system's limit."),
    }
    what, fix = reasons.get(error.errno or 0, (error.strerror or str(error), "Check the disk and the path."))
    return StorageError(what, file=file, fix=fix, kind=errno.errorcode.get(error.errno or 0, "storage").lower())


def is_disk_error(error: OSError) -> bool:
    """Return whether an error comes from writing to an open file, as on a full disk."""
    return error.filename is None and error.errno in _DISK_ERRORS  # errors of opening have a file name


def is_about(error: OSError, *paths: str) -> bool:
    """Return whether the file name in an error is one of the paths."""
    return isinstance(error.filename, str | os.PathLike) and os.fspath(error.filename) in paths
