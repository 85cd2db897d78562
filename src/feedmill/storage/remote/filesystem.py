"""Any file system of `fsspec` as a `Store`: ``hf://datasets/...``, ``sftp://``, ``hdfs://``, ``github://`` and others.

`open_store` returns a `FilesystemStore` for all schemes of `fsspec` that our other stores do not read. Ranges are
requested as from an object store: many at once in threads, with retries, reading ahead and the cache. A file system
that is not thread-safe has up to `CONNECTIONS` instances, each used by one thread at a time (`Instances`).

**Writing.** A file is written to this machine's temporary folder, uploaded under a hidden name beside its final one
(``.<name>.<hex>.feedmill-tmp``), and renamed. The next job of this machine deletes that of a killed process
(`upload_records.py`). If the file system cannot rename, the file is uploaded under its final name in one call. An
object store publishes it as a whole; others may show a truncated file until the call ends.

**Versions.** The version of a file is a hash, an ETag or the time of the last change, as the file system reports it,
with the size. `fsspec` does not return it with the bytes, so an answer does not show that a file was replaced while a
dataset was open; the dataset's index does. When files are pinned, a branch on the Hugging Face Hub is replaced by its
commit, which never changes.

**Errors.** Each file system has another client with its own classes of errors, so the HTTP status and the class name
decide whether a request is retried, and what the user reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.storage.base import Entry
from feedmill.storage.fetching.fetch import WHOLE, fetcher
from feedmill.storage.folders import spool_error
from feedmill.storage.remote.errors import AGAIN, CHECK, Reaction
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.options import Patience, patience_of
from feedmill.storage.remote.range_store import RangeStore, is_listed
from feedmill.storage.remote.upload_records import abort_abandoned, recorded
from feedmill.storage.staging import TEMPORARY_SUFFIX, temporary_beside

logger = logging.getLogger("feedmill")

_STEP, _LARGE = 8 << 20, 64 << 20
_VERSIONS = (
    *("etag", "ETag", "content_hash", "checksum", "sha256", "xet_hash", "blob_id", "sha", "md5", "md5Checksum"),
    *("mtime", "modified", "modify", "last_modified", "LastModified", "modificationTime", "modifiedTime", "updated"),
    *("last_write_time", "created"),
)
"""Names under which file systems report the version of a file; the first one present is used."""
CONNECTIONS = 8
"""Instances kept of a file system that is not thread-safe; servers of FTP and SFTP allow about ten connections."""
_SHARED = {"hf", "memory", "local", "hdfs", "arrow_hdfs"}
"""File systems without `asyncio` whose instances are thread-safe."""
_NOT_STORES = {
    *("async_wrapper", "asyncwrapper", "asynclocal", "blockcache", "cached", "filecache", "simplecache"),  # wrappers
    *("dir", "reference", "generic", "zip", "tar", "libarchive", "dask", "data", "pyscript", "jlab", "jupyter"),
    *("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "http", "https"),  # our other stores read these
}
"""Schemes of `fsspec` that are not stores of files, or that our other stores read."""


class FilesystemStore(RangeStore):
    """A folder of a file system of `fsspec`.

    Args:
        url: such as ``hf://datasets/ORG/NAME@REVISION/folder``, ``sftp://user@host/folder`` or ``memory://folder``.
        options: settings of the file system's class, such as ``endpoint`` and ``token`` for ``hf://``; those of
            `fsspec`'s own configuration and environment apply, too. ``revision`` is for ``hf://`` URLs without one.

    Raises:
        ConfigError: the scheme is unknown.
        MissingExtra: `fsspec`, or the package of the file system, is not installed.
    """

    def __init__(self, url: str, **options: Any) -> None:
        location = resolve(url)
        super().__init__(url, location.url)
        self.options = options
        self.protocol = self.target.partition("://")[0]
        if self.protocol == "hf":
            self.host = "hf://"
        self._connect({**location.options, **options})

    def _connect(self, settings: dict[str, Any]) -> None:
        """Make the instances of the file system. Raises `ConfigError` and `MissingExtra`."""
        revision, target = settings.pop("revision", None), self.target
        self._patience = {"retry_config": settings.pop("retry_config", {})}
        if "client_options" in settings:
            raise ConfigError(
                f"time limits of connections and requests are not supported for {self.protocol}://",
                file=self.url,
                kind="bad-option",
                fix="Remove them; only 'retry_timeout' is supported.",
            )
        if revision is not None and self.protocol == "hf":
            target = _at_revision(target, str(revision))
        kind = filesystem_class(self.protocol, self.url)
        arguments = {**kind._get_kwargs_from_urls(target), **settings}
        self._root = str(kind._strip_protocol(target)).rstrip("/")
        self._instances = instances_of(self.protocol, kind, arguments)
        self.max_in_flight = type(self).max_in_flight if self._instances.shared else CONNECTIONS
        self._pinned = self.protocol != "hf"

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process reads the same commit, even if the branch has moved.
        return _rebuild, (self.url, self.options, self._root if self._pinned else None)

    def __repr__(self) -> str:
        return f"FilesystemStore({self.url!r})"  # options may hold secrets

    def below(self, folder: str) -> FilesystemStore:
        root = self._full(self.check_path(folder)) if self._pinned else None
        return _rebuild(f"{self.url}/{folder}", self.options, root)

    @property
    def lists(self) -> bool:
        return True

    def _full(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root or "/"

    def pin_files(self) -> None:
        super().pin_files()
        if not self._pinned:
            with self.requesting(""), self._instances.use() as fs:
                self._root = _at_commit(fs, self._root)
                self._pinned = True

    def reconnect(self) -> None:
        pinned, root = self._pinned, self._root
        self._instances.clear()
        self._connect({**resolve(self.url).options, **self.options})
        if pinned:
            self._pinned, self._root = pinned, root

    def patience(self) -> Patience:
        return patience_of(self._patience, patient=self.has_answered)

    def reaction_to(self, error: BaseException) -> Reaction:
        return reaction_to(error)

    def translate(self, error: BaseException, url: str) -> FeedmillError | None:
        translated = translate(error, url)
        # The Hub reports a private repository as missing.
        if self.protocol == "hf" and isinstance(translated, NotFound):
            translated.fix = "Check the URL. A private or gated repository needs HF_TOKEN, or 'hf auth login'."
        return translated

    def is_beyond_end(self, error: BaseException) -> bool:
        return is_beyond_end(error)

    def request_once(self, key: str, begin: int, end: int, *, brisk: bool = False) -> bytes:  # noqa: ARG002
        path = self._full(key)
        with self._instances.use() as fs:
            if end == WHOLE:
                data = _bytes_of(fs, path, None, None)
            else:
                if end - begin > _LARGE:  # a corrupt index may request more bytes than fit in memory
                    end = max(begin, min(end, int(fs.info(path)["size"])))
                data = _bytes_of(fs, path, begin, end)
                if len(data) != end - begin and begin + len(data) < int(fs.info(path)["size"]):
                    raise ShortAnswer(f"received {len(data)} of {end - begin} bytes")
        self.answered()
        return data

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = (), hidden: bool = False) -> Iterator[Entry]:
        folder = "/".join(part for part in self.check_path(prefix).split("/") if part not in ("", "."))
        top, endings = self._full(folder), tuple(suffixes)
        with self.requesting(prefix), self._instances.use() as fs:
            self._refresh(fs, top)
            listed = {self._below(name, top): info for name, info in fs.find(top, detail=True).items()}
            if "" in listed or not (listed or fs.isdir(top)):  # a file finds itself, under the empty name
                raise NotFound("there is no such folder", file=self.locate(folder), fix=CHECK)
        for name in sorted(listed):
            if is_listed(name, endings, hidden) and not is_temporary(name) and listed[name].get("type") != "directory":
                path = f"{folder}/{name}" if folder else name
                yield _entry(path, listed[name])

    def _below(self, name: str, top: str) -> str:
        """Return the path of a listed file below a folder; file systems differ in the slash at the beginning."""
        return name.lstrip("/").removeprefix(top.lstrip("/")).lstrip("/")

    def _refresh(self, fs: Any, path: str) -> None:
        """Drop cached listings, which many file systems keep; those of a commit stay valid."""
        if self.protocol != "hf" or not self._pinned:
            fs.invalidate_cache(path)

    def is_folder(self, path: str = "") -> bool:
        full = self._full(self.check_path(path).strip("/"))
        with self.requesting(path), self._instances.use() as fs:
            self._refresh(fs, full)
            return bool(fs.isdir(full))

    def modified(self, path: str) -> float:
        full = self._full(self.key(path))
        with self.requesting(path), self._instances.use() as fs:
            return float(fs.modified(full).timestamp())

    def stat(self, path: str) -> Entry:
        full = self._full(self.key(path))
        with self.requesting(path), self._instances.use() as fs:
            self._refresh(fs, full.rpartition("/")[0])
            info = fs.info(full)
        if info.get("type") == "directory":
            raise NotFound("there is no such file", file=self.locate(path), fix=CHECK)
        return _entry(path, info)

    def _list_entries(self, keys: Sequence[str]) -> None:
        folder = os.path.commonpath(keys)
        wanted = set(keys)
        with contextlib.suppress(StorageError, NotFound), self.requesting(folder), self._instances.use() as fs:
            top = self._full(folder)
            self._refresh(fs, top)
            for info in fs.ls(top, detail=True):  # subfolders are not listed
                path = "/".join(filter(None, (folder, self._below(info["name"], top))))
                if path in wanted and info.get("type") != "directory":
                    self._entries[path] = entry = _entry(path, info)
                    self.pin_version(path, entry.version)

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        self.pin_files()  # once, before many threads request entries: on the Hub it requests the commit
        return super().entries(paths)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is not None:
            return self.read_ranges(path, [offset], [length])[0]
        if offset:
            size = self.stat(path).size
            return self.read_ranges(path, [offset], [size - offset])[0] if 0 <= offset < size else b""
        key = self.key(path)
        with self.requesting(path):
            return bytes(memoryview(fetcher().request(self, key, 0, WHOLE)))

    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.write_spooled(path)

    def put_file(self, path: str, file: Path) -> None:
        key = self.key(path)
        self.forget(key)
        abort_abandoned(self)
        full = self._full(key)
        folder = full.rpartition("/")[0]
        with self.requesting(path), self._instances.use() as fs:
            self._refresh(fs, folder)
            if not renames(fs):
                fs.put_file(str(file), full)
                return
            make_folder(fs, folder)
            hidden = temporary_beside(key)
            with recorded(self.request_url(hidden)):
                try:
                    fs.put_file(str(file), self._full(hidden))
                    replace(fs, self._full(hidden), full)
                except BaseException:
                    with contextlib.suppress(Exception):
                        fs.rm_file(self._full(hidden))
                    raise

    def abort_upload(self, url: str) -> bool:
        hidden = str(self._instances.kind._strip_protocol(url))
        try:
            with self.requesting(""), self._instances.use() as fs:
                self._refresh(fs, hidden.rpartition("/")[0])
                undo(fs, hidden)
        except FeedmillError as error:
            logger.warning("%s: the hidden file of an interrupted upload could not be deleted: %s", url, error)
            return False
        return True

    def abort_uploads(self) -> None:
        with contextlib.suppress(FeedmillError), self.requesting(""), self._instances.use() as fs:
            self._refresh(fs, self._full(""))
            for path in filter(is_temporary, fs.find(self._full(""))):
                fs.rm_file(path)

    def delete(self, path: str) -> None:
        key = self.key(path)
        self.forget(key)
        with contextlib.suppress(NotFound), self.requesting(path), self._instances.use() as fs:
            self._refresh(fs, self._full(key).rpartition("/")[0])
            fs.rm_file(self._full(key))

    def download(self, path: str, file: BinaryIO) -> Entry:
        entry = self.stat(path)
        written, begins = 0, range(0, entry.size, _STEP)
        for begin in begins:
            (data,) = self.read_ranges(path, [begin], [min(_STEP, entry.size - begin)])
            try:
                written += file.write(data)
            except OSError as error:
                raise spool_error(error) from None
        after = self.stat(path)
        if (written, after) != (entry.size, entry):
            raise DataError(
                "the file was replaced while it was copied",
                file=self.locate(path),
                kind="changed",
                fix="Try again once no process writes to it.",
            )
        return entry


def _rebuild(url: str, options: dict[str, Any], root: str | None) -> FilesystemStore:
    """Return a store; with `root`, pinned to that path of a commit."""
    store = FilesystemStore(url, **options)
    if root is not None:
        store._root, store._pinned = root, True
    return store


def _bytes_of(fs: Any, path: str, begin: int | None, end: int | None) -> bytes:
    """Return the bytes of a range, or of a file, with one request if the file system supports that."""
    from fsspec.spec import AbstractFileSystem

    overridden = getattr(type(fs), "cat_file", None) is not AbstractFileSystem.cat_file
    if overridden or fs.async_impl or end is None:
        return bytes(fs.cat_file(path, start=begin, end=end))
    # The default `cat_file` opens the file, which reads some MiB ahead. Passing the size saves a request for it.
    with fs.open(path, "rb", cache_type="none", **({"size": end} if fs.protocol == "hf" else {})) as file:
        file.seek(begin)
        return bytes(file.read(end - (begin or 0)))


def _entry(path: str, info: Mapping[str, Any]) -> Entry:
    """Return the entry of a file from what its file system reports. Raises `StorageError` if there is no size."""
    size = info.get("size")
    if size is None:
        raise StorageError(
            "the file system does not report the size of this file",
            file=path,
            kind="unsupported",
            fix="Copy the data to a local disk.",
        )
    version = next((info[name] for name in _VERSIONS if info.get(name) is not None), "")
    lfs = info.get("lfs")
    if lfs:  # only on the Hub: has the hash of the content
        version = lfs["sha256"] if isinstance(lfs, Mapping) else getattr(lfs, "sha256", version)
    if isinstance(version, datetime):
        version = version.timestamp()
    text = f"{version:.6f}" if isinstance(version, float) else str(version).strip('"')
    return Entry(path, int(size), f"{text}-{int(size):x}")


def _at_revision(url: str, revision: str) -> str:
    """Return an ``hf://`` URL with a revision, unless it has one."""
    parts = url.split("/")
    last = 4 if parts[2] in ("datasets", "spaces") else 3
    if len(parts) > last and "@" not in parts[last]:
        parts[last] += "@" + revision.replace("/", "%2F")
    return "/".join(parts)


