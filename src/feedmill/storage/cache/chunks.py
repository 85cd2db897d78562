"""The cache of remote objects: chunk files of a fixed size, bounded in total, shared by the processes of a machine.

If a cache size is set, reading ahead stores the fetched bytes here, so that later epochs and other processes do not
fetch them again.

    folder/used                bytes that all files take, and bytes of a chunk (int64 both); locked by those that evict
    folder/readers/<slot>      run and rank of a process that reads ahead (`Readers`)
    folder/<32 hex>/object     URL, version and size of an object
    folder/<32 hex>/<n>        chunk n of the object, then its hash and the boot in which it was written or verified
    folder/<32 hex>/<n>.part   a chunk that is being fetched

- A chunk is present if its file exists: it is written as ``<n>.part`` and renamed when it is complete.
- Who fetches a chunk holds a lock (``flock``) on its part, which the kernel releases when the process dies.
- Who reads a chunk has it open, with a shared lock: an eviction skips it, and an unlinked file stays readable.
- The times of a file decide when it is evicted: the modification time is the position at which a plan reads the chunk
  next (`_planned`), the access time is that of the last use.
- Hashes are compared when a chunk was written before the last start of the machine: its bytes may not have reached the
  disk.

Only files with these names are deleted, and links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import re
import secrets
import shutil
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.storage.boot import boot_id
from feedmill.storage.cache.items import Cached
from feedmill.storage.descriptors import file_limit, raise_file_limit

logger = logging.getLogger("feedmill")

Int64s = npt.NDArray[np.int64]

SMALLEST, CHUNK, _CHUNKS = 1 << 16, 1 << 20, 512
"""Bytes of a chunk: the smallest of which the size has this number, or more; a power of two between these two.

A request has several chunks, so larger ones would not be faster. Of a block of small samples, whose ends lie within
chunks, they would fetch more than is needed.
"""
FAR = 10**15 - 1
"""Position in a plan that stands for no further use."""
READERS = 256
"""Maximum number of processes whose plans count."""
_PLANNED_BEFORE, _SCALE = 10**18, 1000
"""A modification time before 2001 is a position times `_SCALE` plus the slot of the reader, in nanoseconds."""
_OBJECT = re.compile(r"[0-9a-f]{32}")
_CHUNK = re.compile(r"(\d+)(\.[0-9a-f]*\.?part)?")
_TRAILER = struct.Struct("<QQ")
_BLOCK, _ENTRY, _FIXED = 4096, 64, 64 << 10
"""Bytes of a block of the disk, of a name in a folder, and of the files besides objects."""
_FOLDER_SIZE = 2 * _BLOCK + _ENTRY
"""Bytes of an object besides its chunks."""
_KEEP = 0.95
"""Eviction frees chunks down to this share of the capacity, so that it does not run for each chunk."""
_RETRY = 10
"""After an eviction that did not free enough, the next one comes after this number of times its duration."""
_FILES, _PINNED = 4, 0.75
"""The chunks that a process keeps open may have this part of its descriptors; those of all processes, of the size."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_open: weakref.WeakSet[Chunk | Claim | Reader | ChunkCache] = weakref.WeakSet()


def _lock(fd: int, kind: int) -> bool:
    """Lock an open file without waiting; return whether it is locked, or its file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


class _Open:
    """An open file that is closed when its last reference is released, and in forked children. Base class."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _open.add(self)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the file, which releases its lock. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class Chunk(_Open):
    """A chunk that is present. One with a descriptor is not evicted as long as this object is referenced.

    Attributes:
        fd: descriptor of a file with its bytes; -1 if the process keeps no more chunks open.
        path: path of the file.
        size: bytes of the chunk.
    """

    __slots__ = ("_cache", "path", "size")

    def __init__(self, fd: int, path: str, size: int, cache: ChunkCache) -> None:
        super().__init__(fd)
        self.path, self.size, self._cache = path, size, cache
        if fd >= 0:
            cache.kept_open.add(fd)

    def reopened(self) -> Chunk | None:
        """Return the chunk with a descriptor; None if it was evicted because it had none."""
        if self.fd >= 0:
            return self
        try:
            fd = os.open(self.path, _READ)
        except OSError:
            return None
        _lock(fd, fcntl.LOCK_SH)
        return Chunk(fd, self.path, self.size, self._cache)

    def close(self) -> None:
        self._cache.kept_open.discard(self.fd)
        super().close()

    __del__ = close


