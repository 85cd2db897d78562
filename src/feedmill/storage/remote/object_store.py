"""Object stores and web servers as a `Store`, through `obstore` (``s3://``, ``gs://``, ``az://``, ``http(s)://``).

`open_store` returns a `RemoteStore` for these schemes. An object appears as a whole, when the block that writes it ends
(see `files.py`). An object store has no folders: a folder exists while it has objects.

The small files of a dataset are read all at once, before they are needed (`preload`), so that opening it takes few
round trips.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Entry
from feedmill.storage.fetching.fetch import WHOLE, fetcher, waiting
from feedmill.storage.remote.errors import Reaction, is_beyond_end, reaction_to, status_of, translate
from feedmill.storage.remote.files import RemoteFiles, entry_of
from feedmill.storage.remote.forking import guard_against_fork
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.options import Patience, connect, connect_for_ranges, patience_of
from feedmill.storage.remote.range_store import SINGLE_LOOKUPS, is_listed

if TYPE_CHECKING:
    from obstore import Bytes, ObjectMeta
    from obstore.store import ObjectStore

SMALL, HEAD = 256 << 10, 64
"""Bytes of an object that are preloaded: of a small one, of which larger ones have the beginning; and of a head."""


class RemoteStore(RemoteFiles):
    """A bucket, a prefix of one, or a folder of a web server.

    Args:
        url: ``s3://bucket/prefix``, ``gs://...``, ``az://...`` or ``https://host/folder``.
        options: settings of `obstore` that override the environment, for example ``endpoint``, ``region``,
            ``skip_signature``, ``client_options``, ``retry_config``.

    Raises:
        ConfigError: the URL or an option is invalid.
    """

    def __init__(self, url: str, **options: Any) -> None:
        location = resolve(url)
        super().__init__(url, location.url)
        self.options, self.settings = options, {**location.options, **options}
        self._hasty = connect(self.target, self.settings, patient=False)
        self._patient: ObjectStore | None = None
        self._reader: ObjectStore | None = None
        self._brisk: ObjectStore | None = None
        self._preloaded: dict[str, SmallObject] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self.options)

    def below(self, folder: str) -> RemoteStore:
        return RemoteStore(f"{self.url}/{self.check_path(folder)}", **self.options)

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"  # options may hold secrets

    @property
    def client(self) -> ObjectStore:
        """Return the client for requests. It retries for longer once this bucket or server has answered."""
        if not self.has_answered:
            return self._hasty
        if self._patient is None:
            self._patient = connect(self.target, self.settings, patient=True)
        return self._patient

    @property
    def reader(self) -> ObjectStore:
        """Return the client for ranges. It does not retry: `feedmill.storage.fetching.fetch` does."""
        if self._reader is None:
            self._reader = connect_for_ranges(self.target, self.settings)
        return self._reader

    @property
    def lists(self) -> bool:
        return not self.target.startswith("http")

    @property
    def brisk_reader(self) -> ObjectStore:
        """Return the client for ranges with a shorter time limit; see `connect_for_ranges`."""
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
        answer = obstore.get(reader, key, options={} if end == WHOLE else {"range": (begin, end)})
        self.answered()
        if end != WHOLE:
            entry = entry_of(key, answer.meta)
            self.check_version(key, entry.version)
            self.note_entry(entry)
        return answer.bytes()

    def forget(self, key: str) -> None:
        super().forget(key)
        self._preloaded.pop(key, None)

    def reaction_to(self, error: BaseException) -> Reaction:
        return reaction_to(error)

    def translate(self, error: BaseException, url: str) -> FeedmillError | None:
        return translate(error, url)

    def is_beyond_end(self, error: BaseException) -> bool:
        return is_beyond_end(error)

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = (), hidden: bool = False) -> Iterator[Entry]:
        import obstore

        folder = "/".join(part for part in self.check_path(prefix).split("/") if part not in ("", "."))
        skip, endings, empty = len(folder) + 1 if folder else 0, tuple(suffixes), True
        entries: list[Entry] = []
        with self.requesting(prefix):
            # Most web servers cannot list, and their errors would make the other client retry.
            client = self.client if self.lists else self.reader
            for page in obstore.list(client, prefix=folder or None, chunk_size=1000):
                empty = False
                listed = (meta for meta in page if is_listed(meta["path"][skip:], endings, hidden))
                entries.extend(entry_of(meta["path"], meta) for meta in listed)
        if empty:
            raise NotFound("there is no such folder", file=self.locate(folder), fix="Check the URL.")
        # Stores list folder markers ("a/") as empty files with the name of the folder.
        folders = {parent for entry in entries for parent in _parents(entry.path)}
        entries = [entry for entry in entries if entry.size or entry.path not in folders]
        entries.sort(key=lambda entry: entry.path)
        yield from entries

    def is_folder(self, path: str = "") -> bool:
        import obstore

        prefix = self.check_path(path).strip("/") or None
        with self.requesting(path):
            return any(len(page) for page in obstore.list(self.client, prefix=prefix, chunk_size=1))

    def modified(self, path: str) -> float:
        with self.requesting(path):
            return self._head(self.key(path))["last_modified"].timestamp()

    def stat(self, path: str) -> Entry:
        key = self.key(path)
        with self.requesting(path):
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
            if status_of(error) in ("400", "403"):  # a HEAD answer has no body: the error of a GET has the reason
                obstore.get(self.client, key, options={"range": (0, 1)})
            raise

    def preload(self, paths: Sequence[str], heads: Sequence[str] = ()) -> None:
        guard_against_fork(self.url)
        if not paths and not heads:
            self._preloaded = {}
            return
        sizes = {self.key(path): SMALL for path in paths} | {self.key(path): HEAD for path in heads}
        missing = {key: size for key, size in sizes.items() if key not in self._preloaded}
        self._preloaded = {**self._preloaded, **preload(self, missing)}

    def _list_entries(self, keys: Sequence[str]) -> None:
        """Read the entries of objects in one folder from listings, while each page has more than a few of them."""
        import obstore

        folder = os.path.commonpath(keys) if len(keys) > 1 else keys[0].rpartition("/")[0]
        remaining = set(keys)
        with contextlib.suppress(StorageError), self.requesting(folder):  # some users may read but not list
            for page in obstore.list(self.client, prefix=folder or None, chunk_size=1000):
                entries = [entry_of(meta["path"], meta) for meta in page if meta["path"] in remaining]
                self._entries.update((entry.path, entry) for entry in entries)
                remaining.difference_update(entry.path for entry in entries)
                if len(entries) <= SINGLE_LOOKUPS or not remaining:
                    break
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self.pin_version(key, entry.version)

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        small = self._preloaded.get(self.key(path))
        if small is None or small.entry is None:
            return super().read_ranges(path, offsets, lengths)
        rows, there = zip(offsets, lengths, strict=True), len(small.data)
        found = [small.data[at : at + n] if 0 <= at <= at + n <= there else None for at, n in rows]
        missing = [number for number, data in enumerate(found) if data is None]
        others = iter(super().read_ranges(path, *([of[number] for number in missing] for of in (offsets, lengths))))
        return [next(others) if data is None else data for data in found]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        import obstore

        if length is not None:
            return self.read_ranges(path, [offset], [length])[0]
        key = self.key(path)
        small = self._preloaded.get(key)
        if small is not None and small.is_whole:
            return small.data[offset:]
        with self.requesting(path):
            if not offset:
                with waiting():
                    return bytes(memoryview(fetcher().request(self, key, 0, WHOLE)))
            try:
                return obstore.get(self.client, key, options={"range": {"offset": offset}}).bytes().to_bytes()
            except Exception as error:
                if is_beyond_end(error):
                    return b""
                raise


def _rebuild(url: str, options: dict[str, Any]) -> RemoteStore:
    return RemoteStore(url, **options)


def _parents(path: str) -> Iterator[str]:
    """Yield the folders above a path."""
    slash = path.rfind("/")
    while slash > 0:
        yield path[:slash]
        slash = path.rfind("/", 0, slash)


class SmallObject(NamedTuple):
    """A preloaded object.

    Attributes:
        entry: its entry; None if there is no such object.
        data: its first bytes, at most as many as were asked for.
    """

    entry: Entry | None
    data: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Return whether all its bytes are there."""
        return self.entry is not None and len(self.data) == self.entry.size


