"""Mount a dataset as a read-only file system.

FUSE calls the operations from many threads, with paths and handles. They do not depend on FUSE, so tests call them
directly. Errors are raised as `OSError` with an errno: ENOENT, EISDIR, ENOTDIR, EROFS, EBADF, and EIO for data that
does not match the index.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, StorageError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON, database
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.index import IndexRows, write_index
from feedmill.formats.jsonl import JSONL
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.offsets import Int64s
from feedmill.formats.sniff import open_found, sniff
from feedmill.formats.tar.dataset import ScannedShards, ShardTable, TarDataset
from feedmill.jobs.options import verb
from feedmill.kernels.files import tar
from feedmill.mounting.catalog import Catalog, File, IndexCatalog, LinesCatalog
from feedmill.mounting.options import Mount
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.limits import max_unpacked, too_large

logger = logging.getLogger("feedmill")

DEVICE = "/dev/fuse"
_ENDED = 8
"""Exit code of FUSE if a signal, such as that of Ctrl-C, ended a mounted file system."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


@verb(Mount)
def mount(options: Mount) -> None:
    """Tars may be prepared or not; others than prepared ones are scanned first.

    Raises:
        ConfigError: The mount point cannot be used, or the dataset has no parts.
        MissingExtra: mfusepy is not installed.
        StorageError: FUSE is not available on this machine.
        NotFound, DataError: As in `feedmill.open`.
    """
    url, mountpoint = os.fspath(options.url), os.fspath(options.mountpoint)
    _check_mountpoint(mountpoint)
    try:
        import mfusepy
    except ImportError:
        raise MissingExtra("mounting needs mfusepy, which is not installed", "mount") from None
    except OSError as error:  # importing it loads the FUSE library
        raise _no_fuse(str(error)) from None
    if not os.path.exists(DEVICE):
        raise _no_fuse(f"{DEVICE} does not exist")
    logging.getLogger("fuse").setLevel(logging.CRITICAL)
    with operations(url, sample_folders=options.sample_folders) as made:
        if options.ready is not None:
            options.ready()
        try:
            mfusepy.FUSE(
                made,
                os.path.abspath(mountpoint),
                foreground=not options.detach,
                nothreads=False,
                ro=True,
                fsname="feedmill",
                kernel_cache=True,
                entry_timeout=3600,
                attr_timeout=3600,
                negative_timeout=3600,
            )
        except RuntimeError as error:
            if error.args == (_ENDED,):
                return
            raise StorageError(
                f"the file system could not be mounted: FUSE returned {error}",
                file=mountpoint,
                kind="mount-failed",
                fix="Check that you may use /dev/fuse, that 'fusermount3' is installed, and that the folder is empty.",
            ) from None


def _check_mountpoint(path: str) -> None:
    if not os.path.isdir(path):
        raise ConfigError(
            "the mount point is not a folder", file=path, kind="mount-failed", fix="Create the folder first."
        )
    if os.path.ismount(path):
        raise ConfigError(
            "the mount point is already in use", file=path, kind="mount-failed", fix=f"Run 'fusermount3 -u {path}'."
        )
    if os.listdir(path):
        raise ConfigError("the mount point is not empty", file=path, kind="mount-failed", fix="Use an empty folder.")


def _no_fuse(why: str) -> StorageError:
    return StorageError(
        f"FUSE is not available: {why}",
        kind="mount-failed",
        fix="Install FUSE (Debian: apt install fuse3). In a container, pass the device with --device /dev/fuse"
        " --cap-add SYS_ADMIN.",
    )


@contextmanager
def operations(url: str, *, sample_folders: bool = False) -> Iterator[Operations]:
    """Open the file system of a dataset for the duration of the block. Raises the errors of `mount`."""
    found = sniff(url)
    if found.format is JSONL:
        lines = open_found(found, url)
        assert isinstance(lines, JsonlDataset)
        sizes = _LineSizes(lines)
        total = found.store.stat(found.name).size
        yield Operations(LinesCatalog(sizes, len(lines), sample_folders), RecordContents(lines), size=total)
        return
    if found.format is ENERGON and (database := _usable_index(found.store)) is not None:
        info = energon.read_info(found.store)
        table = energon.PreparedShards(found.store, info, list(info), None, None)
        yield _over(found.store, table, database, sample_folders)
        return
    if found.format is ENERGON:
        yield from _scanned(
            found.store, [entry.path for entry in found.store.files(suffixes=(".tar",))], url, sample_folders
        )
        return
    dataset = open_found(found, url)
    if not isinstance(dataset, TarDataset):
        raise ConfigError(
            "this dataset cannot be mounted: its samples have no parts to show as files",
            file=url,
            kind="no-parts",
            fix="Mount tars (a folder, a tar, a manifest or an index of them), or a JSONL file.",
        )
    for remark in dataset.remarks:
        logger.warning("%s", remark)
    yield from _scanned(dataset.store, dataset.table.shards, url, sample_folders)


