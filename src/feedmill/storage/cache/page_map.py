"""The two files of an object in the page cache: its data, with holes, and a map of the pages that are present.

`open_files` opens or creates both. The map is a header of `HEADER` bytes and one record of 40 bytes for each page of
`PAGE` bytes. It is always allocated in full, because writing into a hole of a mapped file on a full disk kills the
process.

A map has a *session* number. It grows if the map was not closed properly or the machine was restarted. A page whose
record has another session is compared with its hash before it is used: its bytes may not have reached the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import StorageError
from feedmill.storage.boot import boot_id
from feedmill.storage.cache.page_locks import set_lock

PAGE = 128 * 1024
HEADER = 16 * 1024
LAYOUT = 1
PRESENT = 0x50414745  # not 1, so that a corrupt record hardly ever looks like a present page
FAR = (1 << 63) - 1
"""Value of `next_use` if it is unknown."""

CLAIM, WRITE, PIN, USERS = 0, 1 << 40, 2 << 40, 3 << 40
"""Offset of the locks of each kind in the map file; all but `USERS` have one byte for each page."""

RECORD = np.dtype(
    [
        ("state", "<u4"),
        ("generation", "<u4"),
        ("last_use", "<i8"),
        ("next_use", "<i8"),
        ("run", "<u4"),
        ("session", "<u4"),
        ("digest", "<u8"),
    ]
)
Records = npt.NDArray[np.void]

_MAGIC = b"FMPAGES\0"
_FIXED = struct.Struct("<8sIIQHH")
_STATE = np.dtype([("boot", "S40"), ("clean", "<u4"), ("session", "<u4")])
_STATE_AT, _DIGEST_AT, _TEXT_AT = 64, 120, 128
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_TRIES = 20
_BLOCK, _NAMES = 4096, 256


class Header(NamedTuple):
    """The object that a map belongs to: URL, version, and size in bytes."""

    url: str
    version: str
    size: int

    @property
    def pages(self) -> int:
        """Return the number of pages."""
        return -(-self.size // PAGE)

    @property
    def length(self) -> int:
        """Return the size of the map file in bytes."""
        return HEADER + self.pages * RECORD.itemsize

    @property
    def overhead(self) -> int:
        """Return the bytes that its files take on the disk besides its pages, or more.

        These are the map, the rest of the last block, the extents of the data, and the names in the folder.
        """
        return sum(-(-size // _BLOCK) * _BLOCK for size in (self.length, 1, 16 * self.pages)) + _NAMES

    @property
    def name(self) -> str:
        """Return the name of the object's files without suffix."""
        return xxhash.xxh3_128_hexdigest(f"{self.url}\0{self.version}\0{self.size}".encode("utf-8", "surrogateescape"))

    def encode(self) -> bytes:
        """Return the bytes of the header. Raises `StorageError` if URL and version do not fit into it."""
        url, version = (text.encode("utf-8", "surrogateescape") for text in (self.url, self.version))
        fixed = _FIXED.pack(_MAGIC, LAYOUT, PAGE, self.size, len(url), len(version)) if len(url) < HEADER else b""
        if not fixed or _TEXT_AT + len(url) + len(version) > HEADER:
            raise StorageError("the URL is too long for the page cache", file=self.url[:200], kind="too-large")
        digest = xxhash.xxh3_64_digest(fixed + url + version)
        return (fixed.ljust(_DIGEST_AT, b"\0") + digest + url + version).ljust(HEADER, b"\0")


class Usable(NamedTuple):
    """Open descriptors of an object's data and map."""

    data: int
    map: int

    def close(self) -> None:
        """Close both."""
        for fd in self:
            os.close(fd)


def read_header(fd: int) -> Header | None:
    """Return the header of a map file; None if it is corrupt, truncated, or has another layout. Raises `OSError`."""
    data = os.pread(fd, HEADER, 0)
    if len(data) < HEADER:
        return None
    magic, layout, page, size, n, m = _FIXED.unpack_from(data)
    text = data[_TEXT_AT : _TEXT_AT + n + m]
    digest = xxhash.xxh3_64_digest(data[: _FIXED.size] + text)
    if (magic, layout, page) != (_MAGIC, LAYOUT, PAGE) or digest != data[_DIGEST_AT:_TEXT_AT]:
        return None
    url, version = (part.decode("utf-8", "surrogateescape") for part in (text[:n], text[n:]))
    header = Header(url, version, size)
    return header if os.fstat(fd).st_size == header.length else None


def read_records(fd: int, header: Header) -> Records:
    """Return a copy of the records of a map, read without locks. Raises `OSError`."""
    data = os.pread(fd, header.length - HEADER, HEADER)
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)


