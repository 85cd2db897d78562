"""The local file system as a `Store`.

Descriptors stay open, so a read of a known file is one system call. If another process replaces a
file, a store that opened it before reads the old content as long as the descriptor is kept; a new store reads the new
file. If this process replaces a file, all stores read the new file. `stat`, `files` and reads of whole files always see
the current state of the disk. A store with pinned files rejects a file that changed since the store first opened it.

All writes are staged (`staging.py`) and published by a rename.

Descriptors of regular files that stay open between reads, shared by all local stores of the process.

A descriptor is shared as long as its path leads to the same file; after the file is replaced, `opened` returns a new
one. The last `MOST` descriptors stay open, or a quarter of the process's limit if that is less, so that enough are left
for writing. A store whose descriptor was closed opens the path again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import os
import resource
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import (
    Entry,
    Store,
    bad_range,
    changed,
    has_suffix,
    is_about,
    is_disk_error,
    refuse_nul,
    storage_error,
    too_short,
)
from feedmill.storage.limits import DESCRIPTION, refuse_large
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import (
    TEMPORARY_SUFFIX,
    NamedWriteBehind,
    make_folder,
    new_staged,
    open_in_place,
    refuse_links,
    staged,
    start_writing,
    sweep,
    sweep_again,
    sync,
    tries,
)

if TYPE_CHECKING:
    from pathlib import Path


_MAX_OPENED = 4096
"""With more opened paths than this, a store forgets those whose descriptors are closed."""
_TOGETHER = 16
"""Small files that are written before the first of them is synced, which then writes the file system's log for all."""
_PATIENCE = 3.0
"""Seconds to wait for a lock whose holder may be about to exit."""