def _at_commit(fs: Any, root: str) -> str:
    """Return a path on the Hub with the current commit instead of its branch or tag."""
    resolved = fs.resolve_path(root)
    if not hasattr(resolved, "repo_id"):
        return root  # a bucket has no commits
    api = fs._api
    commit = api.repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=resolved.revision).sha
    prefix = {"dataset": "datasets/", "space": "spaces/"}.get(resolved.repo_type, "")
    return f"{prefix}{resolved.repo_id}@{commit}/{resolved.path_in_repo}".rstrip("/")


class ShortAnswer(OSError):
    """An answer has fewer bytes than requested, although the file has more."""


_NETWORK = re.compile(r"Connect|Timeout|Transport|Protocol|Network|SSH|Socket|EOF|Payload|ServerDisconnected|Reset")
"""Class names of network errors of clients that do not derive from `ConnectionError`."""
_FTP_MISSING = re.compile(r"no such|not found|n.t exist|cannot find", re.IGNORECASE)
_FTP_DENIED = re.compile(r"denied|not (permitted|allowed)|permission|privilege|forbidden|prohibited", re.IGNORECASE)
_FTP_OTHER = re.compile(r"exists|not empty|space|quota|read-only", re.IGNORECASE)
"""What FTP servers say with status 550: about a missing file, denied access, and other refusals."""
_PATH = re.compile(r"\S*/\S*")
_READ_ONLY = (NotImplementedError, AttributeError)
"""What file systems raise for operations that they do not have."""


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of any client; None if it has none."""
    response: Any = getattr(error, "response", None)
    attributes = (getattr(response, "status_code", None), getattr(error, "status", None), getattr(error, "code", None))
    for status in attributes:
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


def _is_network(error: BaseException) -> bool:
    names = [kind.__name__ for kind in type(error).__mro__]
    return isinstance(error, ConnectionError | TimeoutError | asyncio.TimeoutError | EOFError) or any(
        map(_NETWORK.search, names[:-1])
    )


def is_beyond_end(error: BaseException) -> bool:
    """Return whether a request failed because its range begins after the end of the file."""
    return _status(error) == 416


def _is_missing(error: BaseException) -> bool:
    missing = isinstance(error, FileNotFoundError | NotADirectoryError) or _status(error) in (404, 410)
    if missing or not _is_refused_by_ftp(error):
        return missing
    said = _PATH.sub("", str(error))  # a path may have such words, too
    return bool(_FTP_MISSING.search(said)) or not (_FTP_DENIED.search(said) or _FTP_OTHER.search(said))


def _is_denied(error: BaseException) -> bool:
    denied = isinstance(error, PermissionError) or _status(error) == 403
    return denied or (_is_refused_by_ftp(error) and bool(_FTP_DENIED.search(_PATH.sub("", str(error)))))


def _is_refused_by_ftp(error: BaseException) -> bool:
    """Return whether this is FTP's one status for missing files, denied access and all else that is impossible."""
    return type(error).__name__ == "error_perm" and str(error).startswith("550")


