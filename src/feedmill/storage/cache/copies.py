"""Local copies of remote files, for libraries that open a file by path, such as SQLite.

Copies lie in the cache folder and are reused by later runs; `DiskCache` limits their size. If the cache folder is full
or cannot be written to, they lie in a private folder that is removed when the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec
import numpy as np

from feedmill.errors import FeedmillError
from feedmill.storage.base import Entry, Store, storage_error
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.folder import NOTE, DiskCache, HeldFile, Note, read_note
from feedmill.storage.folders import cache_folder, private_folder
from feedmill.storage.hashed import hash_file
from feedmill.storage.local import LocalStore, publish, replace
from feedmill.storage.staging import staged

if TYPE_CHECKING:
    from feedmill.storage.base import Int64s
    from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

WORK = "work"
"""Kind of copies of unfinished work, which are of no use when the job has ended."""
_HASHED = 16 << 20
"""Copies up to this number of bytes are hashed at each use, which takes a few milliseconds."""
_NOTE_SIZE = 4096
"""Bytes that are reserved for the note of a copy."""
_AT_ONCE = 32 << 20
"""Bytes of ranges that are in memory at once; the store divides them into requests."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def cached_copy(store: Store, path: str) -> Path:
    """Return the path of a file on this machine: the file itself if the store is local, else a copy.

    The copy is not evicted before this process ends, so it may be opened several times. Raises as `held_copy`.
    """
    return held_copy(store, path, kind="index").keep()


def held_copy(store: Store, path: str, *, kind: str = "data") -> HeldFile:
    """Return a file on this machine: itself if the store is local, else a copy that is kept until it is closed.

    A copy is named after URL and version, so a changed file is fetched again. So is a corrupt copy, because its hash is
    stored beside it (see `_is_intact`). If several processes need a copy at once, one downloads it and the others wait.
    Leftovers of killed downloads are removed. If the cache folder is full or cannot be written to, one warning is
    logged, and the copy lies in a private folder that is removed when this process ends.

    Args:
        kind: ``index``, ``data`` for data that is used as a whole, or `WORK`; shown by ``feedmill cache list``.

    Raises:
        NotFound: there is no such file.
        StorageError: a request failed, or this machine has no folder to write to.
    """
    if store.is_local or isinstance(store, LocalStore):
        with store.local_copy(path) as file:
            return HeldFile(file)
    from feedmill.storage.remote.range_store import RangeStore

    assert isinstance(store, RangeStore)
    entry, folder = store.stat(path), cache_folder()
    try:
        return _copy_in(disk_cache(folder), store, entry, kind)
    except OSError as error:
        copy = folder / _name(store, entry)
        if error.errno in _READ_ONLY and _is_intact(copy, entry):
            return HeldFile(copy)
        reason = storage_error(error).what
    try:
        private = disk_cache(private_folder("copies"))
        _warn_once(str(folder), reason, str(private.folder))
        return _copy_in(private, store, entry, kind)
    except OSError as error:
        translated = storage_error(error, str(folder))
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            translated.fix = "Set FEEDMILL_CACHE_DIR or TMPDIR to a writable folder with enough free space."
        raise translated from None


@contextlib.contextmanager
def copied_ranges(store: Store, path: str, begins: Int64s, ends: Int64s) -> Iterator[Path]:
    """Copy ranges of a remote file to this machine, each at its own offset, until the block ends.

    The other bytes of the file are not read, and take no space on most disks.

    Args:
        begins, ends: int64[n], offsets in bytes, ascending.

    Raises:
        NotFound: there is no such file.
        StorageError: a request failed, or this machine has no space.
    """
    from feedmill.storage.folders import spool_error, spool_folder

    size = store.stat(path).size
    with spool_folder() as folder:
        copy = folder / path.rpartition("/")[2]
        with copy.open("wb") as f:
            f.truncate(size)
            for offsets, lengths in _batches(begins.tolist(), np.minimum(ends, size).tolist()):
                blocks = store.read_ranges(path, offsets, lengths)
                try:
                    for offset, block in zip(offsets, blocks, strict=True):
                        f.seek(offset)
                        f.write(block)
                    f.flush()
                except OSError as error:
                    raise spool_error(error) from None
        yield copy


