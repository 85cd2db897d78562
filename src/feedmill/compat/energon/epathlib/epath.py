"""`EPath`: Energon's path class over Feedmill's stores.

A path is text: an absolute local path, or a URL of any scheme that Feedmill opens (``msc://``, ``s3://``, ``dss://``,
...), without ``.`` and ``..``. So every function that takes a path or URL takes an `EPath`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, NotFound
from feedmill.storage import Store, open_store
from feedmill.storage.remote.msc import DATASETS, DATASETS_FOLDER, POSIX, SCHEME
from feedmill.storage.window import Window

__all__ = ["DEFAULT_PROFILE_NAME", "NVDATASET_CACHE_DIR", "EPath"]

DEFAULT_PROFILE_NAME = POSIX
"""Name of the profile of local files: ``msc://__filesystem__/path`` is ``/path``."""
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)/?(.*)", re.DOTALL)
_BUFFER = 1 << 20


class _InvalidPath(ConfigError, AssertionError):
    """An invalid path. Energon raises an `AssertionError`, which scripts may catch."""


class PathStatus(NamedTuple):
    """What `EPath.stat` returns.

    Attributes:
        key: the path or URL.
        content_length: size in bytes; 0 for a folder.
        last_modified: time of the last change, in UTC; the beginning of 1970 for a folder.
        type: ``file`` or ``directory``.
    """

    key: str
    content_length: int
    last_modified: datetime
    type: str


