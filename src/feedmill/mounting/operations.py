"""Operations of the read-only file system, which FUSE calls from many threads with paths and handles.

They do not depend on FUSE, so tests call them directly. Errors are raised as `OSError` with an errno: ENOENT, EISDIR,
ENOTDIR, EROFS, EBADF, and EIO for data that does not match the index.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from feedmill.errors import FeedmillError
from feedmill.mounting.catalog import Catalog, File
from feedmill.mounting.contents import Content, Contents

logger = logging.getLogger("feedmill")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


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
