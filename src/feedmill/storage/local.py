"""The local file system as a `Store`.

Descriptors stay open (`descriptors`), so a read of a known file is one system call. A store reads a file that another
process replaces as it was when this store first opened it, for as long as the descriptor is kept; a store made after
that reads the new file, and so does every store where this process replaced it. `stat`, `files` and the reading of
whole files always see the disk as it is. A store whose files are pinned refuses what changed since it first saw it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import shutil
import stat
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Entry, Store, bad_range, changed, refuse_nul, too_short
from feedmill.storage.descriptors import OpenFile, State, forget, open_regular, opened, refuse_special
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import (
    TEMPORARY_SUFFIX,
    look_again,
    make_folder,
    open_in_place,
    refuse_links,
    staged,
    sweep,
    sync,
)
from feedmill.storage.writeback import WriteBehind

_MOST_KNOWN = 4096
"""Number of opened paths from which on a store evicts those whose descriptors are closed."""
_PATIENCE = 3.0
_TRIES = 100
_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE}


def storage_error(error: OSError, file: str | None = None) -> FeedmillError:
    """Convert an `OSError` to an error with a fix; without `file`, it is about the file that the `OSError` names."""
    if file is None and isinstance(error.filename, str | bytes | os.PathLike):
        file = os.fsdecode(error.filename)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound("there is no such file or folder", file=file, fix="Check the path.")
    reasons = {
        errno.EACCES: ("permission denied", "Change its permissions or run as a user who may use it."),
        errno.EPERM: ("permission denied", "Change its permissions or run as a user who may use it."),
        errno.EROFS: ("the file system is read-only", "Write to another folder or mount it writable."),
        errno.ENOSPC: ("the disk is full", "Free some space and run the same command again; finished work is kept."),
        errno.EDQUOT: ("the disk quota is used up", "Free some space and run the same command again."),
        errno.ELOOP: ("its symbolic links form a loop", "Remove the link that points back to itself."),
        errno.EISDIR: ("this is a folder, a file was expected", "Check the path."),
        errno.EMFILE: ("too many files are open", "Raise the limit with 'ulimit -n'."),
        errno.ENFILE: ("too many files are open on this machine", "Stop other programs, or raise its limit."),
    }
    what, fix = reasons.get(error.errno or 0, (error.strerror or str(error), "Check the disk and the path."))
    return StorageError(what, file=file, fix=fix, kind=errno.errorcode.get(error.errno or 0, "storage").lower())


def is_disk_trouble(error: OSError) -> bool:
    """Return whether the error comes from writing to an open file; errors of opening have a file name."""
    return error.filename is None and error.errno in _DISK_TROUBLE


def _is_about(error: OSError, *paths: str) -> bool:
    """Return whether the error names one of the files, as text or as a `Path`."""
    return isinstance(error.filename, str | os.PathLike) and os.fspath(error.filename) in paths


class _Written(WriteBehind):
    """A raw file whose errors name the final file. Raises `StorageError`."""

    def __init__(self, temporary: Path, final: str) -> None:
        super().__init__(temporary, "w")
        self._final = final

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise storage_error(error, self._final) from None


_MOST_FILES, _MANY_FILES = 65_536, 4_096


@functools.lru_cache(maxsize=1)
def more_files() -> bool:
    """Raise this process's limit of open files to the system's maximum; call it before files are kept mapped.

    A map keeps a descriptor. Most systems allow a process 1,024 by default and many more on request, and a dataset may
    have thousands of files.

    Returns:
        Whether it may open thousands; if not, small files are read rather than mapped.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        return soft == resource.RLIM_INFINITY or soft >= _MANY_FILES
    return True


