"""The chunks of remote objects in the cache: files of a fixed size, shared by the processes of a machine.

If a cache size is set, reading ahead stores the fetched bytes here, so that later epochs and other processes do not
fetch them again.

    folder/<32 hex>/object     URL, version and size of an object
    folder/<32 hex>/<n>        chunk n of the object, then its hash and the boot in which it was written or verified
    folder/<32 hex>/<n>.part   a chunk that is being fetched

- A chunk is present if its file exists: it is written as ``<n>.part`` and renamed when it is complete.
- Who fetches a chunk holds a lock (``flock``) on its part, which the kernel releases when the process dies.
- Who reads a chunk has it open, with a shared lock; an unlinked file stays readable. `folder.py` says what is evicted.
- Hashes are compared when a chunk was written before the last start of the machine: its bytes may not have reached the
  disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import stat
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.storage.cache.folder import (
    FOLDER_SIZE,
    PLANNED_BEFORE,
    READ,
    SCALE,
    TRAILER,
    WRITE,
    DiskCache,
    Reader,
    lock_file,
    taken_by,
)
from feedmill.storage.local import file_limit, raise_file_limit
from feedmill.storage.locks import boot_id

logger = logging.getLogger("feedmill")

Int64s = npt.NDArray[np.int64]

SMALLEST, CHUNK, _CHUNKS = 1 << 16, 1 << 20, 512
"""Bytes of a chunk: the smallest of which the size has this number, or more; a power of two between these two.

A request has several chunks, so larger ones would not be faster. Of a block of small samples, whose ends lie within
chunks, they would fetch more than is needed.
"""
FAR = 10**15 - 1
"""Position in a plan that stands for no further use."""
_FILES, _PINNED = 4, 0.75
"""The chunks that a process keeps open may have this part of its descriptors; those of all processes, of the size."""
_open: weakref.WeakSet[Chunk | Claim] = weakref.WeakSet()


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
            fd = os.open(self.path, READ)
        except OSError:
            return None
        lock_file(fd, fcntl.LOCK_SH)
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

    def put(self, data: memoryview, held: int = 0) -> Chunk | None:
        """Store the bytes of the chunk, and end the claim; return None if the cache does not take them.

        Args:
            data: the bytes.
            held: as for `CachedObject.claim`; more than then if more was requested meanwhile.
        """
        owner, size = self._object, len(data)
        cache, path = owner.cache, owner.path(self.number)
        taken = taken_by(size + TRAILER.size)
        until = max(owner.planned.get(self.number, 0), _behind(held))
        if not cache.reserve(taken, self.fd, size + TRAILER.size, until):
            self.drop()
            return None
        try:
            trailer = TRAILER.pack(xxhash.xxh3_64_intdigest(data), _boot())
            done = 0
            while done < size:
                done += os.pwrite(self.fd, data[done:], done)
            os.pwrite(self.fd, trailer, size)
            now = time.time_ns()
            planned = owner.planned.get(self.number, now)
            os.utime(self.fd, ns=(now, planned))
            os.rename(self._part, path)
            if owner.planned.get(self.number, now) != planned:  # `plan_uses` did not see the file yet
                os.utime(self.fd, ns=(now, owner.planned.get(self.number, now)))
        except OSError as error:
            self.drop()
            cache.release(taken)
            cache.disable(error)
            return None
        fd, self.fd = self.fd, -1
        lock_file(fd, fcntl.LOCK_SH)
        return _kept(Chunk(fd, path, size, cache))

    def drop(self) -> None:
        """End the claim, and delete what was written."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._part)
            self.close()


@functools.cache
def _boot() -> int:
    return xxhash.xxh3_64_intdigest(boot_id().encode())