class Claim(_Open):
    """The right to fetch a chunk, until `put`, `close`, or the end of the process.

    Attributes:
        number: number of the chunk.
    """

    __slots__ = ("_object", "_part", "number")

    def __init__(self, fd: int, owner: CachedObject, number: int, part: str) -> None:
        super().__init__(fd)
        self._object, self.number, self._part = owner, number, part

    def put(self, data: memoryview) -> Chunk | None:
        """Store the bytes of the chunk, and end the claim; return None if the cache does not take them."""
        owner, size = self._object, len(data)
        cache, path = owner.cache, owner.path(self.number)
        taken, now = _taken(size + _TRAILER.size), time.time_ns()
        changed = owner.planned.get(self.number, now)
        if not cache.reserve(taken, self.fd, size + _TRAILER.size, changed):
            self.drop()
            return None
        try:
            trailer = _TRAILER.pack(xxhash.xxh3_64_intdigest(data), _boot())
            done = 0
            while done < size:
                done += os.pwrite(self.fd, data[done:], done)
            os.pwrite(self.fd, trailer, size)
            os.utime(self.fd, ns=(now, changed))
            os.rename(self._part, path)
        except OSError as error:
            self.drop()
            cache.release(taken)
            cache.disable(error)
            return None
        fd, self.fd = self.fd, -1
        _lock(fd, fcntl.LOCK_SH)
        return _kept(Chunk(fd, path, size, cache))

    def drop(self) -> None:
        """End the claim, and delete what was written."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._part)
            self.close()


def _taken(size: int) -> int:
    """Return the bytes that a file of a size takes on the disk."""
    return -(-size // _BLOCK) * _BLOCK + _ENTRY


@functools.cache
def _boot() -> int:
    return xxhash.xxh3_64_intdigest(boot_id().encode())


def _kept(chunk: Chunk) -> Chunk:
    """Close the descriptor of a chunk if the process keeps too many open, and return the chunk."""
    cache = chunk._cache
    if len(cache.kept_open) > min(file_limit() // _FILES, int(_PINNED * cache.size) // cache.chunk // cache.sharers):
        chunk.close()
    return chunk


class CachedObject:
    """The chunks of one version of an object. `ChunkCache.open` returns it. Thread-safe.

    Attributes:
        url, version, size: of the object.
        complete: whether all chunks were found to be present, and none was missed since.
        planned: modification times of chunks that a plan of this process will read.
    """

    def __init__(self, cache: ChunkCache, url: str, version: str, size: int) -> None:
        self.cache, self.url, self.version, self.size = cache, url, version, size
        self.chunk = cache.chunk
        identity = f"{url}\0{version}\0{size}\0{self.chunk}".encode("utf-8", "surrogateescape")
        self._folder = os.path.join(cache.folder, xxhash.xxh3_128_hexdigest(identity))
        self.complete = not size
        self.planned: dict[int, int] = {}

    def path(self, number: int) -> str:
        """Return the path of a chunk."""
        return f"{self._folder}/{number}"

    def length(self, number: int) -> int:
        """Return the bytes of a chunk; the last one of an object may be shorter."""
        return min(self.chunk, self.size - number * self.chunk)

    def numbers(self, begin: int, end: int) -> range:
        """Return the numbers of the chunks of a byte range."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"{begin}-{end} is not a byte range of an object of {self.size} bytes")
        return range(begin // self.chunk, -(-end // self.chunk) if end > begin else begin // self.chunk)

    def is_aligned(self, begin: int, end: int) -> bool:
        """Return whether a byte range consists of whole chunks."""
        return begin % self.chunk == 0 and end <= self.size and (end % self.chunk == 0 or end == self.size)

    def present(self, begin: int, end: int) -> bool:
        """Return whether all chunks of a byte range are present."""
        return all(os.path.exists(self.path(number)) for number in self.numbers(begin, end))

    def check_complete(self) -> bool:
        """Return whether all chunks are present; once they were, it looks only after one was missed."""
        self.complete = self.complete or self.present(0, self.size)
        return self.complete

    def open(self, number: int) -> Chunk | None:
        """Open a chunk and record its use; return None if it is missing or corrupt."""
        path, size = self.path(number), self.length(number)
        try:
            fd = os.open(path, _READ)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and os.path.exists(path):
                return Chunk(-1, path, size, self.cache)
            self.complete = False
            return None
        status = os.fstat(fd)
        trailer = os.pread(fd, _TRAILER.size, size)
        intact = stat.S_ISREG(status.st_mode) and status.st_size == size + _TRAILER.size == len(trailer) + size
        if not (intact and _lock(fd, fcntl.LOCK_SH)):
            os.close(fd)
            self.complete = False
            if not intact:
                self._remove_corrupt(number)
            return None
        digest, boot = _TRAILER.unpack(trailer)
        if boot != _boot() and not self._verify(fd, number, digest):
            os.close(fd)
            return None
        if status.st_mtime_ns >= _PLANNED_BEFORE:
            with contextlib.suppress(OSError):
                os.utime(fd)
        return _kept(Chunk(fd, path, size, self.cache))

    def _verify(self, fd: int, number: int, digest: int) -> bool:
        """Compare a chunk of an earlier boot with its hash; delete it if that differs."""
        size = self.length(number)
        if xxhash.xxh3_64_intdigest(os.pread(fd, size, 0)) != digest:
            self._remove_corrupt(number)
            return False
        with contextlib.suppress(OSError):
            times = os.fstat(fd)
            writable = os.open(self.path(number), _WRITE)
            try:
                os.pwrite(writable, _TRAILER.pack(digest, _boot()), size)
                os.utime(writable, ns=(times.st_atime_ns, times.st_mtime_ns))
            finally:
                os.close(writable)
        return True

    def _remove_corrupt(self, number: int) -> None:
        if not self.cache.corrupt:
            logger.warning("cache: chunk %d of %s is corrupt; it is fetched again", number, self.url)
        self.cache.corrupt += 1
        self.complete = False
        with contextlib.suppress(OSError):
            os.unlink(self.path(number))
            self.cache.release(_taken(self.length(number) + _TRAILER.size))

    def claim(self, number: int, *, although_claimed: bool = False) -> Claim | None:
        """Claim a missing chunk for fetching, without waiting; None if another claim exists, or it is present now.

        Args:
            although_claimed: ignore the claims of others, whose requests hang.
        """
        part = self.path(number) + (f".{secrets.token_hex(8)}.part" if although_claimed else ".part")
        if self.cache.disabled:
            return None
        for _ in range(10):  # others delete the folder or the part between two calls
            try:
                fd = os.open(part, _WRITE | os.O_CREAT, 0o600)
            except FileNotFoundError:
                if not self.cache.make_object(self._folder, self.url, self.version, self.size):
                    return None
                continue
            except OSError as error:
                self.cache.disable(error)
                return None
            if not _lock(fd, fcntl.LOCK_EX):
                os.close(fd)
                return None
            claim = Claim(fd, self, number, part)
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), os.stat(part)):
                    if not os.path.exists(self.path(number)):
                        return claim
                    claim.drop()
                    return None
            claim.close()
        return None

    def plan_uses(self, numbers: Int64s, uses: Int64s, *, until: int = FAR) -> None:
        """Record when a plan of this process will next read chunks.

        Chunks in no plan of a running process are evicted first, then those with the farthest next use.

        Args:
            numbers: int64[n], numbers of chunks, each once.
            uses: int64[n], the position in the plan that reads each chunk next; `FAR` if there is none.
            until: do not change chunks whose recorded use is after this position.
        """
        slot, now, planned = self.cache.slot(), time.time_ns(), self.planned
        if not slot:
            return
        for number, use in zip(numbers.tolist(), uses.tolist(), strict=True):
            recorded = min(use, FAR) * _SCALE + slot
            if until == FAR:
                if planned.get(number) == recorded:
                    continue
                planned[number] = recorded
            elif planned.get(number, 0) // _SCALE > until:
                continue
            else:
                planned.pop(number, None)
            with contextlib.suppress(OSError):
                path = self.path(number)
                if until < FAR and self.cache.sharers > 1:
                    before = os.stat(path).st_mtime_ns
                    if before < _PLANNED_BEFORE and before // _SCALE > until:
                        continue
                os.utime(path, ns=(now, recorded))