def _batches(begins: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield offsets and lengths of ranges that are requested together, of about `_AT_ONCE` bytes."""
    offsets, lengths, total = list[int](), list[int](), 0
    for begin, end in zip(begins, ends, strict=True):
        for offset in range(begin, end, _AT_ONCE):
            offsets.append(offset)
            lengths.append(min(_AT_ONCE, end - offset))
            total += lengths[-1]
            if total >= _AT_ONCE:
                yield offsets, lengths
                offsets, lengths, total = [], [], 0
    if offsets:
        yield offsets, lengths


def forget_copies() -> None:
    """Delete the copies of unfinished work, of this job and of killed ones, that no process uses."""
    folder = cache_folder()
    if folder.is_dir():
        with contextlib.suppress(OSError):
            disk_cache(folder).clear(kind=WORK)


@functools.cache
def _warn_once(folder: str, reason: str, private: str) -> None:
    logger.warning(
        "%s: copies of remote files cannot be stored here (%s). This process keeps them in %s and deletes them when it"
        " ends. Set FEEDMILL_CACHE_DIR to a writable folder with enough free space.",
        folder,
        reason,
        private,
    )


def _name(store: Store, entry: Entry) -> str:
    """Return the name of the copy of one version of a file."""
    import hashlib

    digest = hashlib.sha256(f"{store.locate(entry.path)}\n{entry.version}".encode()).hexdigest()[:32]
    return f"{digest}-{entry.path.rpartition('/')[2]}"


def _copy_in(cache: DiskCache, store: RangeStore, entry: Entry, kind: str) -> HeldFile:
    """Return the copy in a cache, downloaded if needed. Raises `OSError` if the cache cannot be written to."""
    with ExitStack() as undo:
        # Held before the check, so that no process evicts the copy after it.
        held = undo.enter_context(cache.hold(_name(store, entry)))
        with cache.exclusive(held.path.name):
            if not _is_intact(held.path, entry):
                held = undo.enter_context(_download(cache, store, entry, kind))
        with contextlib.suppress(OSError):
            os.utime(_note_of(held.path))  # records the last use
        undo.pop_all()
        return held


def _is_intact(copy: Path, entry: Entry) -> bool:
    """Return whether a copy is unchanged since its download.

    Compares the hash with the one in the note; for a large copy with an unchanged modification time, only that time.
    """
    note = read_note(copy)
    try:
        status = copy.stat()
    except OSError:
        return False
    if note is None or not status.st_size == entry.size == note.size:
        return False
    if status.st_size > _HASHED and status.st_mtime_ns == note.changed:
        return True
    if hash_file(str(copy)) != note.digest:
        logger.warning("%s: this copy of a remote file is corrupt and is fetched again", copy)
        return False
    if status.st_mtime_ns != note.changed:
        with contextlib.suppress(OSError):
            _write_note(copy, note)
    return True


def _note_of(copy: Path) -> Path:
    """Return the path of the note of a copy."""
    return copy.with_name(copy.name + NOTE)


def _write_note(copy: Path, note: Note) -> None:
    """Write the note of a copy, with its current modification time."""
    note.changed = copy.stat().st_mtime_ns
    with staged(str(_note_of(copy))) as temporary:
        Path(temporary).write_bytes(msgspec.json.encode(note))
        replace(temporary, str(_note_of(copy)))


def _download(cache: DiskCache, store: RangeStore, entry: Entry, kind: str) -> HeldFile:
    """Download a file into a cache. Raises `OSError` if the cache cannot be written to."""
    with ExitStack() as stack:
        with cache.reserving(entry.size, _NOTE_SIZE) as taken:
            temporary = stack.enter_context(staged(str(cache.folder / "download")))
            os.truncate(temporary, entry.size)
        failed = stack.enter_context(ExitStack())
        failed.callback(cache.release, taken)
        file = stack.enter_context(_Sink(open(temporary, "r+b")))  # noqa: SIM115 - the sink closes it
        try:
            entry = store.download(entry.path, cast(BinaryIO, file))  # a newer entry if the file changed meanwhile
        except FeedmillError:
            if file.error is not None:
                raise file.error from None
            raise
        file.truncate(entry.size)
        file.close()
        held = cache.hold(_name(store, entry))
        note = Note(store.locate(entry.path), entry.version, entry.size, 0, hash_file(temporary), kind)
        publish(temporary, str(held.path))
        _write_note(held.path, note)
        failed.pop_all()
        return held


class _Sink:
    """A file that keeps the error of a failed write: a store may translate it to another error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