def preload(store: RemoteStore, sizes: Mapping[str, int]) -> dict[str, SmallObject]:
    """Return objects by key, with one request for each, all at once. Objects whose request failed are omitted.

    In a block of `preloaded_once`, objects that were preloaded in it are not requested again.

    Args:
        sizes: number of bytes to request of each object, by key.
    """
    stores = _kept.get()
    kept: dict[str, SmallObject] = {} if stores is None else stores.setdefault(store.url, {})
    objects = {key: kept[key] for key in sizes if key in kept}
    missing = [(key, size) for key, size in sizes.items() if key not in kept]
    for key, future in [(key, fetcher().run(0, _read, store, key, size)) for key, size in missing]:
        try:
            objects[key] = future.result()
        except (Exception, CancelledError) as error:  # a later read requests it again and raises the error
            if isinstance(translate(error, key), NotFound):
                objects[key] = SmallObject(None)
    kept.update(objects)
    return objects


_kept: ContextVar[dict[str, dict[str, SmallObject]] | None] = ContextVar("preloaded objects by store", default=None)


@contextlib.contextmanager
def preloaded_once() -> Iterator[None]:
    """Preload the small files of a dataset once in a block that opens it several times, such as for its splits."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _read(store: RemoteStore, key: str, size: int) -> SmallObject:
    import obstore

    answer = obstore.get(store.reader, key, options={"range": (0, size)})
    return SmallObject(entry_of(key, answer.meta), answer.bytes().to_bytes())