def _is_locked(path: str) -> bool:
    """Return whether a process has locked a file."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return False
    try:
        return not _lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


class _File(NamedTuple):
    """A chunk file: path, bytes on the disk, times of the next and the last use in nanoseconds."""

    path: str
    taken: int
    changed: int
    used: int


class ChunkCache:
    """The chunks in a folder. Thread-safe.

    If the folder cannot be written to (a full disk, a read-only or deleted folder), or has no locks, the cache logs one
    warning and is *disabled*: present chunks are still read, but no more are stored.

    Attributes:
        size: maximum number of bytes of all files.
        chunk: bytes of a chunk.
        readers: processes that read ahead; None if the folder cannot be used.
        disabled: whether writing has stopped.
        corrupt: number of chunks that were invalid.
        kept_open: descriptors of the chunks that this process keeps open.
        sharers: number of processes that read ahead, as last counted.
    """

    def __init__(self, folder: Path, size: int, other_bytes: Callable[[], int] = lambda: 0) -> None:
        """Open or create the cache.

        Args:
            folder: a folder for the cache alone, created with mode 0700.
            size: maximum number of bytes of all files.
            other_bytes: returns the bytes of other files that share the size; called often, and under a lock.
        """
        self.size, self.folder, self._other_bytes = size, folder.absolute(), other_bytes
        self.chunk = max(SMALLEST, min(CHUNK, 1 << (size // _CHUNKS).bit_length() >> 1))
        self.disabled, self.corrupt, self.kept_open = False, 0, set[int]()  # single operations need no lock
        self.readers: Readers | None = None
        self._mutex, self._fd = threading.Lock(), -1
        self._objects: weakref.WeakValueDictionary[tuple[str, str, int], CachedObject] = weakref.WeakValueDictionary()
        self._slot: Reader | None = None
        self._retry_at, self.sharers = 0.0, 1
        raise_file_limit()
        _open.add(self)
        try:
            for path in (self.folder, self.folder / "readers"):
                os.makedirs(path, mode=0o700, exist_ok=True)
            self.readers = Readers(str(self.folder / "readers"))
            self._has_chunk()  # also if the folder is read-only
            with self._locked():
                if not self._has_chunk():
                    os.pwrite(self._fd, self.chunk.to_bytes(8, "little"), 8)
                    self._set_used(self._scan()[1])
        except OSError as error:
            self.disable(error)

    def open(self, url: str, version: str, size: int) -> CachedObject:
        """Return the chunks of an object; one `CachedObject` is shared by all callers in the process.

        Args:
            url: URL of the object.
            version: an ETag or similar, which changes when the content does.
            size: size of the object in bytes.
        """
        found = self._objects.get((url, version, size))
        return found or self._objects.setdefault((url, version, size), CachedObject(self, url, version, size))

    def _has_chunk(self) -> bool:
        """Take the size of chunks from the folder; return whether it has one."""
        with contextlib.suppress(OSError):
            chunk = int.from_bytes((self.folder / "used").read_bytes()[8:16], "little")
            if SMALLEST <= chunk <= CHUNK and chunk & (chunk - 1) == 0:
                self.chunk = chunk
                return True
        return False

    def make_object(self, folder: str, url: str, version: str, size: int) -> bool:
        """Create the folder of an object; return False if the cache cannot be written to."""
        if self.disabled or not self.reserve(_FOLDER_SIZE):
            return False
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            note = json.dumps({"url": url, "version": version, "size": size})
            temporary = f"{folder}/.{secrets.token_hex(8)}"
            Path(temporary).write_text(note)
            os.rename(temporary, folder + "/object")
        except OSError as error:
            self.disable(error)
            return False
        return True

    def disable(self, error: OSError) -> None:
        """Stop writing to the cache; log the reason, once."""
        if not self.disabled:
            self.disabled = True
            reason = error.strerror or error
            logger.warning("the cache in %s is disabled, data is read without it: %s", self.folder, reason)

    def slot(self) -> int:
        """Return the number of this process among those with plans, above 0; 0 if there are too many."""
        if self._slot is None and self.readers is not None:
            self._slot = self.readers.join(0, 0)
        return 0 if self._slot is None else self._slot.slot

    def count_sharers(self) -> None:
        """Count the processes that read ahead, which share the size."""
        if self.readers is not None:
            self.sharers = max(1, len(self.readers.live()))

    def capacity(self) -> int:
        """Return the number of bytes that objects may take now: the size without that of other files."""
        return max(0, self.size - self._other_bytes() - _FIXED)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of those that reserve and evict in a block. Raises `OSError`."""
        with self._mutex:
            if self._fd < 0:
                self._fd = os.open(self.folder / "used", _WRITE | os.O_CREAT, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def used(self) -> int:
        """Return the bytes that all files take, as last counted."""
        return int.from_bytes(os.pread(self._fd, 8, 0), "little", signed=True) if self._fd >= 0 else 0

    def _set_used(self, used: int) -> None:
        os.pwrite(self._fd, used.to_bytes(8, "little", signed=True), 0)

    def reserve(self, size: int, fd: int = -1, length: int = 0, changed: int = 0) -> bool:
        """Count bytes as used, and evict chunks if they do not fit; return whether they are counted.

        Args:
            size: number of bytes; with 0, chunks are evicted only if they take more than the capacity.
            fd: descriptor of the part that will have them, which gets its final length, so that others count it.
            length: that length.
            changed: modification time of that part: chunks that are needed before it are not evicted for it.
        """
        if self.disabled:
            return False
        try:
            with self._locked():
                used, capacity = self.used, self.capacity()
                if used + size > capacity and time.monotonic() >= self._retry_at:
                    began = time.monotonic()
                    used = self._evict(min(int(_KEEP * capacity), capacity - size), changed)
                    if used + size > capacity:  # looking at all files for each chunk would take too long
                        now = time.monotonic()
                        self._retry_at = now + _RETRY * (now - began)
                fits = used + size <= capacity
                if fits and fd >= 0:
                    os.ftruncate(fd, length)
                self._set_used(used + size if fits else used)
                return fits
        except OSError as error:
            self.disable(error)
            return False

    def release(self, size: int) -> None:
        """Count bytes as free again."""
        with contextlib.suppress(OSError), self._locked():
            self._set_used(self.used - size)

    def _evict(self, target: int, changed: int) -> int:
        """Evict chunks until at most `target` bytes are used, and return the bytes that are then used.

        The caller has the lock.
        """
        files, used = self._scan()
        if used > target:
            live = {} if self.readers is None else self.readers.live()

            def order(changed: int, used: int) -> tuple[bool, int]:
                planned = changed < _PLANNED_BEFORE and changed % _SCALE in live
                return planned, -changed if planned else used

            last = order(changed, 0) if 0 < changed < _PLANNED_BEFORE else (True, 0)
            for key, file in sorted((order(file.changed, file.used), file) for file in files):
                if used <= target or key > last:
                    break
                if _remove(file.path):
                    used -= file.taken
        return used

    def _scan(self) -> tuple[list[_File], int]:
        """Return the chunks of all objects, and the bytes that all files take.

        Parts of dead processes and empty folders are deleted.
        """
        files, used = list[_File](), 0
        for name in filter(_OBJECT.fullmatch, os.listdir(self.folder)):
            folder = os.path.join(self.folder, name)
            chunks = 0
            for found in _list(folder):
                match = _CHUNK.fullmatch(found.name)
                if match is None or (match[2] and _remove(found.path)):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = found.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        taken = _taken(status.st_size) if status.st_size else 0
                        files.append(_File(found.path, taken, status.st_mtime_ns, status.st_atime_ns))
                        used += taken
                        chunks += 1
            if chunks or not _remove_folder(folder):
                used += _FOLDER_SIZE
        return files, used

    def list(self) -> list[Cached]:
        """Return the objects of the cache, sorted by URL."""
        return sorted(cached for _, cached in self._described()) if self.readers is not None else []

    def _described(self) -> Iterator[tuple[str, Cached]]:
        """Yield the folder of each object, and the object as `list` shows it."""
        for name in filter(_OBJECT.fullmatch, os.listdir(self.folder)):
            folder = os.path.join(self.folder, name)
            present, used = 0, 0
            for found in _list(folder):
                match = _CHUNK.fullmatch(found.name)
                with contextlib.suppress(FileNotFoundError):
                    if match and not match[2] and found.is_file(follow_symlinks=False):
                        status = found.stat(follow_symlinks=False)
                        present, used = present + status.st_size - _TRAILER.size, max(used, status.st_atime_ns)
            with contextlib.suppress(OSError, ValueError, KeyError):
                note = json.loads(Path(folder, "object").read_bytes())
                yield folder, Cached(note["url"], note["version"], present, note["size"], used / 1e9)

    def clear(self, prefix: str | None = None) -> int:
        """Delete the chunks of objects whose URL begins with a prefix, or of all; return the number of bytes freed.

        Chunks that a process reads are kept.
        """
        freed = 0
        if self.readers is None:
            return 0
        with self._locked():
            for folder, cached in list(self._described()):
                if prefix is None or cached.url.startswith(prefix):
                    for found in _list(folder):
                        if found.name.isdigit():
                            size = found.stat(follow_symlinks=False).st_size - _TRAILER.size
                            freed += size if _remove(found.path) else 0
            self._set_used(self._scan()[1])
        return freed

    def close(self) -> None:
        """Close the cache, which may not be used afterwards."""
        self.disabled, self.readers = True, None
        if self._slot is not None:
            self._slot.close()
        with self._mutex:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def _reset(self) -> None:
        """Open the lock again in a forked child, and take another slot: those of the parent are not its own."""
        self._mutex, self._slot = threading.Lock(), None
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _list(folder: str) -> list[os.DirEntry[str]]:
    try:
        if os.path.islink(folder):
            return []
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _remove(path: str) -> bool:
    """Delete a file unless a process has locked it; return whether it is deleted."""
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        return True
    except OSError:  # a link
        return False
    try:
        if not _lock(fd, fcntl.LOCK_EX):
            return False
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _remove_folder(folder: str) -> bool:
    """Delete the folder of an object without chunks; return whether it is deleted."""
    names = os.listdir(folder) if os.path.isdir(folder) and not os.path.islink(folder) else [""]
    if any(name != "object" and not name.startswith(".") for name in names):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)