class LocalStore(Store):
    """A folder on this machine. Reads use `pread` on descriptors that stay open, so threads need no lock.

    Args:
        root: path of the folder, which need not exist.

    Raises:
        ConfigError: the path has a NUL.
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
        # Called by every read. An opened path was already checked by `_full`.
        reference = self._opened.get(path)
        file = None if reference is None else reference()
        if file is not None and file.kept:
            return file
        full = self._full(path)
        try:
            file = opened(full)
        except OSError as error:
            raise storage_error(error, full) from None
        self._compare(path, file.state)
        if len(self._opened) > _MAX_OPENED:
            self._opened = {path: kept for path, kept in list(self._opened.items()) if kept() is not None}
        self._opened[path] = weakref.ref(file)
        return file

    def pin_files(self) -> None:
        if self._pins is None:
            self._pins = {}

    def _compare(self, path: str, state: State) -> None:
        """Raise `DataError` for a pinned file that was replaced or rewritten."""
        if self._pins is None:
            return
        pinned = self._pins.setdefault(path, state)
        if pinned is not state and not state.continues(pinned):
            raise changed(self._full(path))

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = (), hidden: bool = False) -> Iterator[Entry]:
        folder = self.check_path(prefix).rstrip("/")
        top = self._full(folder)
        if not os.path.isdir(top):
            what = "this is a file, a folder was expected" if os.path.exists(top) else "there is no such folder"
            raise NotFound(what, file=top, fix="Check the path.")
        try:
            entries = list(walk(top, folder + "/" if folder else "", tuple(suffixes), hidden))
        except OSError as error:
            raise storage_error(error, error.filename or top) from None
        entries.sort(key=lambda entry: entry.path)
        yield from entries

    def is_folder(self, path: str = "") -> bool:
        return os.path.isdir(self._full(path))

    def modified(self, path: str) -> float:
        full = self._full(path)
        try:
            return os.stat(full).st_mtime
        except OSError as error:
            raise storage_error(error, full) from None

    def stat(self, path: str) -> Entry:
        full = self._full(path)
        try:
            status = os.stat(full)
        except OSError as error:
            raise storage_error(error, full) from None
        self._pin(path, status)
        return entry_of(path, status)

    def _pin(self, path: str, status: os.stat_result) -> None:
        if self._pins is not None and path not in self._pins:
            self._pins[path] = State.of(status)

    def exists(self, path: str) -> bool:
        # Opening a folder asks for many names that it lacks: an error with its words would take most of that time.
        full = self._full(path)
        try:
            status = os.stat(full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise storage_error(error, full) from None
        self._pin(path, status)
        return True

    def read_small(self, path: str, most: int = DESCRIPTION) -> bytes:
        full = self._full(path)
        try:
            descriptor, status = open_regular(full)
            try:
                self._pin(path, status)
                refuse_large(status.st_size, full, most)
                return _read_rest(descriptor, 0, status.st_size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(error, full) from None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is not None:
            return self._pread(self._file(path), path, offset, length)
        full = self._full(path)
        try:
            return read_regular(full, offset)
        except OSError as error:
            raise storage_error(error, full) from None

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        file, length, done = self._file(path), len(buffer), 0
        try:
            while done < length:
                count = os.preadv(file.fd, [buffer[done:]], offset + done)
                if not count:
                    raise too_short(self._full(path), offset, length, done)
                done += count
        except (OSError, OverflowError) as error:
            raise self._range_error(error, file, path, offset, length) from None

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        file = self._file(path)
        return [self._pread(file, path, o, n) for o, n in zip(offsets, lengths, strict=True)]

    def descriptors(self, paths: Sequence[str]) -> list[OpenFile]:
        return [self._file(path) for path in paths]

    def _pread(self, file: OpenFile, path: str, offset: int, length: int) -> bytes:
        try:
            data = os.pread(file.fd, length, offset)
            while len(data) < length:  # one call returns at most 2 GiB
                block = os.pread(file.fd, length - len(data), offset + len(data))
                if not block:
                    raise too_short(self._full(path), offset, length, len(data))
                data += block
        except (OSError, OverflowError, MemoryError) as error:
            raise self._range_error(error, file, path, offset, length) from None
        return data

    def _range_error(self, error: Exception, file: OpenFile, path: str, offset: int, length: int) -> FeedmillError:
        """Return the error for a range that could not be read: a corrupt index may have impossible ranges."""
        full = self._full(path)
        if offset < 0 or length < 0:
            return bad_range(full, offset, length)
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            return storage_error(error, full)
        return too_short(full, offset, length, max(0, os.fstat(file.fd).st_size - offset))

    def writable(self, path: str) -> str:
        """Return the full path of a file or folder that will be written, renamed or deleted.

        Raises:
            StorageError: a folder on the path is a link: a dataset from others may have links to any file.
        """
        full = self._full(path)
        refuse_links(os.path.dirname(full) if path else full, self.root)
        return full

    def below(self, folder: str) -> LocalStore:
        """Return the store for a subfolder, which need not exist. Raises as `writable`."""
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
        """Open a file for appending, without staging; it is created if absent. Raises `StorageError`."""
        return os.fdopen(self._in_place(path, os.O_RDWR | os.O_APPEND), "ab")

    def lock(
        self, path: str, *, what: str, file: str, wait: bool = False, patience: float = 0.0, shared: bool = False
    ) -> FileLock:
        """Take the lock on a file, which is created if absent.

        Args:
            path: the lock file.
            what: what the other process is doing, for the error if it has the lock.
            file: file for the error.
            wait: wait without limit for another process to release it.
            patience: maximum number of seconds to wait.
            shared: let other processes have it at the same time, if they share it too.

        Raises:
            StorageError: another process has the lock (kind ``busy``), or the file cannot be written.
        """
        until = time.monotonic() + patience
        while True:
            try:
                lock = FileLock.of(self._in_place(path, os.O_RDWR), wait=wait, shared=shared)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                raise StorageError(what, file=file, kind="busy", fix="Wait until it has ended, or stop it.") from None
            if lock.is_on(self._full(path)):
                sweep_again()
                return lock
            lock.close()  # its previous holder removed the file meanwhile

    @contextlib.contextmanager
    def exclusive(self, path: str, *, what: str, file: str) -> Iterator[None]:
        """Run a block in one process at a time, under `lock`. The lock file is deleted at the end.

        Waits a few seconds for the holder, which may be a worker of a killed run that is about to exit.
        """
        with self.lock(path, what=what, file=file, patience=_PATIENCE):
            try:
                yield
            finally:
                self.delete(path)

    def _in_place(self, path: str, flags: int) -> int:
        """Open a file that is not staged, and create its folder. Raises `StorageError`."""
        full = self.writable(path)
        for last in tries():
            self.make_folder(os.path.dirname(path))
            try:
                return open_in_place(full, flags)
            except OSError as error:
                if last or not isinstance(error, FileNotFoundError):
                    raise storage_error(error, full) from None
                # else another process that has ended its work removed the folder meanwhile
        raise AssertionError("unreachable")

    def build(self, path: str) -> AbstractContextManager[Path]:
        return self._build(path, publish)

    @contextlib.contextmanager
    def _build(self, path: str, publish: Callable[[str, str], None]) -> Iterator[Path]:
        full = self.writable(path)
        temporary = ""
        from pathlib import Path

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
            if is_disk_error(error) or not temporary or is_about(error, temporary, os.path.dirname(full)):
                raise storage_error(error, full) from None
            raise  # from the code of the caller, in the block

    def put_new(self, path: str, data: bytes) -> bool:
        written = False

        def link(temporary: str, final: str) -> None:
            nonlocal written
            sync(temporary)
            try:
                os.link(temporary, final)  # fails if the name is taken, unlike a rename
            except FileExistsError:
                if os.stat(temporary).st_nlink < 2:  # else NFS has lost the answer, and repeated the request
                    return
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                    raise storage_error(error, final) from None
                what, fix = "the file system has no hard links", "Write to another file system, or to a bucket."
                raise StorageError(what, file=final, kind="unsupported", fix=fix) from None
            written = True
            sync(os.path.dirname(final))

        with self._build(path, link) as temporary:
            temporary.write_bytes(data)
        return written

    def write_together(self, files: Iterable[tuple[str, bytes]]) -> None:
        folders: dict[str, None] = {}
        todo = iter(files)
        while few := list(itertools.islice(todo, _TOGETHER)):
            self._write_few(few, folders)
        for folder in folders:
            try:
                sync(folder)
            except OSError as error:
                raise storage_error(error, folder) from None

    def _write_few(self, few: Iterable[tuple[str, bytes]], folders: dict[str, None]) -> None:
        """Write small files, each as `build` does, with one descriptor and few system calls for each.

        Args:
            folders: folders that were checked and must be synced; extended.
        """
        made: list[tuple[str, str, str, FileLock]] = []
        full = self.root
        try:
            for path, data in few:
                full = self._full(path)
                folder = os.path.dirname(full)
                if folder not in folders:
                    self.writable(path)
                    if full == self.root:
                        raise IsADirectoryError(errno.EISDIR, "this is a folder", full)
                    make_folder(folder)
                    sweep(folder)
                    folders[folder] = None
                temporary, lock = new_staged(full)
                made.append((path, full, temporary, lock))
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(lock.fileno(), rest) :]
                start_writing(lock.fileno())
            while made:
                path, full, temporary, lock = made[0]
                os.fsync(lock.fileno())
                self._unpin(path)
                replace(temporary, full)
                lock.close()
                del made[0]
        except OSError as error:
            raise storage_error(error, full) from None
        finally:
            for _, _, temporary, lock in made:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                lock.close()

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
        with self.build(path) as temporary, io.BufferedWriter(NamedWriteBehind(temporary, full)) as f:
            yield f

    def rename(self, source: LocalStore, path: str, target: str) -> None:
        """Move a finished file of another store to this one, durably.

        A file that replaces another one gets its permissions.

        Args:
            source: store of the file.
            path: path of the file there.
            target: new path of the file in this store.

        Raises:
            StorageError: the file cannot be moved.
        """
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
        """Delete staged files of dead processes from all folders: other jobs may have written to any of them."""
        for folder, _, _ in os.walk(self.root):
            sweep(folder)

    def remove_folder(self, folder: str = "") -> None:
        """Delete a folder and its content, as far as possible. Raises `StorageError` for a link on the path."""
        full = self._full(folder)
        refuse_links(full, self.root)
        import shutil

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
        from pathlib import Path

        yield Path(full)


def publish(temporary: str, final: str) -> None:
    """Sync a finished temporary file, give it its final name, and make the rename durable. Raises as `replace`."""
    sync(temporary)
    replace(temporary, final)
    sync(os.path.dirname(final))


def replace(temporary: str, final: str) -> None:
    """Give a temporary file its final name, and make all stores of this process open that name again.

    Raises:
        StorageError: the name is that of a device, pipe or socket, which would be replaced.
        OSError: the file cannot be renamed.
    """
    refuse_special(final, "would be replaced by a file")
    try:
        os.replace(temporary, final)
    finally:
        forget(final)


def walk(top: str, relative: str, suffixes: tuple[str, ...], hidden: bool) -> Iterator[Entry]:
    """Yield every file below `top`, those of hidden folders only on request.

    Links to folders are followed, unless they lead to a folder above them.
    """
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
                    if (hidden or not name.startswith(".")) and identity not in parents:
                        todo.append((item.path, f"{relative}{name}/", parents | {identity}))
                elif not name.endswith(TEMPORARY_SUFFIX) and has_suffix(name, suffixes, hidden):
                    entry = _listed(item, relative + name)
                    if entry is not None:
                        yield entry


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError as error:  # a link to itself is no folder; `_listed` reports it if its suffix is listed
        if error.errno != errno.ELOOP:
            raise
        return False


def _listed(item: os.DirEntry[str], path: str) -> Entry | None:
    """Return the entry of a regular file; None for sockets, pipes, and files deleted since the folder was read."""
    try:
        if item.is_file():
            return entry_of(path, item.stat())
    except FileNotFoundError:
        return None
    if item.is_symlink() and not os.path.exists(item.path):
        raise NotFound(
            f"the target of this link does not exist ({os.readlink(item.path)})",
            file=item.path,
            kind="dangling-link",
            fix="Restore its target, or remove the link.",
        )
    return None


def entry_of(path: str, status: os.stat_result) -> Entry:
    """Return the entry of a file, whose version is its time of change and its size."""
    return Entry(path, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}")


MOST = 256
"""Maximum number of descriptors that stay open."""


class State(NamedTuple):
    """The identity of a file in one state: device, inode, size in bytes, modification time in nanoseconds."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the state of a `stat` result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def continues(self, before: State) -> bool:
        """Return whether the file still has the content of an earlier state: nothing changed, or data was appended.

        Inodes are not compared alone, because some network file systems report another one each time.
        """
        grown = self[:2] == before[:2] and self.size > before.size
        return grown or self[2:] == before[2:]