def _behind(position: int) -> int:
    """Return the last modification time that stands for a position of a plan; 0 for 0, which is none."""
    return position and (position + 1) * SCALE - 1


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

    def may_be_claimed(self) -> bool:
        """Return whether another claim of a chunk may exist: not before the object has a folder."""
        return os.path.exists(self._folder)

    def check_complete(self) -> bool:
        """Return whether all chunks are present; once they were, it looks only after one was missed."""
        self.complete = self.complete or self.present(0, self.size)
        return self.complete

    def open(self, number: int) -> Chunk | None:
        """Open a chunk and record its use; return None if it is missing or corrupt."""
        path, size = self.path(number), self.length(number)
        try:
            fd = os.open(path, READ)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and os.path.exists(path):
                return Chunk(-1, path, size, self.cache)
            self.complete = False
            return None
        status = os.fstat(fd)
        trailer = os.pread(fd, TRAILER.size, size)
        intact = stat.S_ISREG(status.st_mode) and status.st_size == size + TRAILER.size == len(trailer) + size
        if not (intact and lock_file(fd, fcntl.LOCK_SH)):
            os.close(fd)
            self.complete = False
            if not intact:
                self._remove_corrupt(number)
            return None
        digest, boot = TRAILER.unpack(trailer)
        if boot != _boot() and not self._verify(fd, number, digest):
            os.close(fd)
            return None
        if status.st_mtime_ns >= PLANNED_BEFORE:
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
            writable = os.open(self.path(number), WRITE)
            try:
                os.pwrite(writable, TRAILER.pack(digest, _boot()), size)
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
            self.cache.release(taken_by(self.length(number) + TRAILER.size))

    def claim(self, number: int, *, although_claimed: bool = False, held: int = 0) -> Claim | None:
        """Claim a missing chunk for fetching, without waiting; None if another claim exists, or it is present now.

        Args:
            although_claimed: ignore the claims of others, whose requests hang.
            held: last position of a plan that is being read: what is needed up to it is not evicted for this chunk.
        """
        part = self.path(number) + (f".{os.urandom(8).hex()}.part" if although_claimed else ".part")
        if self.cache.disabled:
            return None
        for _ in range(10):  # others delete the folder or the part between two calls
            try:
                fd = os.open(part, WRITE | os.O_CREAT, 0o600)
            except FileNotFoundError:
                if not self.cache.make_object(self._folder, self.url, self.version, self.size, _behind(held)):
                    return None
                continue
            except OSError as error:
                self.cache.disable(error)
                return None
            if not lock_file(fd, fcntl.LOCK_EX):
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
            recorded = min(use, FAR) * SCALE + slot
            if until == FAR:
                if planned.get(number) == recorded:
                    continue
                planned[number] = recorded
            elif planned.get(number, 0) // SCALE > until:
                continue
            else:
                planned.pop(number, None)
            with contextlib.suppress(OSError):
                path = self.path(number)
                if until < FAR and self.cache.sharers > 1:
                    before = os.stat(path).st_mtime_ns
                    if before < PLANNED_BEFORE and before // SCALE > until:
                        continue
                os.utime(path, ns=(now, recorded))


