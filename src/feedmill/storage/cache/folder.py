"""The folder of the cache, all of it within one bound: files in use, and the eviction of others.

    folder/used             bytes that all files take, and bytes of a chunk (int64 both); its bytes are the locks
    folder/readers/<slot>   run and rank of a process that reads ahead (`Readers`)
    folder/<32 hex>/        chunks of an object that is read by range (`chunks.py`)
    folder/<32 hex>-<name>  a copy of one version of a remote file (`copies.py`), with its `Note` in ``<copy>.hash``
    folder/shards/<hash>    indices of plain tars, and which shards were compared with their index
    folder/costs/<hash>     costs of samples
    folder/lines/<hash>     where the lines of a file lie, or points at which reading it can begin
    folder/frames/<hash>    the tables of frames of videos
    folder/packing/<hash>/  a packing plan: evicted as a whole
    folder/lengths/<hash>/  tokens of the samples of a dataset: as a whole, too
    folder/unpacked/<hash>/ the compressed tars of a folder, unpacked: evicted as a whole

- A process that uses a file has a read lock on the file's byte of ``used``, which the kernel releases when the process
  dies, and which needs no descriptor: thousands may be in use. A file is evicted under a write lock on that byte.
- One more byte is locked by those that reserve bytes or evict, so that all processes stay within the bound together.
- Who uses a chunk has it open, with a shared lock (``flock``): an eviction skips it. The times of a chunk decide when
  it is evicted: the modification time is the position at which a plan reads it next (`PLANNED_BEFORE`), the access
  time is that of the last use.
- What is being written has its full length from the beginning, so that it counts. That of dead processes is removed.

Only files with these names are deleted, and links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import struct
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from feedmill.errors import StorageError
from feedmill.storage.limits import parse_size
from feedmill.storage.locks import ByteLock, FileLock
from feedmill.storage.staging import TEMPORARY_SUFFIX, make_folder, open_in_place, remove_dead
from feedmill.structs import decode_as

logger = logging.getLogger("feedmill")

SIZE = "FEEDMILL_CACHE_SIZE"
_DEFAULT_SIZE = 20 * 10**9
"""Bound in bytes if no size is set; or a tenth of the disk if that is less."""
NOTE = ".hash"
"""Suffix of the note of a copy."""
DERIVED = ("shards", "costs", "lines", "frames", "recordings", "packing", "lengths", "unpacked")
"""Subfolders with derived files."""
_WHOLE = ("packing", "lengths", "unpacked")
"""Those whose subfolders are evicted as a whole."""
_COPY = re.compile(r"[0-9a-f]{32}-.+", re.DOTALL)
_OBJECT = re.compile(r"[0-9a-f]{32}")
_CHUNK = re.compile(r"(\d+)(\.[0-9a-f]*\.?part)?")
TRAILER = struct.Struct("<QQ")
"""What follows the bytes of a chunk: their hash, and that of the boot in which they were written or verified."""
READERS = 256
"""Maximum number of processes whose plans count."""
PLANNED_BEFORE, SCALE = 10**18, 1000
"""A modification time before 2001 is a position times `SCALE` plus the slot of the reader, in nanoseconds."""
_USED, _FETCHED, _RESERVE = 0, 1 << 60, 1 << 61
"""Offset of the locks of each kind in the lock file; the first two have one byte for each of 2^60 hashes of names."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_BLOCK, _ENTRY, _FIXED = 4096, 64, 64 << 10
"""Bytes of a block of the disk, of a name in a folder, and of the files besides objects and copies."""
FOLDER_SIZE = 2 * _BLOCK + _ENTRY
"""Bytes of an object besides its chunks."""
_KEEP = 0.95
"""Eviction for a chunk goes down to this share of the capacity, so that it does not run for each chunk."""
_RETRY = 10
"""After an eviction that did not free enough for a chunk, the next comes after this number of times its duration."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Cached(NamedTuple):
    """One object of a cache.

    Attributes:
        url: URL of the object; the path of a derived file.
        version: version of the object.
        present: number of its bytes in the cache.
        size: size of the object in bytes.
        last_use: time of the last read or write, in seconds since 1970; 0 if nothing is present.
        kind: ``data``; ``index``, ``derived`` or another kind of a `Note`.
    """

    url: str
    version: str
    present: int
    size: int
    last_use: float
    kind: str = "data"


class Note(msgspec.Struct):
    """The facts about a copy that are stored beside it.

    Attributes:
        url, version: URL and version of the remote file.
        size: its size in bytes.
        changed: modification time of the copy, in nanoseconds.
        digest: 128-bit xxh3 of the copy, in hex.
        kind: ``index``, or ``data`` for other files that are used as a whole.
    """

    url: str
    version: str
    size: int
    changed: int
    digest: str
    kind: str = "index"


class _Entry(NamedTuple):
    """A chunk, file or folder that is evicted as a whole.

    Attributes:
        path: its path in the cache folder.
        size, taken: its size in bytes, and the bytes that it takes on the disk, with its note.
        planned: modification time of a chunk, which may stand for a position in a plan; 0 for others.
        last_use: time of the last use, in nanoseconds since 1970.
        kind: ``chunk``; ``derived``; ``none`` for copies without a note; or as in `Note`.
        url, version: URL and version of a copied file; empty without a note.
    """

    path: str
    size: int
    taken: int
    planned: int
    last_use: int
    kind: str = "derived"
    url: str = ""
    version: str = ""


_Entries = list[_Entry]


class HeldFile:
    """A file on this machine that is not evicted before `close`, the end of a ``with`` block, or garbage collection.

    A reader that has opened or mapped it before can still read it afterwards.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, cache: DiskCache | None = None, name: str = "") -> None:
        self.path = path
        self._cache = cache
        self._release = None if cache is None else weakref.finalize(self, cache.drop, name)
        if self._release is not None:
            self._release.atexit = False  # the kernel releases the lock

    def keep(self) -> Path:
        """Keep the file until this process ends; return its path."""
        if self._release is not None:
            self._release.detach()
        return self.path

    def close(self) -> None:
        """Allow the file to be evicted: at once if the cache exceeds its limit. A second call does nothing."""
        if self._cache is not None and self._release is not None and self._release.alive:
            self._release()
            if self._cache.used > self._cache.size:
                self._cache.trim()

    def __enter__(self) -> HeldFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DiskCache:
    """The folder of the cache. Thread-safe.

    Attributes:
        folder: the folder; created when it is first used.
        readers: the processes that read ahead.
        sharers: their number, as last counted.
    """

    def __init__(self, folder: Path, size: int | None = None) -> None:
        """Describe the cache.

        Args:
            folder: a folder for the cache.
            size: maximum number of bytes of all files; None for that of the environment, or the default. Files in use
                are never evicted: if they take more, one warning is logged.
        """
        self.folder, self._size = folder.absolute(), size
        self.readers, self.sharers = Readers(str(self.folder / "readers")), 1
        self._guard, self._mutex = threading.Lock(), threading.Lock()
        self._fd, self._mine, self._is_new, self._retry_at = -1, None, True, 0.0
        self._uses: Counter[str] = Counter()
        self._released: deque[str] = deque()
        self._warned: set[str] = set()
        _caches.add(self)

    _mine: ByteLock | None

    @property
    def size(self) -> int:
        """The maximum number of bytes of all files."""
        if self._size is not None:
            return self._size
        size = parse_size(os.environ.get(SIZE) or 0, SIZE)
        if size:
            return size
        with contextlib.suppress(OSError):
            status = os.statvfs(_existing_parent(self.folder))
            if status.f_blocks:
                return min(_DEFAULT_SIZE, status.f_blocks * status.f_frsize // 10)
        return _DEFAULT_SIZE

    @size.setter
    def size(self, size: int | None) -> None:
        self._size = size

    def capacity(self) -> int:
        """Return the number of bytes that objects and copies may take."""
        return max(0, self.size - _FIXED)

    # files in use

    def hold(self, name: str) -> HeldFile:
        """Prevent the eviction of a file, which may be absent. Raises `OSError` if the folder cannot be used."""
        with self._guard:
            locks = self._opened()
            if not self._uses[name]:
                self._take(locks, _USED + _byte_of(name), shared=True)
            self._uses[name] += 1
        return HeldFile(self.folder / name, self, name)

    def drop(self, name: str) -> None:
        """Undo one `hold`."""
        self._released.append(name)
        # If the garbage collector interrupted a method that has the guard, the next call unlocks the file.
        if self._guard.acquire(blocking=False):
            try:
                self._unlock_released()
            finally:
                self._guard.release()

    def _unlock_released(self) -> None:
        while self._released:
            name = self._released.popleft()
            self._uses[name] -= 1
            if self._uses[name] <= 0:
                del self._uses[name]
                if self._mine is not None:
                    self._mine.drop(_USED + _byte_of(name))

    def hold_derived(self, name: str, *, written: str = "") -> None:
        """Prevent the eviction of a derived file until this process ends, and record its use.

        Does nothing if the folder cannot be used.

        Args:
            name: path of the file or folder in the cache folder, such as ``costs/<hash>``.
            written: path of the file if it is new, so that others may have to be evicted.
        """
        with contextlib.suppress(OSError):
            if not self._uses[name]:
                self.hold(name).keep()
            os.utime(self.folder / name)
            if written:
                with self.reserving(os.stat(self.folder / written).st_size, needs_disk=False):
                    pass

    def exclusive(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Run a block that fetches a file in one thread of all processes at a time. Raises `OSError`."""
        with self._guard:
            self._opened()
            lock = ByteLock(self._fd)
        self._take(lock, _FETCHED + _byte_of(name))
        return lock

    # the bound

    @property
    def used(self) -> int:
        """The bytes that all files take, as last counted by any process."""
        with self._guard, contextlib.suppress(OSError):
            self._opened()
            return self._used()
        return 0

    def _used(self) -> int:
        return max(0, int.from_bytes(os.pread(self._fd, 8, 0), "little", signed=True))

    def _set_used(self, used: int) -> None:
        os.pwrite(self._fd, used.to_bytes(8, "little", signed=True), 0)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock of those that reserve and evict in a block. Raises `OSError`.

        The block gets False if the file system does not support locks.
        """
        with self._mutex:
            with self._guard:
                lock = self._mine or self._opened()
            has_locks = self._take(lock, _RESERVE)
            try:
                if self._is_new and os.fstat(self._fd).st_size < 8:
                    self._set_used(self._scan()[1])
                self._is_new = False
                yield has_locks is not None
            finally:
                if has_locks:
                    lock.drop(_RESERVE)

    @contextlib.contextmanager
    def reserving(self, *sizes: int, needs_disk: bool = True) -> Iterator[int]:
        """Evict until files of these sizes fit; the block creates them with their full length.

        The block gets the bytes that they take, for `release` if it fails.

        Raises:
            OSError: the disk does not have enough free space (ENOSPC), or the folder cannot be used.
        """
        with self.locked() as has_locks:
            taken, used, limit = sum(map(taken_by, sizes)), self._used(), self.size
            free = _free_bytes(self.folder) if needs_disk else None
            bound = limit if free is None else min(limit, used + free)
            if used + taken > bound:
                used = self._evict(bound - taken, files=has_locks)
                free = _free_bytes(self.folder) if needs_disk else None
            if free is not None and sum(sizes) > free:
                self._set_used(used)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            self._set_used(used + taken)
            if used + taken > limit:
                self._warn(
                    "limit",
                    f"what is in use takes {used + taken:,} bytes, more than the limit of {limit:,}: it is evicted"
                    f" later. Set {SIZE} to more",
                )
            yield taken

    def reserve(self, size: int, fd: int = -1, length: int = 0, planned: int = 0) -> bool:
        """Count the bytes of a chunk as used, and evict what is needed later; return whether they are counted.

        Args:
            size: number of bytes; with 0, nothing is evicted unless there is more than the capacity.
            fd: descriptor of the part that will have them, which gets its final length, so that others count it.
            length: that length.
            planned: the modification time of chunks of a plan of which it evicts those that are needed later; 0: all.

        Raises:
            OSError: the folder cannot be used, or has no locks.
        """
        with self.locked() as has_locks:
            if not has_locks:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(self.folder))
            used, capacity = self._used(), self.capacity()
            if used + size > capacity and time.monotonic() >= self._retry_at:
                began = time.monotonic()
                used = self._evict(min(int(_KEEP * capacity), capacity - size), planned)
                if used + size > capacity:  # looking at all files for each chunk would take too long
                    now = time.monotonic()
                    self._retry_at = now + _RETRY * (now - began)
            fits = used + size <= capacity
            if fits and fd >= 0:
                os.ftruncate(fd, length)
            self._set_used(used + size if fits else used)
            return fits

    def release(self, size: int) -> None:
        """Count bytes as free again."""
        with contextlib.suppress(OSError), self.locked():
            self._set_used(self._used() - size)

    def trim(self) -> None:
        """Count all files again, and evict until the bound is met. Does nothing if the folder cannot be used."""
        with contextlib.suppress(OSError), self.locked() as has_locks:
            self._set_used(self._evict(self.size, files=has_locks))

    def count_sharers(self) -> None:
        """Count the processes that read ahead, which share the size."""
        self.sharers = max(1, len(self.readers.live()))

    def list(self) -> list[Cached]:
        """Return the objects, copies and derived files, sorted by URL."""
        return sorted(cached for cached, _ in self._described()) if self.folder.is_dir() else []

    def clear(self, prefix: str | None = None, *, kind: str | None = None) -> int:
        """Delete what has a URL (or path) that begins with a prefix, except what a process uses.

        Args:
            prefix: beginning of the URLs; None for everything.
            kind: kind of the files; None for all, and for chunks.

        Returns:
            The number of bytes freed.

        Raises:
            OSError: the folder cannot be used.
        """
        freed = 0
        if not self.folder.is_dir():
            return 0
        with self.locked():
            for cached, entries in self._described():
                chosen = kind is None or kind == entries[0].kind
                if chosen and (prefix is None or cached.url.startswith(prefix)):
                    freed += sum(entry.size for entry in entries if self._remove(entry))
            self._set_used(self._scan()[1])
        return freed

    def close(self) -> None:
        """Release all files and close the lock file, which is opened again when it is needed."""
        with self._guard:
            if self._mine is not None:
                self._mine.close()
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._mine = -1, None
            self._uses.clear()

    def reset(self) -> None:
        """Forget the locks of the parent in a forked child, where another thread may have held the guards."""
        self._guard, self._mutex, self._mine = threading.Lock(), threading.Lock(), None
        self._uses.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def was_replaced(self) -> None:
        """Do what is needed after another process deleted the folder or its lock file."""

    # what is inside

    def _opened(self) -> ByteLock:
        """Return the locks of this process; they are taken again if another process replaced the lock file.

        The caller has the guard. Raises `OSError`.
        """
        self._unlock_released()
        path = str(self.folder / "used")
        with contextlib.suppress(FileNotFoundError):
            if self._mine is not None and os.path.samestat(os.stat(path), os.fstat(self._fd)):
                return self._mine
        make_folder(str(self.folder))
        try:
            old, self._fd = self._fd, open_in_place(path, os.O_RDWR)
        except StorageError as error:
            raise OSError(errno.ELOOP, error.what, path) from None
        if old >= 0:
            os.close(old)
            self.was_replaced()
        self._mine, self._is_new = ByteLock(self._fd), True
        for name in self._uses:
            self._take(self._mine, _USED + _byte_of(name), shared=True)
        return self._mine

    def _take(self, lock: ByteLock, byte: int, *, wait: bool = True, shared: bool = False) -> bool | None:
        """Lock a byte; return whether it was locked; None if the file system does not support locks."""
        try:
            return lock.take(byte, wait=wait, shared=shared)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        self._warn(
            "locks",
            "the file system does not support locks, so nothing is evicted: run 'feedmill cache clear' if needed",
        )
        return None

    def _evict(self, target: int, planned: int = 0, *, files: bool = True) -> int:
        """Evict until at most `target` bytes are used, and return the bytes that are then used.

        First go leftovers and old versions, then what no running plan needs, least recently used first, then the chunks
        that plans read last. The caller has the lock.

        Args:
            target: number of bytes.
            planned: as for `reserve`.
            files: whether to evict copies and derived files, whose uses are unknown without locks.
        """
        entries, used = self._scan()
        if used > target:
            live, newest = self.readers.live(), dict[str, int]()
            for entry in entries:
                if entry.url:
                    newest[entry.url] = max(newest.get(entry.url, 0), entry.last_use)

            def order(planned: int, last_use: int) -> tuple[bool, int]:
                counts = 0 < planned < PLANNED_BEFORE and planned % SCALE in live
                return counts, -planned if counts else last_use

            def key(entry: _Entry) -> tuple[bool, int]:
                if entry.kind == "none" or (entry.url and entry.last_use < newest[entry.url]):
                    return False, 0
                return order(entry.planned, entry.last_use)

            last = True, -planned
            keys = [key(entry) for entry in entries]
            for number in sorted(range(len(entries)), key=keys.__getitem__):
                if used <= target or keys[number] >= last:
                    break
                entry = entries[number]
                if entry.kind != "part" and (files or entry.kind == "chunk") and self._remove(entry):
                    used -= entry.taken
        return used

    def _remove(self, entry: _Entry) -> bool:
        """Delete a chunk, file or folder unless a process uses it; return whether it was deleted."""
        if entry.kind in ("chunk", "part"):
            return _remove_chunk(f"{self.folder}/{entry.path}")
        path = self.folder / entry.path
        with self._guard:
            lock = ByteLock(self._fd)
        with lock:
            if self._take(lock, _USED + _byte_of(entry.path), wait=False) is False:
                return False
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                    path.with_name(path.name + NOTE).unlink(missing_ok=True)
            except OSError as error:
                self._warn("evict", f"a file cannot be evicted: {path}: {error.strerror or error}")
                return False
            return True

    def _scan(self) -> tuple[_Entries, int]:
        """Return what the folder has, and the bytes that it takes with what is being written.

        What dead processes were writing, and empty folders of objects, are deleted.
        """
        files, used = _files(self.folder)
        entries = _Entries()
        for name, (size, last_use) in files.items():
            if not _COPY.fullmatch(name) or (name.endswith(NOTE) and name.removesuffix(NOTE) in files):
                continue
            note, taken, facts = read_note(self.folder / name), taken_by(size), ("none", "", "")
            if name + NOTE in files:
                taken, last_use = taken + taken_by(files[name + NOTE][0]), files[name + NOTE][1]
            if note is not None:  # else a leftover of a killed process
                facts = note.kind, note.url, note.version
            entries.append(_Entry(name, size, taken, 0, last_use, *facts))
        names = os.listdir(self.folder)
        for kind in DERIVED:
            if kind not in names:
                continue
            derived, staged = _files(self.folder / kind)
            used += staged
            for name, (size, last_use) in derived.items():
                entries.append(_Entry(f"{kind}/{name}", size, taken_by(size), 0, last_use))
            for folder in _list(self.folder / kind) if kind in _WHOLE else ():
                if folder.is_dir(follow_symlinks=False):
                    parts, staged = _files(Path(folder.path))
                    used += staged
                    size, taken = (
                        sum(size for size, _ in parts.values()),
                        sum(taken_by(size) for size, _ in parts.values()),
                    )
                    last_use = folder.stat(follow_symlinks=False).st_mtime_ns
                    entries.append(_Entry(f"{kind}/{folder.name}", size, taken, 0, last_use))
        for name in filter(_OBJECT.fullmatch, names):
            used += self._scan_object(name, entries)
        return entries, used + sum(entry.taken for entry in entries)

    def _scan_object(self, name: str, entries: _Entries) -> int:
        """Add the chunks of an object; return the bytes of its folder, which is deleted if it has none."""
        before = len(entries)
        for chunk in _list(self.folder / name):
            match = _CHUNK.fullmatch(chunk.name)
            if match is None or (match[2] and _remove_chunk(chunk.path)):
                continue
            try:
                status = chunk.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                size, taken = status.st_size - TRAILER.size, taken_by(status.st_size) if status.st_size else 0
                times = status.st_mtime_ns, status.st_atime_ns
                entries.append(_Entry(f"{name}/{chunk.name}", size, taken, *times, "part" if match[2] else "chunk"))
        return 0 if len(entries) == before and _remove_folder(self.folder / name) else FOLDER_SIZE

    def _described(self) -> Iterator[tuple[Cached, _Entries]]:
        """Yield each object, copy and derived file as `list` shows it, and what it consists of."""
        objects: dict[str, _Entries] = defaultdict(list)
        for entry in self._scan()[0]:
            if entry.kind == "chunk":
                objects[entry.path.partition("/")[0]].append(entry)
            elif entry.kind not in ("part", "none"):
                url, last_use = entry.url or str(self.folder / entry.path), entry.last_use / 1e9
                yield Cached(url, entry.version, entry.size, entry.size, last_use, entry.kind), [entry]
        for name, chunks in objects.items():
            present, used = sum(chunk.size for chunk in chunks), max(chunk.last_use for chunk in chunks)
            with contextlib.suppress(OSError, ValueError, KeyError):
                note = json.loads((self.folder / name / "object").read_bytes())
                yield Cached(note["url"], note["version"], present, note["size"], used / 1e9), chunks

    def _warn(self, what: str, text: str) -> None:
        """Log a warning, once for each `what`."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s: %s", self.folder, text)


_caches: weakref.WeakSet[DiskCache] = weakref.WeakSet()


def _reset_inherited() -> None:
    for cache in list(_caches):
        cache.reset()


os.register_at_fork(after_in_child=_reset_inherited)


def read_note(copy: Path) -> Note | None:
    """Return the note of a copy; None if it is absent or invalid."""
    try:
        return decode_as(copy.with_name(copy.name + NOTE).read_bytes(), Note)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def taken_by(size: int) -> int:
    """Return the bytes that a file of a size takes on the disk."""
    return -(-size // _BLOCK) * _BLOCK + _ENTRY


def lock_file(fd: int, kind: int) -> bool:
    """Lock an open file without waiting; return whether it is locked, or its file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _files(folder: Path) -> tuple[dict[str, tuple[int, int]], int]:
    """Return size and modification time of the regular files of a folder, and the bytes of those being written."""
    files, staged = dict[str, tuple[int, int]](), 0
    for entry in _list(folder):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                if not entry.name.startswith("."):
                    files[entry.name] = status.st_size, status.st_mtime_ns
                elif entry.name.endswith(TEMPORARY_SUFFIX) and not remove_dead(entry.path):
                    staged += taken_by(status.st_size)
    return files, staged


def _list(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            with os.scandir(folder) as entries:
                return list(entries)
    return []


def _remove_chunk(path: str) -> bool:
    """Delete a file unless a process has locked it; return whether it is deleted."""
    try:
        fd = os.open(path, READ)
    except FileNotFoundError:
        return True
    except OSError:  # a link
        return False
    try:
        if not lock_file(fd, fcntl.LOCK_EX):
            return False
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _remove_folder(folder: Path) -> bool:
    """Delete the folder of an object without chunks; return whether it is deleted."""
    names = os.listdir(folder) if folder.is_dir() and not folder.is_symlink() else [""]
    if any(name != "object" and not name.startswith(".") for name in names):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _existing_parent(folder: Path) -> Path:
    """Return a folder, or the nearest folder above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _free_bytes(folder: Path) -> int | None:
    """Return the free space of the disk for this user in bytes; None if the file system does not report it."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def _byte_of(name: str) -> int:
    """Return the byte, counted from the beginning of a kind of locks, that stands for a file."""
    import hashlib

    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") >> 4


class Reader(FileLock):
    """A process that reads ahead, until `close` or the end of the process.

    Attributes:
        slot: its number, above 0.
    """

    slot = 0


class Readers:
    """The processes that read ahead through a cache: each has locked a file in a folder.

    The ranks of a run on one machine know each other by it, and evictions know which plans still count. They are hints:
    whatever they say, each rank reads its own samples.
    """

    _ROW = struct.Struct("<Qq")

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def join(self, run: int, rank: int) -> Reader | None:
        """Add a reader; return the object whose `close` removes it, or None if there are too many.

        Args:
            run: the same number for all ranks of a run, and not 0; 0 for a reader without neighbors.
            rank: its rank.

        Raises:
            OSError: the folder cannot be used.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        first = os.urandom(1)[0] % READERS  # so that the slot of a dead process is hardly ever that of the next one
        for slot in (1 + (first + number) % READERS for number in range(READERS)):
            with contextlib.suppress(BlockingIOError):
                reader = Reader(f"{self._folder}/{slot}")
                reader.slot = slot
                Path(self._folder, str(slot)).write_bytes(self._ROW.pack(run, rank))
                return reader
        return None

    def live(self) -> dict[int, tuple[int, int]]:
        """Return run and rank of the readers that are alive, by their slots."""
        rows = {}
        for entry in _list(Path(self._folder)):
            with contextlib.suppress(OSError, struct.error):
                if entry.name.isdigit() and _is_locked(entry.path):
                    rows[int(entry.name)] = self._ROW.unpack(Path(entry.path).read_bytes())
        return rows

    def ranks(self, run: int) -> list[int]:
        """Return the ranks of a run whose readers are alive on this machine, ascending and each once."""
        return sorted({rank for other, rank in self.live().values() if other == run})


def _is_locked(path: str) -> bool:
    """Return whether a process has locked a file."""
    try:
        FileLock(path, shared=True).close()
    except BlockingIOError:
        return True
    return False