class OpenFile:
    """An open file whose descriptor is closed when the last reference is released.

    Attributes:
        full: full path of the file.
        fd: descriptor.
        kept: whether new reads may use it.
        state: state of the file when it was opened.
    """

    __slots__ = ("__weakref__", "fd", "full", "kept", "state")

    def __init__(self, full: str) -> None:
        self.full, self.kept = full, True
        self.fd, status = open_regular(full)
        # Not in `__del__`: while it runs, another thread can still get the file through a weak reference.
        weakref.finalize(self, os.close, self.fd).atexit = False
        self.state = State.of(status)


_kept: dict[OpenFile, None] = {}
"""Files that stay open, oldest first. Single dict operations are atomic, so threads need no lock."""

_current: dict[str, OpenFile] = {}
"""By full path, the file of `_kept` that was opened last."""

_replaced = 0
"""Number of replaced and deleted files: a descriptor that was opened during such a change is not kept."""


def opened(full: str) -> OpenFile:
    """Return the open file that is now at a path.

    Raises:
        OSError: it cannot be opened.
        StorageError: it is a device, pipe or socket.
    """
    before = _replaced
    file = _current.get(full)
    if file is not None and file.state == State.of(os.stat(full)):
        return file
    file = OpenFile(full)
    limit = _limit()
    while len(_kept) >= limit:
        with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # another thread dropped it first
            _drop(next(iter(_kept)))
    _kept[file] = None
    _current[full] = file
    if before != _replaced:
        _drop(file)
    return file