def reaction_to(error: BaseException) -> Reaction:
    """Return what to do after a failed request for a range."""
    status = _status(error)
    if status in (429, 503):
        return Reaction.THROTTLED
    if _is_missing(error):
        return Reaction.FINAL
    if status == 401 or _is_denied(error):
        return Reaction.DENIED
    if isinstance(error, ShortAnswer) or status == 408 or (status is not None and status >= 500):
        return Reaction.AGAIN
    return Reaction.AGAIN if status is None and _is_network(error) else Reaction.FINAL


def translate(error: BaseException, url: str) -> FeedmillError | None:
    """Convert an error of a file system to one with a fix; None if it is not about storage."""
    if not isinstance(error, Exception):
        return None
    status, text = _status(error), " ".join(str(error).split())[:300]
    kind, what, fix = "storage", f"the store refused the request ({type(error).__name__}: {text})", AGAIN
    if isinstance(error, ImportError):
        return MissingExtra(f"the file system needs another package ({text})", file=url, fix="Install it with pip.")
    if type(error).__name__ == "HfUriError":
        fix = "Name a repository: hf://datasets/ORG/NAME, with @REVISION and the path of a folder if needed."
        return StorageError("this is not the URL of a repository of the Hub", file=url, kind="bad-url", fix=fix)
    if _is_missing(error):
        said = f" (the server said: {text})" if _is_refused_by_ftp(error) else ""  # its words may have another meaning
        return NotFound(f"there is no such file{said}", file=url, fix=CHECK)
    if status == 401:
        kind, what = "bad-credentials", "no credentials were given, or they were rejected"
        fix = "Check them; for hf:// set HF_TOKEN, or run 'hf auth login'."
    elif _is_denied(error):
        kind, what, fix = "eacces", "permission denied", "Ask for access, or check the URL and the credentials."
    elif isinstance(error, IsADirectoryError):
        kind, what, fix = "eisdir", "this is a folder, a file was expected", CHECK
    elif isinstance(error, _READ_ONLY):
        kind, what = (
            "unsupported",
            f"the file system does not support this operation ({type(error).__name__}: {text})",
        )
        fix = "Use a local folder or an object store here."
    elif isinstance(error, TimeoutError | asyncio.TimeoutError) or "Timeout" in type(error).__name__:
        kind, what = "timeout", "the server did not answer in time"
    elif status is None and _is_network(error):
        kind, what, fix = "no-connection", f"the server cannot be reached ({text})", "Check the network and the URL."
    return StorageError(what, file=url, kind=kind, fix=fix)


