"""Object stores and web servers as a `Store`, through `obstore` (``s3://``, ``gs://``, ``az://``, ``http(s)://``).

An object appears whole or not at all, when the block that writes it ends (see `upload.py`). An object store has no
folders; a folder exists while it has objects.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Entry
from feedmill.storage.fetching.fetch import WHOLE, fetcher, waiting
from feedmill.storage.fetching.preload import Small, preload
from feedmill.storage.remote.errors import Reaction, reaction_to, status_of, translate
from feedmill.storage.remote.files import RemoteFiles, entry_of
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.options import Patience, connect, connect_for_ranges, patience_of
from feedmill.storage.remote.range_store import FEW, guard_against_fork, is_listed

if TYPE_CHECKING:
    from obstore import Bytes, ObjectMeta
    from obstore.store import ObjectStore


class RemoteStore(RemoteFiles):
    """A bucket, a prefix of one, or a folder of a web server.

    Args:
        url: ``s3://bucket/prefix``, ``gs://...``, ``az://...`` or ``https://host/folder``.
        options: settings of `obstore` that override the environment's, e.g. ``endpoint``, ``region``,
            ``skip_signature``, ``client_options``, ``retry_config``.

    Raises `ConfigError` if the URL or an option is invalid.
    """

    def __init__(self, url: str, **options: Any) -> None:
        place = resolve(url)
        super().__init__(url, place.url)
        self.options, self.settings = options, {**place.options, **options}
        self._hasty = connect(self.target, self.settings, patient=False)
        self._patient: ObjectStore | None = None
        self._reader: ObjectStore | None = None
        self._brisk: ObjectStore | None = None
        self._preloaded: dict[str, Small] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self.options)

    def below(self, folder: str) -> RemoteStore:
        return RemoteStore(f"{self.url}/{self.check_path(folder)}", **self.options)

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"  # options may hold secrets

    @property
    def client(self) -> ObjectStore:
        """Return the client for requests, which retries for longer once this bucket or server has answered."""
        if not self.has_answered:
            return self._hasty
        if self._patient is None:
            self._patient = connect(self.target, self.settings, patient=True)
        return self._patient

    @property
    def reader(self) -> ObjectStore:
        """Return the client for ranges, each of whose requests is one try; see `feedmill.storage.fetching.fetch`."""
        if self._reader is None:
            self._reader = connect_for_ranges(self.target, self.settings)
        return self._reader

    @property
    def lists(self) -> bool:
        return not self.target.startswith("http")

    @property
    def brisk_reader(self) -> ObjectStore:
        """Return the client for ranges whose requests are given up sooner; see `connect_for_ranges`."""
        if self._brisk is None:
            self._brisk = connect_for_ranges(self.target, self.settings, brisk=True)
        return self._brisk

    def reconnect(self) -> None:
        self.settings = {**resolve(self.url).options, **self.options}
        self._reader = self._brisk = self._patient = None
        self._hasty = connect(self.target, self.settings, patient=False)

    def patience(self) -> Patience:
        return patience_of(self.settings, patient=self.has_answered)

    def request_once(self, key: str, begin: int, end: int, *, brisk: bool = False) -> Bytes:
        import obstore

        reader = self.brisk_reader if brisk else self.reader
        found = obstore.get(reader, key, options={} if end == WHOLE else {"range": (begin, end)})
        self.answered()
        if end != WHOLE:
            self.check_version(key, entry_of(key, found.meta).version)
        return found.bytes()

    def forget(self, key: str) -> None:
        super().forget(key)
        self._preloaded.pop(key, None)

    def reaction_to(self, error: BaseException) -> Reaction:
        return reaction_to(error)

    def translate(self, error: BaseException, where: str) -> FeedmillError | None:
        return translate(error, where)

    def is_beyond_end(self, error: BaseException) -> bool:
        return status_of(error) == "416"

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = ()) -> Iterator[Entry]:
        import obstore

        folder = "/".join(part for part in self.check_path(prefix).split("/") if part not in ("", "."))
        skip, wanted, empty = len(folder) + 1 if folder else 0, tuple(suffixes), True
        found: list[Entry] = []
        with self.asking(prefix):
            # Most web servers cannot list, and say so in words that would be a reason to try again.
            client = self.client if self.lists else self.reader
            for page in obstore.list(client, prefix=folder or None, chunk_size=1000):
                empty = False
                found.extend(entry_of(meta["path"], meta) for meta in page if is_listed(meta["path"][skip:], wanted))
        if empty:
            raise NotFound("there is no such folder", file=self.locate(folder), fix="Check the URL.")
        # A store lists its folder markers ("a/") as empty files of the folder's name.
        folders = {parent for entry in found for parent in _parents(entry.path)}
        found = [entry for entry in found if entry.size or entry.path not in folders]
        found.sort(key=lambda entry: entry.path)
        yield from found

    def stat(self, path: str) -> Entry:
        key = self.key(path)
        with self.asking(path):
            small = self._preloaded.get(key)
            if small is None:
                return entry_of(path, self._head(key))
            if small.entry is None:
                raise FileNotFoundError(key)
            return replace(small.entry, path=path)

    def _head(self, key: str) -> ObjectMeta:
        import obstore

        try:
            return obstore.head(self.client, key)
        except Exception as error:
            if status_of(error) in ("400", "403"):  # an answer to HEAD has no body, which would give the reason
                obstore.get(self.client, key, options={"range": (0, 1)})
            raise

    def preload(self, paths: Sequence[str]) -> None:
        keys = [self.key(path) for path in paths]
        guard_against_fork(self.url)
        self._preloaded = preload(self, keys) if keys else {}

    def _list_entries(self, keys: Sequence[str]) -> None:
        """Note the entries of objects in one folder from listings, as long as these find enough of them."""
        import obstore

        folder = os.path.commonpath(keys) if len(keys) > 1 else keys[0].rpartition("/")[0]
        wanted = set(keys)
        with contextlib.suppress(StorageError), self.asking(folder):  # who may read may not always list
            for page in obstore.list(self.client, prefix=folder or None, chunk_size=1000):
                found = [entry_of(meta["path"], meta) for meta in page if meta["path"] in wanted]
                self._entries.update((entry.path, entry) for entry in found)
                wanted.difference_update(entry.path for entry in found)
                if len(found) <= FEW or not wanted:
                    break
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self.note_version(key, entry.version)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        import obstore

        if length is not None:
            return self.read_ranges(path, [offset], [length])[0]
        key = self.key(path)
        small = self._preloaded.get(key)
        if small is not None and small.data is not None:
            return small.data[offset:]
        with self.asking(path):
            if not offset:
                with waiting():
                    return bytes(memoryview(fetcher().request(self, key, 0, WHOLE)))
            try:
                return obstore.get(self.client, key, options={"range": {"offset": offset}}).bytes().to_bytes()
            except Exception as error:
                if status_of(error) == "416":  # the range begins after the end
                    return b""
                raise


def _rebuild(url: str, options: dict[str, Any]) -> RemoteStore:
    return RemoteStore(url, **options)


def _parents(path: str) -> Iterator[str]:
    cut = path.rfind("/")
    while cut > 0:
        yield path[:cut]
        cut = path.rfind("/", 0, cut)