class LocalStore(Store):
    """A folder on this machine. Reads use `pread` on descriptors that stay open, so threads need no lock.

    Raises `ConfigError` if the path has a NUL.
    """

    is_local = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        refuse_nul(os.fspath(root))
        self.root = os.path.abspath(os.fspath(root))
        self.url = self.root
        self._prefix = self.root.rstrip("/") + "/"
        self._opened: dict[str, weakref.ref[OpenFile]] = {}
        self._pins: dict[str, State] | None = None

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (self.root,)

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def _full(self, path: str) -> str:
        return self._prefix + self.check_path(path) if path else self.root

    def _file(self, path: str) -> OpenFile:
        # Every read calls this; an opened path was already checked.
        known = self._opened.get(path)
        file = None if known is None else known()
        if file is not None and file.kept:
            return file
        full = self._full(path)
        try:
            file = opened(full)
        except OSError as error:
            raise storage_error(error, full) from None
        self._compare(path, file.state)
        if len(self._opened) > _MOST_KNOWN:
            self._opened = {path: kept for path, kept in list(self._opened.items()) if kept() is not None}
        self._opened[path] = weakref.ref(file)
        return file

    def pin_files(self) -> None:
        if self._pins is None:
            self._pins = {}

    def _compare(self, path: str, state: State) -> None:
        """Raise an error for a file of a pinned store that was replaced or rewritten."""
        if self._pins is None:
            return
        known = self._pins.setdefault(path, state)
        if known is not state and not state.continues(known):
            raise changed(self._full(path))

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = ()) -> Iterator[Entry]:
        folder = self.check_path(prefix).rstrip("/")
        top = self._full(folder)
        if not os.path.isdir(top):
            what = "this is a file, a folder was expected" if os.path.exists(top) else "there is no such folder"
            raise NotFound(what, file=top, fix="Check the path.")
        try:
            found = list(_walk(top, folder + "/" if folder else "", tuple(suffixes)))
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
        if self._pins is not None:
            self._pins.setdefault(path, State.of(status))
        return _entry(path, status)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is not None:
            return self._pread(self._file(path), path, offset, length)
        full = self._full(path)
        try:
            with open(open_regular(full), "rb", buffering=0) as f:
                if offset:
                    f.seek(offset)
                return f.readall()
        except OSError as error:
            raise storage_error(error, full) from None

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        file, wanted, found = self._file(path), len(buffer), 0
        try:
            while found < wanted:
                more = os.preadv(file.fd, [buffer[found:]], offset + found)
                if not more:
                    raise too_short(self._full(path), offset, wanted, found)
                found += more
        except (OSError, OverflowError) as error:
            raise self._refused(error, file, path, offset, wanted) from None

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        file = self._file(path)
        return [self._pread(file, path, o, n) for o, n in zip(offsets, lengths, strict=True)]

    def descriptors(self, paths: Sequence[str]) -> list[OpenFile]:
        return [self._file(path) for path in paths]

    def _pread(self, file: OpenFile, path: str, offset: int, length: int) -> bytes:
        try:
            data = os.pread(file.fd, length, offset)
            while len(data) < length:  # a single call gives at most 2 GiB
                more = os.pread(file.fd, length - len(data), offset + len(data))
                if not more:
                    raise too_short(self._full(path), offset, length, len(data))
                data += more
        except (OSError, OverflowError, MemoryError) as error:
            raise self._refused(error, file, path, offset, length) from None
        return data

    def _refused(self, error: Exception, file: OpenFile, path: str, offset: int, length: int) -> FeedmillError:
        """Return the error for a range that could not be read; a corrupt index may request impossible ranges."""
        full = self._full(path)
        if offset < 0 or length < 0:
            return bad_range(full, offset, length)
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            return storage_error(error, full)
        return too_short(full, offset, length, max(0, os.fstat(file.fd).st_size - offset))

    def writable(self, path: str) -> str:
        """Return the full path of a file or folder to write, rename or remove.

        Raises `StorageError` if a folder on the path is a link: a dataset may come with links in it.
        """
        full = self._full(path)
        refuse_links(os.path.dirname(full) if path else full, self.root)
        return full

    def below(self, folder: str) -> LocalStore:
        """Return a folder of this store, which may be absent, as a store of its own. Raises as `writable`."""
        full = self._full(folder)
        refuse_links(full, self.root)
        return LocalStore(full)

    def make_folder(self, folder: str = "") -> None:
        """Create a folder, durably. Raises `StorageError`."""
        full = self._full(folder)
        refuse_links(full, self.root)
        try:
            make_folder(full)
        except OSError as error:
            raise storage_error(error, full) from None

    def append(self, path: str) -> BinaryIO:
        """Open a file for appending in place; it is created if absent. Raises `StorageError`."""
        return os.fdopen(self._in_place(path, os.O_RDWR | os.O_APPEND), "ab")

    def lock(self, path: str, *, what: str, file: str, wait: bool = False, patience: float = 0.0) -> FileLock:
        """Take the lock on a file. The error for a held lock names the other process's action (`what`) and the `file`.

        Args:
            wait: wait without limit for another process to release it.
            patience: wait for this many seconds at most.

        Raises:
            StorageError: another process has it (kind ``busy``), or the file cannot be written.
        """
        until = time.monotonic() + patience
        while True:
            try:
                lock = FileLock.of(self._in_place(path, os.O_RDWR), wait=wait)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                raise StorageError(what, file=file, kind="busy", fix="Wait until it has ended, or stop it.") from None
            if lock.is_on(self._full(path)):
                look_again()
                return lock
            lock.close()  # its previous holder has removed the file meanwhile

    @contextlib.contextmanager
    def alone(self, path: str, *, what: str, file: str) -> Iterator[None]:
        """Run a block in one process at a time; see `lock`. The file is removed at its end.

        Waits a few seconds for the holder: it may be a worker of a run that was just killed, which exits soon.
        """
        with self.lock(path, what=what, file=file, patience=_PATIENCE):
            try:
                yield
            finally:
                self.delete(path)

    def _in_place(self, path: str, flags: int) -> int:
        full = self.writable(path)
        for left in reversed(range(_TRIES)):
            try:
                make_folder(os.path.dirname(full))
                return open_in_place(full, flags)
            except OSError as error:
                if not (isinstance(error, FileNotFoundError) and left):
                    raise storage_error(error, full) from None
                # else another process, which is done, has removed the folder meanwhile
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def build(self, path: str) -> Iterator[Path]:
        full = self.writable(path)
        temporary = ""
        try:
            if full == self.root:
                raise IsADirectoryError(errno.EISDIR, "this is a folder", full)
            refuse_special(full, "would be replaced by a file")
            make_folder(os.path.dirname(full))
            with staged(full) as temporary:
                yield Path(temporary)
                self._unpin(path)
                publish(temporary, full)
        except OSError as error:
            if is_disk_trouble(error) or not temporary or _is_about(error, temporary, os.path.dirname(full)):
                raise storage_error(error, full) from None
            raise  # the error comes from the caller's own code

    def write_note(self, path: str, data: bytes) -> None:
        full = self.writable(path)
        try:
            make_folder(os.path.dirname(full))
            with staged(full) as temporary:
                with open(temporary, "wb") as f:
                    f.write(data)
                self._unpin(path)
                replace(temporary, full)
        except OSError as error:
            raise storage_error(error, full) from None

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        full = self._full(path)
        with self.build(path) as temporary, io.BufferedWriter(_Written(temporary, full)) as f:
            yield f

    def rename(self, source: LocalStore, path: str, target: str) -> None:
        """Move the finished file `path` of another store to `target` in this one, durably; it gets the permissions of a
        file that it replaces. Raises `StorageError`."""
        old, new = source.writable(path), self.writable(target)
        try:
            refuse_links(old, source.root)
            make_folder(os.path.dirname(new))
            with contextlib.suppress(FileNotFoundError):
                os.chmod(old, os.stat(new).st_mode & 0o7777)
            source._unpin(path)
            self._unpin(target)
            publish(old, new)
        except OSError as error:
            raise storage_error(error, new) from None

    def delete(self, path: str) -> None:
        full = self.writable(path)
        self._unpin(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, full) from None
        finally:
            forget(full)

    def _unpin(self, path: str) -> None:
        """Unpin a file that this store itself writes."""
        if self._pins is not None:
            self._pins.pop(path, None)

    def sweep(self) -> None:
        """Remove staged files of dead processes from all folders: other jobs may have written to any of them."""
        for folder, _, _ in os.walk(self.root):
            sweep(folder)

    def remove_folder(self, folder: str = "") -> None:
        """Remove a folder and its content, as far as possible."""
        full = self._full(folder)
        refuse_links(full, self.root)
        shutil.rmtree(full, ignore_errors=True)

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        full = self._full(path)
        try:
            status = os.stat(full)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "this is a folder")
        except OSError as error:
            raise storage_error(error, full) from None
        refuse_special(full, "cannot be read by offset", status)
        self._compare(path, State.of(status))
        yield Path(full)