def filesystem_class(protocol: str, url: str) -> Any:
    """Return the `fsspec` class for a scheme.

    Args:
        protocol: the scheme without ``://``.
        url: of the store, for errors.

    Raises:
        ConfigError: the scheme is not supported.
        MissingExtra: `fsspec` or the package of the file system is not installed.
    """
    try:
        from fsspec.registry import get_filesystem_class, known_implementations, registry
    except ImportError:
        raise MissingExtra(
            f"the scheme {protocol}:// is read with fsspec, which is not installed", "fsspec", file=url
        ) from None
    schemes = (set(known_implementations) | set(registry)) - _NOT_STORES
    if protocol not in schemes or "::" in url:
        raise ConfigError(
            f"the scheme {protocol + '://'!r} is not supported"
            if protocol not in schemes
            else "chained URLs are not supported",
            file=url,
            kind="bad-url",
            fix="Use a path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/folder,"
            f" msc://profile/path, or one of fsspec: {', '.join(sorted(schemes))}.",
        )
    try:
        return get_filesystem_class(protocol)
    except ImportError as error:
        hint = known_implementations.get(protocol, {}).get("err") or str(error)
        fix = "Install it with: pip install huggingface_hub" if protocol == "hf" else f"{hint.rstrip('.')}."
        raise MissingExtra(f"{protocol}:// URLs need a package that is not installed", file=url, fix=fix) from None


