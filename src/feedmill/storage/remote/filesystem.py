"""Any file system of `fsspec` as a `Store`: ``hf://datasets/...``, ``sftp://``, ``hdfs://``, ``github://`` and others.

Ranges are requested as from an object store: many at once with threads, tried again, read ahead, kept in the cache.
A file system that is not made for threads has several instances, each used by one thread at a time (`Instances`).

**Writing.** A file is written to this machine's temporary folder, put under a hidden name beside its final one
(``.<name>.<hex>.feedmill-tmp``), and renamed. A file system that cannot rename gets the file under its final name in
one call, which an object store publishes whole; others may show a part of it until the call ends.

**Versions.** A file's version is what its file system says about it: a hash, an ETag, or the time of its last change,
with the size. `fsspec` does not give it with the bytes, so a file that is replaced while a dataset is open is found by
the dataset's index, not by each answer. When files are pinned, a branch of the Hugging Face Hub is replaced by its
commit, which never changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
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
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.options import Patience, patience_of
from feedmill.storage.remote.range_store import RangeStore, is_listed, spool_error
from feedmill.storage.staging import TEMPORARY_SUFFIX

_STEP, _LARGE = 8 << 20, 64 << 20
_VERSIONS = (
    *("etag", "ETag", "content_hash", "checksum", "sha256", "xet_hash", "blob_id", "sha", "md5", "md5Checksum"),
    *("mtime", "modified", "modify", "last_modified", "LastModified", "modificationTime", "modifiedTime", "updated"),
    *("last_write_time", "created"),
)
"""What file systems call the version of a file; the first that is there is taken."""
_NAMED_OBJECTS = re.compile(r"github://[^/@]+:[^/@]+@")
"""A URL in which what looks like a password is a repository."""


class FilesystemStore(RangeStore):
    """A folder of a file system of `fsspec`.

    Args:
        url: such as ``hf://datasets/ORG/NAME@REVISION/folder``, ``sftp://user@host/folder`` or ``memory://folder``.
        options: settings of the file system's class, such as ``endpoint`` and ``token`` for ``hf://``; those of
            `fsspec`'s own configuration and environment count, too. ``revision`` is for ``hf://`` URLs without one.

    Raises:
        ConfigError: the scheme is unknown, or the URL has a password.
        MissingExtra: `fsspec`, or the package of the file system, is not installed.
    """

    def __init__(self, url: str, **options: Any) -> None:
        place = resolve(url)
        super().__init__(url, place.url)
        self.options = options
        self.protocol = self.target.partition("://")[0]
        if self.protocol == "hf":
            self.host = "hf://"
        _refuse_password(self.target)
        self._connect({**place.options, **options})

    def _connect(self, settings: dict[str, Any]) -> None:
        revision, target = settings.pop("revision", None), self.target
        self._patience = {"retry_config": settings.pop("retry_config", {})}
        if "client_options" in settings:
            raise ConfigError(
                f"times of connecting and answering cannot be set for {self.protocol}://",
                file=self.url,
                kind="bad-option",
                fix="Remove them; 'retry_timeout' can be set.",
            )
        if revision is not None and self.protocol == "hf":
            target = _at_revision(target, str(revision))
        kind = filesystem_class(self.protocol, self.url)
        found = {**kind._get_kwargs_from_urls(target), **settings}
        self._root = str(kind._strip_protocol(target)).rstrip("/")
        self._instances = instances_of(self.protocol, kind, found)
        self.at_once = type(self).at_once if self._instances.shared else CONNECTIONS
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
            with self.asking(""), self._instances.use() as fs:
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

    def translate(self, error: BaseException, where: str) -> FeedmillError | None:
        found = translate(error, where)
        if self.protocol == "hf" and isinstance(found, NotFound):  # nor does the Hub say that there is one
            found.fix = "Check the URL. A private or gated repository needs HF_TOKEN, or 'hf auth login'."
        return found

    def is_beyond_end(self, error: BaseException) -> bool:
        return is_beyond_end(error)

    def request_once(self, key: str, begin: int, end: int, *, brisk: bool = False) -> bytes:  # noqa: ARG002
        path = self._full(key)
        with self._instances.use() as fs:
            if end == WHOLE:
                data = _bytes_of(fs, path, None, None)
            else:
                if end - begin > _LARGE:  # a damaged index may ask for more than there is memory
                    end = max(begin, min(end, int(fs.info(path)["size"])))
                data = _bytes_of(fs, path, begin, end)
                if len(data) != end - begin and begin + len(data) < int(fs.info(path)["size"]):
                    raise ShortAnswer(f"{len(data)} of {end - begin} bytes")
        self.answered()
        return data

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = ()) -> Iterator[Entry]:
        folder = "/".join(part for part in self.check_path(prefix).split("/") if part not in ("", "."))
        top, wanted = self._full(folder), tuple(suffixes)
        with self.asking(prefix), self._instances.use() as fs:
            self._refresh(fs, top)
            found = {self._below(name, top): info for name, info in fs.find(top, detail=True).items()}
            if "" in found or not (found or fs.isdir(top)):  # a file is no folder
                raise NotFound("there is no such folder", file=self.locate(folder), fix=CHECK)
        for name in sorted(found):
            if is_listed(name, wanted) and not _is_temporary(name) and found[name].get("type") != "directory":
                path = f"{folder}/{name}" if folder else name
                yield _entry(path, found[name])

    def _below(self, name: str, top: str) -> str:
        """Return the path of a listed file below a folder; some file systems add or omit a slash at the beginning."""
        return name.lstrip("/").removeprefix(top.lstrip("/")).lstrip("/")

    def _refresh(self, fs: Any, path: str) -> None:
        """Forget listings, which many file systems keep; those of a commit stay right."""
        if self.protocol != "hf" or not self._pinned:
            fs.invalidate_cache(path)

    def stat(self, path: str) -> Entry:
        full = self._full(self.key(path))
        with self.asking(path), self._instances.use() as fs:
            self._refresh(fs, full.rpartition("/")[0])
            info = fs.info(full)
        if info.get("type") == "directory":
            raise NotFound("there is no such file", file=self.locate(path), fix=CHECK)
        return _entry(path, info)

    def _list_entries(self, keys: Sequence[str]) -> None:
        folder = os.path.commonpath(keys)
        wanted = set(keys)
        with contextlib.suppress(StorageError, NotFound), self.asking(folder), self._instances.use() as fs:
            top = self._full(folder)
            self._refresh(fs, top)
            for info in fs.ls(top, detail=True):  # not what is in folders of the folder
                path = "/".join(filter(None, (folder, self._below(info["name"], top))))
                if path in wanted and info.get("type") != "directory":
                    self._entries[path] = entry = _entry(path, info)
                    self.note_version(path, entry.version)

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        self.pin_files()  # of the Hub, the commit is asked for once, before many threads list
        return super().entries(paths)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is not None:
            return self.read_ranges(path, [offset], [length])[0]
        if offset:
            size = self.stat(path).size
            return self.read_ranges(path, [offset], [size - offset])[0] if 0 <= offset < size else b""
        key = self.key(path)
        with self.asking(path):
            return bytes(memoryview(fetcher().request(self, key, 0, WHOLE)))

    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.write_spooled(path)

    def put_file(self, path: str, file: Path) -> None:
        key = self.key(path)
        self.forget(key)
        folder, _, name = self._full(key).rpartition("/")
        hidden = f"{folder}/.{name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        with self.asking(path), self._instances.use() as fs:
            self._refresh(fs, folder)
            if not _renames(fs):
                fs.put_file(str(file), self._full(key))
                return
            fs.makedirs(folder, exist_ok=True)
            try:
                fs.put_file(str(file), hidden)
                _replace(fs, hidden, self._full(key))
            except BaseException:
                with contextlib.suppress(Exception):
                    fs.rm_file(hidden)
                raise

    def delete(self, path: str) -> None:
        key = self.key(path)
        self.forget(key)
        with contextlib.suppress(NotFound), self.asking(path), self._instances.use() as fs:
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
    store = FilesystemStore(url, **options)
    if root is not None:
        store._root, store._pinned = root, True
    return store


def _bytes_of(fs: Any, path: str, begin: int | None, end: int | None) -> bytes:
    """Return the bytes of a range or of a file, with one request where the file system can."""
    from fsspec.spec import AbstractFileSystem

    own = getattr(type(fs), "cat_file", None) is not AbstractFileSystem.cat_file
    if own or fs.async_impl or end is None:
        return bytes(fs.cat_file(path, start=begin, end=end))
    # Without its own, the file is opened, and would read some MiB ahead. The size saves a request for it.
    with fs.open(path, "rb", cache_type="none", **({"size": end} if fs.protocol == "hf" else {})) as file:
        file.seek(begin)
        return bytes(file.read(end - (begin or 0)))


def _entry(path: str, info: Mapping[str, Any]) -> Entry:
    size = info.get("size")
    if size is None:
        raise StorageError(
            "the file system does not say how large this file is",
            file=path,
            kind="not-supported",
            fix="Copy the data to a local disk.",
        )
    found = next((info[name] for name in _VERSIONS if info.get(name) is not None), "")
    lfs = info.get("lfs")
    if lfs:  # of the Hub: the hash of the content
        found = lfs["sha256"] if isinstance(lfs, Mapping) else getattr(lfs, "sha256", found)
    if isinstance(found, datetime):
        found = found.timestamp()
    word = f"{found:.6f}" if isinstance(found, float) else str(found).strip('"')
    return Entry(path, int(size), f"{word}-{int(size):x}")


def _is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def _renames(fs: Any) -> bool:
    """Return whether a file system can rename a file; others would copy it."""
    from fsspec.spec import AbstractFileSystem

    return not fs.async_impl and type(fs).mv is not AbstractFileSystem.mv


def _replace(fs: Any, source: str, target: str) -> None:
    """Rename a file over another one, which is renamed first where the file system does not replace files."""
    try:
        fs.mv(source, target)
        return
    except (OSError, ValueError):
        if not fs.exists(target):
            raise
    aside = source.removesuffix(TEMPORARY_SUFFIX) + "-old" + TEMPORARY_SUFFIX
    fs.mv(target, aside)
    try:
        fs.mv(source, target)
    except BaseException:
        fs.mv(aside, target)
        raise
    fs.rm_file(aside)


def _at_revision(url: str, revision: str) -> str:
    """Return an ``hf://`` URL with a revision, unless it has one."""
    parts = url.split("/")
    last = 4 if parts[2] in ("datasets", "spaces") else 3
    if len(parts) > last and "@" not in parts[last]:
        parts[last] += "@" + revision.replace("/", "%2F")
    return "/".join(parts)


def _at_commit(fs: Any, root: str) -> str:
    """Return a path on the Hub with the commit that its branch or tag is at now."""
    resolved = fs.resolve_path(root)
    if not hasattr(resolved, "repo_id"):
        return root  # a bucket has no commits
    api = fs._api
    commit = api.repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=resolved.revision).sha
    prefix = {"dataset": "datasets/", "space": "spaces/"}.get(resolved.repo_type, "")
    return f"{prefix}{resolved.repo_id}@{commit}/{resolved.path_in_repo}".rstrip("/")


def _refuse_password(url: str) -> None:
    authority = url.partition("://")[2].partition("/")[0]
    if ":" in authority.rpartition("@")[0] and not _NAMED_OBJECTS.match(url):
        raise ConfigError(
            "the URL has a password, which would be shown in messages and reports",
            file=url.replace(authority.rpartition("@")[0], "..."),
            kind="secret-in-url",
            fix="Remove it, and set it in fsspec's configuration (FSSPEC_<PROTOCOL>_PASSWORD, or a file in"
            " ~/.config/fsspec), or use a key.",
        )