def publish(temporary: str, final: str) -> None:
    """Sync a finished temporary file, give it its final name, and make the rename itself durable."""
    sync(temporary)
    replace(temporary, final)
    sync(os.path.dirname(final))


def replace(temporary: str, final: str) -> None:
    """Give a temporary file its final name, so that every store of this process opens that name again.

    Raises `StorageError` if the name is that of a device, pipe or socket, which would be replaced.
    """
    refuse_special(final, "would be replaced by a file")
    try:
        os.replace(temporary, final)
    finally:
        forget(final)


def _walk(top: str, relative: str, suffixes: tuple[str, ...]) -> Iterator[Entry]:
    """Yield every visible file below `top`. Linked folders are followed, except into a folder that contains them."""
    status = os.stat(top)
    todo = [(top, relative, frozenset([(status.st_dev, status.st_ino)]))]
    while todo:
        folder, relative, parents = todo.pop()
        with os.scandir(folder) as items:
            for item in items:
                name = item.name
                if _is_folder(item):
                    status = item.stat()
                    identity = (status.st_dev, status.st_ino)
                    if not name.startswith(".") and identity not in parents:
                        todo.append((item.path, f"{relative}{name}/", parents | {identity}))
                elif not name.endswith(TEMPORARY_SUFFIX) and (not suffixes or name.endswith(suffixes)):
                    entry = _listed(item, relative + name)
                    if entry is not None:
                        yield entry


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError as error:  # a link to itself is a wrong file, and so no trouble where its kind is not asked for
        if error.errno != errno.ELOOP:
            raise
        return False


def _listed(item: os.DirEntry[str], path: str) -> Entry | None:
    """Return the entry of a regular file; None for sockets, pipes, and files deleted since the folder was read."""
    try:
        if item.is_file():
            return _entry(path, item.stat())
    except FileNotFoundError:
        return None
    if item.is_symlink() and not os.path.exists(item.path):
        raise NotFound(
            f"this link leads to nothing ({os.readlink(item.path)})",
            file=item.path,
            kind="dangling-link",
            fix="Restore its target, or remove the link.",
        )
    return None


def _entry(path: str, status: os.stat_result) -> Entry:
    return Entry(path, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}")
