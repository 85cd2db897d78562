"""Any file system of `fsspec` as a `Store`: ``hf://datasets/...``, ``sftp://``, ``hdfs://``, ``github://`` and others.

`open_store` returns a `FilesystemStore` for all schemes of `fsspec` that our other stores do not read. Ranges are
requested as from an object store: many at once in threads, with retries, reading ahead and the cache. A file system
that is not thread-safe has several instances, each used by one thread at a time (`Instances`).

**Writing.** A file is written to this machine's temporary folder, uploaded under a hidden name beside its final one
(``.<name>.<hex>.feedmill-tmp``), and renamed. The next job of this machine deletes that of a killed process
(`upload_records.py`). If the file system cannot rename, the file is uploaded under its final name in one call. An
object store publishes it as a whole; others may show a truncated file until the call ends.

**Versions.** The version of a file is a hash, an ETag or the time of the last change, as the file system reports it,
with the size. `fsspec` does not return it with the bytes, so an answer does not show that a file was replaced while a
dataset was open; the dataset's index does. When files are pinned, a branch on the Hugging Face Hub is replaced by its
commit, which never changes.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.storage.base import Entry
from feedmill.storage.fetching.fetch import WHOLE, fetcher
from feedmill.storage.remote.errors import CHECK, Reaction
from feedmill.storage.remote.filesystem_errors import ShortAnswer, is_beyond_end, reaction_to, translate
from feedmill.storage.remote.filesystem_instances import CONNECTIONS, filesystem_class, instances_of
from feedmill.storage.remote.filesystem_renames import is_temporary, make_folder, renames, replace, undo
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.options import Patience, patience_of
from feedmill.storage.remote.range_store import RangeStore, is_listed
from feedmill.storage.remote.spool import spool_error
from feedmill.storage.remote.upload_records import abort_abandoned, recorded
from feedmill.storage.staging import temporary_beside

logger = logging.getLogger("feedmill")

_STEP, _LARGE = 8 << 20, 64 << 20
_VERSIONS = (
    *("etag", "ETag", "content_hash", "checksum", "sha256", "xet_hash", "blob_id", "sha", "md5", "md5Checksum"),
    *("mtime", "modified", "modify", "last_modified", "LastModified", "modificationTime", "modifiedTime", "updated"),
    *("last_write_time", "created"),
)
"""Names under which file systems report the version of a file; the first one present is used."""


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
            kind="not-supported",
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