def _limit() -> int:
    """Return the number of files that stay open; computed each time, because `raise_file_limit` changes the limit."""
    return max(1, min(MOST, file_limit() // 4))


def forget(full: str) -> None:
    """Drop the descriptors of a file that this process replaced or deleted, so that the next read opens it again."""
    global _replaced
    _replaced += 1
    for file in [file for file in list(_kept) if file.full == full]:
        _drop(file)


def _drop(file: OpenFile) -> None:
    file.kept = False
    _kept.pop(file, None)
    if _current.get(file.full) is file:
        _current.pop(file.full, None)


def open_regular(path: str) -> tuple[int, os.stat_result]:
    """Return a descriptor for reading a regular file, and its status.

    It does not block: opening a pipe would wait for its writer.

    Raises:
        OSError: the file cannot be opened.
        StorageError: it is a device, pipe or socket.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            refuse_special(path, _UNREADABLE)
        raise
    try:
        status = os.fstat(descriptor)
        refuse_special(path, _UNREADABLE, status)
    except StorageError:
        os.close(descriptor)
        raise
    return descriptor, status


def read_regular(path: str, offset: int = 0) -> bytes:
    """Return the bytes of a regular file from an offset to its end, with as few calls as possible. Raises as above."""
    descriptor, status = open_regular(path)
    try:
        return _read_rest(descriptor, offset, status.st_size)
    finally:
        os.close(descriptor)


def _read_rest(descriptor: int, offset: int, size: int) -> bytes:
    left = max(0, size - offset)
    data = os.pread(descriptor, left + 1, offset)
    if len(data) == left:  # fewer bytes than requested: the end
        return data
    blocks = [data]
    while data:  # it grows, one call returns at most 2 GiB, or files like those of /proc, which have no size
        offset += len(data)
        data = os.pread(descriptor, max(1 << 20, left), offset)
        blocks.append(data)
    return b"".join(blocks)


_UNREADABLE = "cannot be read by offset"
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(path: str, what: str, status: os.stat_result | None = None) -> None:
    """Raise `StorageError` if this is a device, pipe or socket. Files, folders and absent paths are accepted.

    Args:
        path: the path.
        what: what is wrong with such a file here, for the message.
        status: `stat` result of the path, if it is known.
    """
    if status is None:
        with contextlib.suppress(OSError):
            status = os.stat(path)
    kind = None if status is None else _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise StorageError(
            f"this is {kind}, which {what}; a regular file was expected",
            file=path,
            kind="not-a-file",
            fix="Use a regular file.",
        )


_MAX_FILES, _MANY_FILES = 65_536, 4_096
"""Highest limit of open files that is set, and the lowest that is enough to keep small files mapped."""


@functools.lru_cache(maxsize=1)
def raise_file_limit() -> bool:
    """Raise the limit on open files of this process as far as the system allows. Call it before mapping many files.

    Each mapped file has a descriptor. Most systems allow a process 1,024 of them by default and many more on request,
    and a dataset may have thousands of files.

    Returns:
        Whether thousands of files can be open; if not, small files should be read instead of mapped.
    """
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < target:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        return soft == resource.RLIM_INFINITY or soft >= _MANY_FILES
    return True


def file_limit() -> int:
    """Return how many files this process may have open, at most `_MAX_FILES`."""
    with contextlib.suppress(OSError, ValueError):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, _MAX_FILES)
    return _MAX_FILES