def page_sizes(header: Header, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bytes of each page; the last page of an object may be shorter."""
    return np.minimum(PAGE, header.size - pages * PAGE)


def runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return begin and end of each run of True in bool[n]."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


class MappedFile:
    """A map file, mapped into memory.

    Attributes:
        records: one record for each page, shared with all processes.
    """

    def __init__(self, fd: int, header: Header) -> None:
        self._mmap = mmap.mmap(fd, header.length)
        self._state: npt.NDArray[Any] = np.frombuffer(self._mmap, _STATE, 1, _STATE_AT)
        self.records: Records = np.frombuffer(self._mmap, RECORD, header.pages, HEADER)

    @property
    def session(self) -> int:
        """Return the number of the session."""
        return int(self._state["session"][0])

    def begin(self, alone: bool) -> None:
        """Record that the map is open; begin a new session if the data may differ from the map.

        Args:
            alone: whether no other process has the map open.
        """
        state = self._state
        boot = boot_id().encode()[:40]
        if state["boot"][0] != boot or (alone and not state["clean"][0]):
            state["session"] += 1
            state["boot"] = boot
        state["clean"] = 0

    def end(self) -> None:
        """Record that the map was closed properly."""
        self._state["clean"] = 1


def make_private(header: Header, *, use: bool = True) -> tuple[Usable, MappedFile]:
    """Create data and map as memory files of this process.

    Args:
        use: whether pages will be put; if not, no memory is allocated for the map.

    Raises:
        OSError: there is not enough memory.
    """
    files = Usable(*(os.memfd_create("feedmill-pages", os.MFD_CLOEXEC) for _ in range(2)))
    _initialize(files, header, allocate=use)
    mapped = MappedFile(files.map, header)
    mapped.begin(True)
    return files, mapped


def open_files(folder: int, header: Header, *, create: bool) -> tuple[Usable, MappedFile] | None:
    """Open the files of an object.

    Args:
        folder: descriptor of their folder.
        create: whether to create absent or invalid files.

    Returns:
        Descriptors and map; None if the files are absent or invalid, and `create` is False.

    Raises:
        OSError: the files cannot be opened.
        StorageError: the name of a file belongs to something else, such as a link.
    """
    for tries_left in reversed(range(_TRIES)):
        files = None
        try:
            files = _open_pair(folder, header.name, create)
            alone = set_lock(files.map, fcntl.F_WRLCK, USERS, 1)
            if not alone:
                set_lock(files.map, fcntl.F_RDLCK, USERS, 1, wait=True)
            if is_at(folder, header.name + ".map", files.map) and is_at(folder, header.name + ".data", files.data):
                valid = read_header(files.map) == header and os.fstat(files.data).st_size == header.size
                if not valid and not create:
                    files.close()
                    return None
                if not valid and alone:
                    _initialize(files, header)
                if valid or alone:
                    mapped = MappedFile(files.map, header)
                    mapped.begin(alone)
                    set_lock(files.map, fcntl.F_RDLCK, USERS, 1)
                    return files, mapped
                if tries_left < _TRIES // 2:  # other processes have the invalid files open, and keep them
                    remove_files(folder, header.name)
        except FileNotFoundError:
            if not create:
                return None
            if not tries_left:
                raise
        except BaseException:
            if files is not None:
                files.close()
            raise
        if files is not None:
            files.close()
        time.sleep(0.002)
    raise StorageError(
        "the files of the page cache were replaced each time that they were opened", file=header.url, kind="bad-cache"
    )


def _open_pair(folder: int, name: str, create: bool) -> Usable:
    map_fd = _open_file(folder, name + ".map", create)
    try:
        return Usable(_open_file(folder, name + ".data", create), map_fd)
    except BaseException:
        os.close(map_fd)
        raise


def _open_file(folder: int, name: str, create: bool) -> int:
    try:
        fd = os.open(name, _FLAGS | (os.O_CREAT if create else 0), 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    else:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
            return fd
        os.close(fd)
    raise StorageError(
        "this is not a file of the page cache: expected a regular file with one name",
        file=name,
        kind="not-a-file",
        fix="Remove it.",
    )


def is_at(folder: int, name: str, fd: int) -> bool:
    """Return whether a name in a folder is that of the open file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _initialize(files: Usable, header: Header, *, allocate: bool = True) -> None:
    """Write the files of an object without pages. The caller must be their only user.

    The header is written last, so that files of a killed process are invalid.
    """
    encoded = header.encode()
    for fd in files:
        if os.fstat(fd).st_size:  # ext4 writes a file that was ever truncated to the disk when it is closed
            os.ftruncate(fd, 0)
    os.ftruncate(files.data, header.size)
    if allocate:
        os.posix_fallocate(files.map, 0, header.length)
    else:
        os.ftruncate(files.map, header.length)
    os.pwrite(files.map, encoded, 0)


def remove_files(folder: int, name: str) -> None:
    """Unlink data and map. Processes that have them open can still use them."""
    for suffix in (".data", ".map"):  # the map last: a data file without a map would never be found
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name + suffix, dir_fd=folder)


def remove_damaged(folder: int, name: str) -> None:
    """Unlink the files of an object whose map is corrupt or whose data is absent, unless a process uses them."""
    try:
        fd = _open_file(folder, name + ".map", False)
    except (OSError, StorageError):
        return
    try:
        if set_lock(fd, fcntl.F_WRLCK, USERS, 1) and is_at(folder, name + ".map", fd):
            with contextlib.suppress(FileNotFoundError):
                os.stat(name + ".data", dir_fd=folder, follow_symlinks=False)
                if read_header(fd) is not None:
                    return
            remove_files(folder, name)
    finally:
        os.close(fd)


def remove_unused(folder: int, header: Header) -> int | None:
    """Unlink the files of an object unless a process uses them.

    Returns:
        The bytes of the pages that were present; None if the files are in use or absent.
    """
    try:
        fd = _open_file(folder, header.name + ".map", False)
    except (OSError, StorageError):
        return None
    try:
        if not set_lock(fd, fcntl.F_WRLCK, USERS, 1) or not is_at(folder, header.name + ".map", fd):
            return None
        pages = np.flatnonzero(read_records(fd, header)["state"] == PRESENT)
        remove_files(folder, header.name)
        return int(page_sizes(header, pages).sum())
    finally:
        os.close(fd)