class Instances:
    """The instances of one file system in this process.

    Args:
        kind: class of `fsspec`.
        options: its arguments.
        shared: whether one instance serves all threads; else each is used by one thread at a time.
    """

    def __init__(self, kind: Any, options: Mapping[str, Any], *, shared: bool) -> None:
        self.shared = shared
        self.kind, self._options = kind, options
        self._lock = threading.Lock()
        self._free: list[Any] = []

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """Lend an instance to a block."""
        with self._lock:
            fs = (self._free[-1] if self.shared else self._free.pop()) if self._free else None
            if fs is None and self.shared:
                self._free.append(fs := self._new())
        if self.shared:
            yield fs
            return
        fs = self._new() if fs is None else fs
        # After an error the instance is dropped: its connection may be in the middle of an answer.
        yield fs
        with self._lock:
            if len(self._free) < CONNECTIONS:
                self._free.append(fs)

    def _new(self) -> Any:
        return self.kind(**self._options, skip_instance_cache=True)

    def clear(self) -> None:
        """Drop all instances, so that new ones connect again."""
        with self._lock:
            self._free.clear()


_known: dict[tuple[str, str], Instances] = {}
_lock = threading.Lock()


def instances_of(protocol: str, kind: Any, options: Mapping[str, Any]) -> Instances:
    """Return the instances of a file system class; all stores with the same options share them."""
    shared = bool(getattr(kind, "async_impl", False)) or protocol in _SHARED
    with _lock:
        key = (protocol, json.dumps(options, sort_keys=True, default=repr))
        return _known.setdefault(key, Instances(kind, options, shared=shared))