class EPath(str):
    """A local path or a URL, with the methods of Energon's class.

    Relative paths begin at the current folder. Folders need not be created: they appear with their first file.

    Args:
        initial_path: path or URL; ``rclone://`` is deprecated and means ``msc://``.

    Raises:
        ConfigError: a ``dss://`` URL has no version.
        ValueError: ``..`` leads out of a bucket or profile.
    """

    __slots__ = ()

    def __new__(cls, initial_path: str | os.PathLike[str]) -> EPath:
        if isinstance(initial_path, EPath):
            return initial_path
        return super().__new__(cls, _normalized(os.fspath(initial_path)))

    def __repr__(self) -> str:
        return f"EPath({str(self)!r})"

    def __truediv__(self, other: str | os.PathLike[str]) -> EPath:
        name = os.fspath(other)
        return EPath(name if name.startswith("/") or "://" in name else f"{self.rstrip('/')}/{name}")

    # Parts of the path

    @property
    def url(self) -> str:
        """Return the path or URL as plain text."""
        return str(self)

    @property
    def profile(self) -> str:
        """Return the profile, bucket or host; ``dss`` for datasets, `DEFAULT_PROFILE_NAME` for local files."""
        scheme, host, _ = _split(self)
        return DATASETS if scheme == DATASETS else host or DEFAULT_PROFILE_NAME

    @property
    def internal_path(self) -> PurePosixPath:
        """Return the path without scheme and profile. It begins with the dataset for ``dss://``."""
        scheme, host, path = _split(self)
        return PurePosixPath("/", host, path) if scheme == DATASETS else PurePosixPath("/", path)

    @property
    def name(self) -> str:
        """Return the last component; empty for a root."""
        return self.internal_path.name

    @property
    def display_name(self) -> str:
        """Return the dataset and version of a ``dss://`` URL, else the last component."""
        return self.internal_path.parts[1] if self.profile == DATASETS else self.name

    @property
    def parent(self) -> EPath:
        """Return the path without its last component. A root is its own parent."""
        scheme, host, path = _split(self)
        return EPath(_joined(scheme, host, path.rpartition("/")[0]))

    def with_suffix(self, suffix: str) -> EPath:
        """Return the path with another suffix."""
        return self.parent / PurePosixPath(self.name).with_suffix(suffix).name

    def relative_to(self, other: EPath) -> str:
        """Return the path below a folder as text. Raises `ValueError` if it is not below it."""
        if self.profile != other.profile:
            raise _InvalidPath("the paths have different profiles", file=self, record=str(other), fix="Compare others.")
        return str(self.internal_path.relative_to(other.internal_path))

    # Local files

    def is_local(self) -> bool:
        """Return whether the path is a file or folder of this machine."""
        return self._store.is_local

    def local_path(self) -> Path:
        """Return the path on this machine. Raises `ValueError` if it is remote."""
        store, name = self._folder, self._name
        if not store.is_local:
            raise ValueError(f"the path {str(self)!r} is not local")
        return Path(store.locate(name))

    # Reading and writing

    def open(self, mode: str = "r", block_size: int | None = None, prefetch_file: bool = False) -> Any:
        """Open the file.

        A written file appears when it is closed. If a ``with`` block ends with an error, nothing is written.

        Args:
            mode: ``r``, ``rb``, ``w`` or ``wb``. Text is UTF-8.
            block_size: without effect; Energon ignores it, too.
            prefetch_file: read the whole file at once.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the mode is unknown.
        """
        del block_size
        if mode not in ("r", "rb", "w", "wb"):
            raise ValueError(f"invalid mode {mode!r}: use r, rb, w or wb")
        is_text = "b" not in mode
        if mode.startswith("w"):
            return open_for_writing(self._folder, self._name, is_text)
        with self._must_exist():
            return open_for_reading(self._folder, self._name, is_text, prefetch_file)

    def read_text(self) -> str:
        """Return the content as text. Raises `FileNotFoundError`."""
        return self.read_bytes().decode()

    def read_bytes(self) -> bytes:
        """Return the content. Raises `FileNotFoundError`."""
        with self._must_exist():
            return self._folder.read(self._name)

    def write_text(self, text: str) -> None:
        """Write the file."""
        self.write_bytes(text.encode())

    def write_bytes(self, data: bytes) -> None:
        """Write the file."""
        self._folder.write_bytes(self._name, data)

    def copy(self, target: EPath) -> None:
        """Copy a file, or all files of a folder, also from one store to another. Raises `FileNotFoundError`."""
        if not self.is_dir():
            with self.open("rb") as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 8 << 20)
            return
        for path in self.walk():
            path.copy(target / path.relative_to(self))

    def move(self, target: EPath) -> None:
        """Copy the file or folder, and delete it here. Raises `FileNotFoundError`."""
        files = list(self.walk()) if self.is_dir() else [self]
        self.copy(target)
        for path in files:
            path.unlink()

    def unlink(self) -> None:
        """Delete the file. Raises `FileNotFoundError`."""
        with self._must_exist():
            self._folder.stat(self._name)
        self._folder.delete(self._name)

    def mkdir(self, exist_ok: bool = True, parents: bool = False) -> None:
        """Do nothing: a folder appears with its first file."""

    # Metadata

    def is_file(self) -> bool:
        """Return whether this is an existing file."""
        try:
            return bool(self._name) and self._folder.exists(self._name) and not (self.is_local() and self.is_dir())
        except ConfigError as error:
            if error.kind != "no-bucket":
                raise
            return False  # a bucket of a profile

    def is_dir(self) -> bool:
        """Return whether this is an existing folder. A remote folder exists while it has files."""
        return self._store.is_folder()

    def size(self) -> int:
        """Return the size in bytes. Raises `FileNotFoundError`."""
        return self.stat().content_length

    def stat(self) -> PathStatus:
        """Return size, time of the last change and type. Raises `FileNotFoundError`."""
        if self.is_file():
            size, changed = self._folder.stat(self._name).size, self._folder.modified(self._name)
            return PathStatus(str(self), size, datetime.fromtimestamp(changed, UTC), "file")
        if self.is_dir():
            return PathStatus(str(self), 0, datetime.fromtimestamp(0, UTC), "directory")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    # Listing

    def walk(self) -> Iterator[EPath]:
        """Yield all files below this folder, also in hidden folders and behind links. Raises `FileNotFoundError`."""
        with self._must_exist():
            for entry in self._store.files(hidden=True):
                yield self / entry.path

    def glob(self, pattern: str) -> Iterator[EPath]:
        """Yield the files below this folder that match a pattern, sorted.

        Args:
            pattern: wildcards of file names for each component; ``**`` for any number of folders.
        """
        if self.is_local():
            folder = str(self.local_path())
            for name in sorted(glob.glob(pattern, root_dir=folder, recursive=True)):
                if os.path.isfile(os.path.join(folder, name)):
                    yield self / name
            return
        parts = pattern.split("/")
        with contextlib.suppress(NotFound):
            for entry in self._store.files(hidden=True):
                if _matches(entry.path.split("/"), parts):
                    yield self / entry.path

    # Stores

    @property
    def _store(self) -> Store:
        return open_store(self)

    @property
    def _folder(self) -> Store:
        """Return the store of the folder of this file."""
        scheme, host, path = _split(self)
        return open_store(_joined(scheme, host, path.rpartition("/")[0]))

    @property
    def _name(self) -> str:
        """Return the name of this file in its folder."""
        return _split(self)[2].rpartition("/")[2]

    @contextlib.contextmanager
    def _must_exist(self) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            raise FileNotFoundError(errno.ENOENT, error.what, str(self)) from error


