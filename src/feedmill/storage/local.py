"""The local file system as a `Store`."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Entry, Store, too_short

TEMPORARY_SUFFIX = ".feedmill-tmp"
_OPEN_FILES = 256


def storage_error(error: OSError, file: str) -> FeedmillError:
    """The operating system's refusal as an error that says what to do."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound("there is no such file or folder", file=file, fix="Check the path.")
    reasons = {
        errno.EACCES: ("permission denied", "Change its permissions or run as a user who may use it."),
        errno.EPERM: ("permission denied", "Change its permissions or run as a user who may use it."),
        errno.EROFS: ("the file system is read-only", "Write to another folder or mount it writable."),
        errno.ENOSPC: ("the disk is full", "Free some space and run the same command again; finished work is kept."),
        errno.EDQUOT: ("the disk quota is used up", "Free some space and run the same command again."),
        errno.EISDIR: ("this is a folder, a file was expected", "Check the path."),
        errno.EMFILE: ("too many files are open", "Raise the limit with 'ulimit -n'."),
    }
    what, fix = reasons.get(error.errno or 0, (error.strerror or str(error), "Check the disk and the path."))
    return StorageError(what, file=file, fix=fix, kind=errno.errorcode.get(error.errno or 0, "storage").lower())


class _File:
    """An open descriptor that closes itself when the cache and every reader have let go of it."""

    __slots__ = ("fd", "size")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.size = os.fstat(self.fd).st_size

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.fd)


class LocalStore(Store):
    """A folder on this machine. Reads use `pread` on descriptors that stay open, so threads need no lock."""

    is_local = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.url = self.root.rstrip("/") or "/"
        self._open = lru_cache(maxsize=_OPEN_FILES)(_File)

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (self.root,)

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def _full(self, path: str) -> str:
        return os.path.join(self.root, self.check_path(path)) if path else self.root

    def _file(self, path: str) -> _File:
        full = self._full(path)
        try:
            return self._open(full)
        except OSError as error:
            raise storage_error(error, full) from None

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = ()) -> Iterator[Entry]:
        top = self._full(prefix.rstrip("/"))
        if not os.path.isdir(top):
            raise NotFound("there is no such folder", file=top, fix="Check the path.")
        wanted = tuple(suffixes)
        found: list[Entry] = []
        folders = [top]
        try:
            while folders:
                with os.scandir(folders.pop()) as entries:
                    for item in entries:
                        if item.is_dir():
                            if not item.name.startswith("."):
                                folders.append(item.path)
                        elif not wanted or item.name.endswith(wanted):
                            found.append(_entry(os.path.relpath(item.path, self.root), item.stat()))
        except OSError as error:
            raise storage_error(error, error.filename or top) from None
        found.sort(key=lambda entry: entry.path)
        yield from found

    def stat(self, path: str) -> Entry:
        full = self._full(path)
        try:
            status = os.stat(full)
        except OSError as error:
            raise storage_error(error, full) from None
        return _entry(path, status)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is None and offset == 0:
            full = self._full(path)
            try:
                return Path(full).read_bytes()
            except OSError as error:
                raise storage_error(error, full) from None
        file = self._file(path)
        if length is None:
            length = max(0, file.size - offset)
        return self._pread(file, path, offset, length)

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        file = self._file(path)
        return [self._pread(file, path, o, n) for o, n in zip(offsets, lengths, strict=True)]

    def _pread(self, file: _File, path: str, offset: int, length: int) -> bytes:
        try:
            data = os.pread(file.fd, length, offset)
            while len(data) < length:  # a single call gives at most 2 GiB
                more = os.pread(file.fd, length - len(data), offset + len(data))
                if not more:
                    raise too_short(self._full(path), offset, length, len(data))
                data += more
        except OSError as error:
            raise storage_error(error, self._full(path)) from None
        return data

    @contextlib.contextmanager
    def build(self, path: str) -> Iterator[Path]:
        full = self._full(path)
        folder, name = os.path.split(full)
        try:
            os.makedirs(folder, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=TEMPORARY_SUFFIX, dir=folder)
            os.close(handle)
        except OSError as error:
            raise storage_error(error, full) from None
        try:
            yield Path(temporary)
            publish(temporary, full)
        except OSError as error:
            raise storage_error(error, full) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # gone already when the rename succeeded

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        with self.build(path) as temporary, open(temporary, "wb") as f:
            yield f

    def delete(self, path: str) -> None:
        full = self._full(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, full) from None

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        full = self._full(path)
        if not os.path.exists(full):
            raise NotFound("there is no such file", file=full, fix="Check the path.")
        yield Path(full)


def publish(temporary: str, final: str) -> None:
    """Sync a finished temporary file, give it its final name, and make the rename itself durable.

    The mode is what a plain `open` would have given, not the private mode of temporary files.
    """
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)
    _sync(temporary)
    os.replace(temporary, final)
    _sync(os.path.dirname(final))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _entry(path: str, status: os.stat_result) -> Entry:
    return Entry(path.replace(os.sep, "/"), status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}")