def is_temporary(path: str) -> bool:
    """Return whether a file has a hidden name of an upload (`temporary_beside`)."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def renames(fs: Any) -> bool:
    """Return whether a file system can rename a file; for others, `fsspec` would copy it."""
    from fsspec.spec import AbstractFileSystem

    return not fs.async_impl and type(fs).mv is not AbstractFileSystem.mv


def make_folder(fs: Any, folder: str) -> None:
    """Create a folder and its parents, although other threads and processes may create them at the same time."""
    left = len(folder.strip("/").split("/"))
    while True:
        try:
            fs.makedirs(folder, exist_ok=True)
            return
        except Exception:  # each file system has another error for a folder that exists by now
            fs.invalidate_cache()
            if fs.isdir(folder):
                return
            left -= 1  # if others were faster, at least one more of the folders exists now
            if not left:
                raise


def replace(fs: Any, source: str, target: str) -> None:
    """Rename a file over another one; if the file system cannot replace files, rename the other one first."""
    try:
        fs.mv(source, target)
        return
    except (OSError, ValueError):
        if not fs.exists(target):
            raise
    previous = _previous(source)
    fs.mv(target, previous)
    try:
        fs.mv(source, target)
    except BaseException:
        fs.mv(previous, target)
        raise
    fs.rm_file(previous)


def _previous(hidden: str) -> str:
    """Return the name of the file that is being replaced."""
    return hidden.removesuffix(TEMPORARY_SUFFIX) + "-old" + TEMPORARY_SUFFIX


def undo(fs: Any, hidden: str) -> None:
    """Remove what a killed process left of an upload under a hidden name (`temporary_beside`)."""
    folder, _, name = hidden.rpartition("/")
    target, previous = f"{folder}/{name[1:].rpartition('.')[0].rpartition('.')[0]}", _previous(hidden)
    if fs.exists(previous):
        fs.rm_file(previous) if fs.exists(target) else fs.mv(previous, target)
    if fs.exists(hidden):
        fs.rm_file(hidden)