class Reader(_Open):
    """A process that reads ahead, until `close` or the end of the process. Attribute `slot`: its number, above 0."""

    __slots__ = ("slot",)

    def __init__(self, fd: int, slot: int) -> None:
        super().__init__(fd)
        self.slot = slot


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
        first = secrets.randbelow(READERS)  # so that the slot of a dead process is hardly ever that of the next one
        for slot in (1 + (first + number) % READERS for number in range(READERS)):
            fd = os.open(f"{self._folder}/{slot}", _WRITE | os.O_CREAT, 0o600)
            if _lock(fd, fcntl.LOCK_EX):
                os.pwrite(fd, self._ROW.pack(run, rank), 0)
                return Reader(fd, slot)
            os.close(fd)
        return None

    def live(self) -> dict[int, tuple[int, int]]:
        """Return run and rank of the readers that are alive, by their slots."""
        found = {}
        for slot in map(int, filter(str.isdigit, os.listdir(self._folder))):
            path = f"{self._folder}/{slot}"
            with contextlib.suppress(OSError, struct.error):
                if _is_locked(path):
                    found[slot] = self._ROW.unpack(Path(path).read_bytes())
        return found

    def ranks(self, run: int) -> list[int]:
        """Return the ranks of a run whose readers are alive on this machine, ascending and each once."""
        return sorted({rank for other, rank in self.live().values() if other == run})


def _close_inherited() -> None:
    """Close the parent's files in a forked child, which would keep their locks after the parent's death."""
    for each in list(_open):
        each._reset() if isinstance(each, ChunkCache) else each.close()


os.register_at_fork(after_in_child=_close_inherited)