def _scanned(store: Store, shards: Sequence[str], url: str, sample_folders: bool) -> Iterator[Operations]:
    scanned = ScannedShards(store, shards)
    with tempfile.TemporaryDirectory(prefix="feedmill-mount-") as folder:
        database = Path(folder) / "index.sqlite"
        try:
            write_index(database, IndexRows.of(enumerate(scanned.scans)))
        except DataError as error:
            error.file = error.file or url
            raise
        yield _over(store, scanned, database, sample_folders)


def _over(
    store: Store, table: energon.PreparedShards | ScannedShards, database: Path, sample_folders: bool
) -> Operations:
    size = sum(store.stat(shard).size for shard in table.shards)
    contents = TarContents(store, table.shards, table)
    return Operations(IndexCatalog(database, sample_folders), contents, size=size)


def _usable_index(store: Store) -> Path | None:
    """Return the index if it has the tables of Energon 7.0 or later, otherwise None."""
    if not store.exists(database.INDEX):
        return None
    path = cached_copy(store, database.INDEX)
    connection = database.open_index(path)
    try:
        known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    finally:
        connection.close()
    return path if {"samples", "sample_parts"} <= known else None


class _LineSizes(dict[int, int]):
    """Size in bytes of each record without surrounding white space, read on access."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self.dataset = dataset

    def __missing__(self, number: int) -> int:
        return len(self.dataset.read_raw([number])[0].raw("json"))


class Operations:
    """Read-only file system over a catalog and its contents.

    Args:
        catalog: The names of folders and files.
        contents: Opens the files.
        size: Size of the whole dataset in bytes, for ``df``.
    """

    use_ns = True

    def __init__(self, catalog: Catalog, contents: Contents, *, size: int = 0) -> None:
        self.catalog, self.contents, self.size = catalog, contents, size
        self._time = time.time_ns()
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        self._handles = itertools.count(1)
        self._files: dict[int, Content] = {}
        self._listings: dict[int, _Listing] = {}

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return the kind, size and times of a file or folder."""
        found = self._look_up(path)
        if found is None:
            return self._attributes(stat.S_IFDIR | 0o555, 2, 0)
        return self._attributes(stat.S_IFREG | 0o444, 1, found.size)

    def _attributes(self, mode: int, links: int, size: int) -> dict[str, Any]:
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._time)
        return {
            "st_mode": mode,
            "st_nlink": links,
            "st_size": size,
            "st_blocks": -(-size // 512),
            **times,
            **self._owner,
        }

    def _look_up(self, path: str) -> File | None:
        """Return the file, or None for a folder. Raises ENOENT."""
        relative = path.strip("/")
        try:
            if not relative or self.catalog.is_folder(relative + "/"):
                return None
            found = self.catalog.file(relative)
        except FeedmillError as error:
            raise self._broken(error, path) from None
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def access(self, path: str, mode: int) -> int:
        """Check access: reading is allowed, writing is not."""
        self._look_up(path)
        if mode & os.W_OK:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return 0

    def open(self, path: str, flags: int) -> int:
        """Return a handle for reading."""
        if flags & _WRITING:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        found = self._look_up(path)
        if found is None:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        try:
            content = self.contents.open(found)
        except FeedmillError as error:
            raise self._broken(error, path) from None
        handle = next(self._handles)
        self._files[handle] = content
        return handle

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return `size` bytes of an open file; fewer only at its end."""
        try:
            return self._files[fh].read(offset, size)
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path) from None
        except FeedmillError as error:
            raise self._broken(error, path) from None

    def _broken(self, error: FeedmillError, path: str) -> OSError:
        logger.error("%s: %s", path, error)
        return OSError(errno.EIO, os.strerror(errno.EIO), path)

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002
        """Close a handle."""
        self._files.pop(fh, None)
        return 0

    def opendir(self, path: str) -> int:
        """Return a handle for listing."""
        if self._look_up(path) is not None:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        relative = path.strip("/")
        folder = f"{relative}/" if relative else ""
        handle = next(self._handles)
        self._listings[handle] = _Listing(self.catalog, folder)
        return handle

    def readdir_with_offset(self, path: str, offset: int, fh: int) -> Iterator[tuple[str, int, int]]:
        """Yield names, kinds and offsets of entries from `offset` on; the caller may stop at any time."""
        try:
            listing = self._listings[fh]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path) from None
        return self._entries(listing, offset, path)

    def _entries(self, listing: _Listing, offset: int, path: str) -> Iterator[tuple[str, int, int]]:
        try:
            yield from listing.after(offset)
        except FeedmillError as error:
            raise self._broken(error, path) from None

    def releasedir(self, path: str, fh: int) -> int:  # noqa: ARG002
        """Close a handle."""
        self._listings.pop(fh, None)
        return 0

    def statfs(self, path: str) -> dict[str, int]:  # noqa: ARG002
        """Return the size of the file system, all of it in use."""
        blocks = -(-self.size // 4096)
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": blocks, "f_bfree": 0, "f_bavail": 0, "f_namemax": 1024}


class _Listing:
    """Listing of a folder that continues where the last call stopped, so a large folder is never loaded in full."""

    def __init__(self, catalog: Catalog, folder: str) -> None:
        self.catalog, self.folder = catalog, folder
        self._begin()

    def _begin(self) -> None:
        self._children = self._all()
        self._place = 0
        self._last: tuple[str, int, int] | None = None

    def _all(self) -> Iterator[tuple[str, int]]:
        yield ".", stat.S_IFDIR
        yield "..", stat.S_IFDIR
        for child in self.catalog.children(self.folder):
            yield child.name, stat.S_IFDIR if child.is_folder else stat.S_IFREG

    def after(self, offset: int) -> Iterator[tuple[str, int, int]]:
        """Yield the entries after `offset`. The caller may not have consumed the last entry that was yielded."""
        if offset == self._place - 1 and self._last is not None:
            yield self._last
        elif offset != self._place:
            self._begin()
            for _ in itertools.islice(self._children, offset):
                self._place += 1
        for name, kind in self._children:
            self._place += 1
            self._last = (name, kind, self._place)
            yield self._last


class Content(ABC):
    """Interface of an open file."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer at the end of the file."""


class Stored(Content):
    """Part that is stored contiguously in a shard."""

    def __init__(self, store: Store, shard: str, begin: int, size: int) -> None:
        self.store, self.shard, self.begin, self.size = store, shard, begin, size

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        return self.store.read(self.shard, self.begin + offset, length) if length > 0 else b""


class Held(Content):
    """Part assembled in memory (a sparse file), or a record."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


class Contents(ABC):
    """Interface that opens a catalog's files."""

    @abstractmethod
    def open(self, file: File) -> Content:
        """Open a file. Raises `DataError` if the bytes do not match the index."""


class TarContents(Contents):
    """Opener of parts in tars. It compares headers with the index, so that a stale index never yields wrong bytes.

    Args:
        store: Store of the shards.
        shards: Paths of the shards, in the catalog's numbering.
        table: Offsets of the shards' samples, in the same numbering.
    """

    def __init__(self, store: Store, shards: Sequence[str], table: ShardTable) -> None:
        self.store, self.shards, self.table = store, shards, table

    def open(self, file: File) -> Content:
        if not (0 <= file.shard < len(self.shards) and 0 <= file.sample < len(self.table.offsets(file.shard)) - 1):
            raise self._stale(file, None)
        path = self.shards[file.shard]
        header = self.store.read(path, file.offset - tar.BLOCK, tar.BLOCK) if file.offset >= tar.BLOCK else b""
        name = file.name.encode("utf-8", "surrogateescape") + b"\0"
        plain = header.startswith(name) and header[124:135] == b"%011o" % file.size and header[156] == 0x30
        if plain and not header[345] and not self._extended(file):
            return Stored(self.store, path, file.offset, file.size)
        offsets = self.table.offsets(file.shard)
        begin, end = int(offsets[file.sample]), int(offsets[file.sample + 1])
        for member in tar.walk(_Window(self.store, path, begin, end), 0, end - begin):  # type: ignore[arg-type]
            if member.name == file.name and member.size == file.size:
                if member.sparse is None:
                    return Stored(self.store, path, begin + member.data, member.size)
                limit = max_unpacked(end - begin)
                if member.size > limit:
                    raise too_large(limit, file=self.store.locate(path), record=member.name, offset=begin)
                return Held(tar.expand(_Window(self.store, path, begin, end), member))  # type: ignore[arg-type]
        raise self._stale(file, path)

    def _stale(self, file: File, path: str | None) -> DataError:
        return DataError(
            "the file is not at the location given by the index",
            file=self.store.url if path is None else self.store.locate(path),
            record=file.name,
            offset=file.offset,
            kind="stale-index",
            fix="The shard changed after it was indexed: run 'feedmill prepare' again.",
        )

    def _extended(self, file: File) -> bool:
        """Return whether the first header of the sample is an extended header, which the fast path cannot read."""
        offsets: Int64s = self.table.offsets(file.shard)
        begin = int(offsets[file.sample])
        if file.offset - tar.BLOCK == begin:
            return False
        before = self.store.read(self.shards[file.shard], begin, tar.BLOCK)
        return before[156:157] in (b"x", b"g", b"L")


class RecordContents(Contents):
    """Opener of whole records of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def open(self, file: File) -> Content:
        return Held(self.dataset.read_raw([file.sample])[0].raw("json"))


class _Window:
    """Range of a file, read on access, with the buffer operations that `tar.walk` needs."""

    def __init__(self, store: Store, path: str, begin: int, end: int) -> None:
        self.store, self.path, self.begin, self.end = store, path, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, piece: slice) -> bytes:
        start, stop, _ = piece.indices(len(self))
        return self.store.read(self.path, self.begin + start, stop - start) if stop > start else b""