def _normalized(text: str) -> str:
    """Return an absolute path or a URL without ``.`` and ``..``."""
    scheme, host, path = _split(text)
    if scheme == "file":
        scheme, path = "", f"{host}/{path}" if host else f"/{path}"
    if scheme == "rclone":
        warnings.warn("rclone:// is deprecated: use msc:// instead", DeprecationWarning, stacklevel=3)
        scheme = SCHEME
    if not scheme or (scheme == SCHEME and host == DEFAULT_PROFILE_NAME):
        return os.path.abspath(path if not scheme else f"/{path}").replace("//", "/")
    if scheme == DATASETS and not all(host.rpartition("@")[::2]):
        raise _InvalidPath(
            "DSS paths must include a dataset version separated by '@'", file=text, fix="Write dss://NAME@VERSION/PATH."
        )
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise ValueError(f"the path {text!r} leads above its root")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return _joined(scheme, host, "/".join(parts))


def _split(text: str) -> tuple[str, str, str]:
    """Return scheme, host and path of a URL; empty scheme and host for a local path, which keeps its ``/``."""
    match = _URL.fullmatch(text)
    return (match[1], match[2], match[3]) if match else ("", "", text)


def _joined(scheme: str, host: str, path: str) -> str:
    return f"{scheme}://{host}/{path}".rstrip("/") if scheme else path or "/"


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Return whether the components of a path match those of a pattern."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[skipped:], pattern[1:]) for skipped in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


NVDATASET_CACHE_DIR = EPath(os.environ[DATASETS_FOLDER]) if os.environ.get(DATASETS_FOLDER) else None
"""Folder of ``dss://`` datasets when this module was imported; paths use the variable's current value."""


def open_for_reading(store: Store, name: str, is_text: bool, whole: bool) -> Any:
    """Return a file object that reads a file of a store. Raises `NotFound`.

    Args:
        store: the store.
        name: path of the file in it.
        is_text: return text, decoded as UTF-8, instead of bytes.
        whole: read the whole file at once. By default, ranges of remote files are requested when they are read.
    """
    file: Any
    if store.is_local:
        store.stat(name)
        file = open(store.locate(name), "rb")  # noqa: SIM115 - the caller closes it
    elif whole:
        file = io.BytesIO(store.read(name))
    else:
        file = io.BufferedReader(Window(store, name, 0, store.stat(name).size), _BUFFER)
    return io.TextIOWrapper(file, "utf-8") if is_text else file


def open_for_writing(store: Store, name: str, is_text: bool) -> Any:
    """Return a file object that writes a file of a store, which appears when it is closed.

    Args:
        store: the store.
        name: path of the file in it.
        is_text: take text, which is encoded as UTF-8, instead of bytes.
    """
    file: Any = _Output(store, name)
    return _TextOutput(file, "utf-8") if is_text else file


class _Output(io.BufferedIOBase):
    """A file of a store for writing. Leaving a ``with`` block by an error discards it."""

    def __init__(self, store: Store, name: str) -> None:
        self._writing = store.write(name)
        self._file = self._writing.__enter__()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._writing.__exit__(None, None, None)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard(kind, error, trace)

    def discard(self, kind: Any, error: Any, trace: Any) -> None:
        """Remove what was written, because of an error."""
        if not self.closed:
            super().close()
            self._writing.__exit__(kind, error, trace)


class _TextOutput(io.TextIOWrapper):
    """Text for an `_Output`."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            output: Any = self.detach()
            output.discard(kind, error, trace)