class ChunkCache(DiskCache):
    """A `DiskCache` that has chunks of objects, too. Thread-safe.

    If the folder cannot be written to (a full disk, a read-only or deleted folder), or has no locks, the cache logs one
    warning and is *disabled* for chunks: present ones are still read, but no more are stored.

    Attributes:
        chunk: bytes of a chunk.
        disabled: whether writing has stopped.
        corrupt: number of chunks that were invalid.
        kept_open: descriptors of the chunks that this process keeps open.
    """

    def __init__(self, folder: Path, size: int | None = None) -> None:
        """Open or create the cache, in a folder for it alone; without a size, `start` does that."""
        super().__init__(folder, size)
        self.chunk, self.disabled, self.corrupt, self.kept_open = 0, False, 0, set[int]()  # need no lock
        self._objects_open: weakref.WeakValueDictionary[tuple[str, str, int], CachedObject] = (
            weakref.WeakValueDictionary()
        )
        self._slot: Reader | None = None
        if size is not None:
            self.start(size)

    def start(self, size: int) -> None:
        """Use the cache for chunks, with a size that may differ from that of earlier calls."""
        if self.chunk and self._size == size:
            return
        self.size, self.chunk = size, max(SMALLEST, min(CHUNK, 1 << (size // _CHUNKS).bit_length() >> 1))
        raise_file_limit()
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self._has_chunk()  # also if the folder is read-only
            with self.locked():
                if not self._has_chunk():
                    fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                    os.pwrite(self._fd, self.chunk.to_bytes(8, "little"), 8)
        except OSError as error:
            self.disable(error)

    def open(self, url: str, version: str, size: int) -> CachedObject:
        """Return the chunks of an object; one `CachedObject` is shared by all callers in the process.

        Args:
            url: URL of the object.
            version: an ETag or similar, which changes when the content does.
            size: size of the object in bytes.
        """
        key = url, version, size
        return self._objects_open.get(key) or self._objects_open.setdefault(key, CachedObject(self, *key))

    def _has_chunk(self) -> bool:
        """Take the size of chunks from the folder; return whether it has one."""
        with contextlib.suppress(OSError):
            chunk = int.from_bytes((self.folder / "used").read_bytes()[8:16], "little")
            if SMALLEST <= chunk <= CHUNK and chunk & (chunk - 1) == 0:
                self.chunk = chunk
                return True
        return False

    def make_object(self, folder: str, url: str, version: str, size: int, planned: int) -> bool:
        """Create the folder of an object, which others may delete; return False if it is not taken.

        Args:
            folder: the folder.
            url, version, size: of the object.
            planned: as for `reserve`.
        """
        if not self.reserve(FOLDER_SIZE, planned=planned):
            return False
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            note = json.dumps({"url": url, "version": version, "size": size})
            temporary = f"{folder}/.{os.urandom(8).hex()}"
            Path(temporary).write_text(note)
            os.rename(temporary, folder + "/object")
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.folder.is_dir():
                return True  # an eviction deleted the folder of the object, which had no chunks yet
            self.disable(error)
            return False
        return True

    def reserve(self, size: int, fd: int = -1, length: int = 0, planned: int = 0) -> bool:
        """Reserve bytes as `DiskCache` does; return False if the cache is disabled."""
        if self.disabled:
            return False
        try:
            return super().reserve(size, fd, length, planned)
        except OSError as error:
            self.disable(error)
            return False

    def was_replaced(self) -> None:
        if self.chunk:  # another process may have begun it with chunks of another size
            self.disable(OSError(errno.ENOENT, "it was deleted"))

    def disable(self, error: OSError) -> None:
        """Stop writing to the cache; log the reason, once."""
        if not self.disabled:
            self.disabled = True
            reason = error.strerror or error
            logger.warning("the cache in %s is disabled, data is read without it: %s", self.folder, reason)

    def join(self, run: int, rank: int) -> Reader | None:
        """Add this process to those that read ahead (`Readers.join`); None if the folder cannot be used, too."""
        if not self.disabled:
            try:
                return self.readers.join(run, rank)
            except OSError as error:
                self.disable(error)
        return None

    def slot(self) -> int:
        """Return the number of this process among those with plans, above 0; 0 if there are too many."""
        self._slot = self._slot or self.join(0, 0)
        return 0 if self._slot is None else self._slot.slot

    def close(self) -> None:
        """Release all files, and store no more chunks."""
        super().close()
        self.disabled = True
        if self._slot is not None:
            self._slot.close()

    def reset(self) -> None:
        """Take another slot in a forked child, and other locks: those of the parent are not its own."""
        super().reset()
        self._slot = None


def disk_cache(folder: Path) -> ChunkCache:
    """Return the cache of a folder: the same object for all callers in the process."""
    with _lock:
        return _caches.setdefault(os.path.abspath(folder), ChunkCache(folder))


_lock = threading.Lock()
_caches: dict[str, ChunkCache] = {}


def _close_inherited() -> None:
    """Close the parent's files in a forked child, which would keep their locks after the parent's death."""
    global _lock
    _lock = threading.Lock()
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_close_inherited)
