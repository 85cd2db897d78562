"""Object stores and web servers as a `Store`, through `obstore` (``s3://``, ``gs://``, ``az://``, ``http(s)://``).

An object appears whole or not at all, when the block that writes it ends (see `feedmill.storage.upload`). An object
store has no folders; a folder exists while it has objects.

The event loop of `obstore` does not survive `fork`: a child would hang and its parent with it, so requests in a forked
child raise an error. Processes started by "spawn" or "forkserver" (as `feedmill.jobs` does) are not affected.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.answers import AGAIN, CHECK, status_of, translate
from feedmill.storage.base import Entry, Ranges, refuse_nul, too_short
from feedmill.storage.fetch import WHOLE, Failed, fetcher, replaced, waiting
from feedmill.storage.options import Patience, connect, connect_for_ranges, patience_of
from feedmill.storage.paged import OnDisk, on_disk
from feedmill.storage.ranges import OFFSET_BITS, merged
from feedmill.storage.remote_files import RemoteFiles, entry_of
from feedmill.storage.segments import Held, Segment

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_EMPTY = memoryview(b"")
_FEW = 4
"""Objects whose entries are requested one by one; those of more are listed."""

_process = {"requested": False, "forked": False}
_answered: set[str] = set()
"""Buckets and servers that have answered this process."""


class RemoteStore(RemoteFiles):
    """A bucket, a prefix of one, or a folder of a web server.

    Args:
        url: ``s3://bucket/prefix``, ``gs://...``, ``az://...`` or ``https://host/folder``.
        options: settings of `obstore` that override the environment's, e.g. ``endpoint``, ``region``,
            ``skip_signature``, ``client_options``, ``retry_config``.

    Raises `ConfigError` if the URL or an option is invalid.
    """

    is_local = False

    def __init__(self, url: str, **options: Any) -> None:
        refuse_nul(url)
        self.url = url.rstrip("/")
        self.options = options
        self.host = "/".join(self.url.split("/")[:3])
        self._hasty = connect(self.url, options, patient=False)
        self._patient: ObjectStore | None = None
        self._reader: ObjectStore | None = None
        self._brisk: ObjectStore | None = None
        self._renewing = threading.Lock()
        self._versions: dict[str, str] | None = None
        self._entries: dict[str, Entry | None] = {}
        self.held = Held()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self.options)

    def below(self, folder: str) -> RemoteStore:
        return RemoteStore(f"{self.url}/{self.check_path(folder)}", **self.options)

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"  # options may hold secrets

    def key(self, path: str) -> str:
        """Return the key of a file below the store's URL. Raises `StorageError` for a folder."""
        key = "/".join(part for part in self.check_path(path).split("/") if part not in ("", "."))
        if not key:
            raise StorageError("this is a folder, a file was expected", file=self.url, kind="eisdir", fix=CHECK)
        return key

    @property
    def client(self) -> ObjectStore:
        """Return the client for requests, which retries for longer once this bucket or server has answered."""
        if self.host not in _answered:
            return self._hasty
        if self._patient is None:
            self._patient = connect(self.url, self.options, patient=True)
        return self._patient

    @property
    def reader(self) -> ObjectStore:
        """Return the client for ranges, each of whose requests is one try; see `feedmill.storage.fetch`."""
        if self._reader is None:
            self._reader = connect_for_ranges(self.url, self.options)
        return self._reader

    @property
    def brisk_reader(self) -> ObjectStore:
        """Return the client for ranges whose requests are given up sooner; see `connect_for_ranges`."""
        if self._brisk is None:
            self._brisk = connect_for_ranges(self.url, self.options, brisk=True)
        return self._brisk

    def renew(self, used: ObjectStore) -> None:
        """Connect again, so that credentials are read and requested again, unless that was done since `used`.

        Args:
            used: the client for ranges whose request was denied. Many requests in flight are denied at once.
        """
        with self._renewing:
            if used is self._reader or used is self._brisk:
                self._reader = self._brisk = self._patient = None
                self._hasty = connect(self.url, self.options, patient=False)

    def patience(self) -> Patience:
        """Return how often and how long a failed request for a range is tried again."""
        return patience_of(self.options, patient=self.host in _answered)

    def pin_files(self) -> None:
        if self._versions is None:
            self._versions = {}

    def answered(self) -> None:
        """Note that the server answered."""
        _answered.add(self.host)

    def forget(self, key: str) -> None:
        """Forget the version of an object that this store writes or deletes."""
        self._entries.pop(key, None)
        if self._versions is not None:
            self._versions.pop(key, None)

    def check_version(self, key: str, meta: ObjectMeta) -> None:
        """Raise `DataError` if a pinned object has another version than before."""
        if self._versions is not None:
            version = entry_of(key, meta).version
            if self._versions.setdefault(key, version) != version:
                raise replaced(f"{self.url}/{key}")

    @contextlib.contextmanager
    def asking(self, path: str) -> Iterator[None]:
        """Convert the errors of a request; every request runs inside this block."""
        _guard_against_fork(self.url)
        try:
            yield
            _answered.add(self.host)
        except FeedmillError:
            raise
        except BaseException as error:
            translated = translate(error, self.locate(path))
            if translated is None:
                raise
            raise translated from None

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = ()) -> Iterator[Entry]:
        import obstore

        folder = "/".join(part for part in self.check_path(prefix).split("/") if part not in ("", "."))
        skip, wanted, empty = len(folder) + 1 if folder else 0, tuple(suffixes), True
        found: list[Entry] = []
        with self.asking(prefix):
            for page in obstore.list(self.client, prefix=folder or None, chunk_size=1000):
                empty = False
                found.extend(entry_of(meta["path"], meta) for meta in page if _listed(meta["path"][skip:], wanted))
        if empty:
            raise NotFound("there is no such folder", file=self.locate(folder), fix="Check the URL.")
        # A store lists its folder markers ("a/") as empty files of the folder's name.
        folders = {parent for entry in found for parent in _parents(entry.path)}
        found = [entry for entry in found if entry.size or entry.path not in folders]
        found.sort(key=lambda entry: entry.path)
        yield from found

    def stat(self, path: str) -> Entry:
        import obstore

        key = self.key(path)
        with self.asking(path):
            try:
                return entry_of(path, obstore.head(self.client, key))
            except Exception as error:
                if status_of(error) in ("400", "403"):  # an answer to HEAD has no body, which would give the reason
                    obstore.get(self.client, key, options={"range": (0, 1)})
                raise

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        self.pin_files()
        keys = [self.key(path) for path in paths]
        missing = [key for key in dict.fromkeys(keys) if key not in self._entries]
        if len(missing) > _FEW and not self.url.startswith("http"):
            self._list_entries(missing)
            missing = [key for key in missing if key not in self._entries]
        futures = [fetcher().run(0, self._find, key) for key in missing]
        for key, future in zip(missing, futures, strict=True):
            self._entries[key] = future.result()
        return [self._entries[key] for key in keys]

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
                if len(found) <= _FEW or not wanted:
                    break
        assert self._versions is not None
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._versions.setdefault(key, entry.version)

    def _find(self, key: str) -> Entry | None:
        try:
            entry = self.stat(key)
        except NotFound:
            return None
        assert self._versions is not None
        self._versions.setdefault(key, entry.version)
        return entry

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        import obstore

        if length is not None:
            return self.read_ranges(path, [offset], [length])[0]
        key = self.key(path)
        with self.asking(path):
            if not offset:
                with waiting():
                    return fetcher().request(self, key, 0, WHOLE).to_bytes()
            try:
                return obstore.get(self.client, key, options={"range": {"offset": offset}}).bytes().to_bytes()
            except Exception as error:
                if status_of(error) == "416":  # the range begins after the end
                    return b""
                raise

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return self.read_many([(path, offsets, lengths)])[0]

    def read_many(self, files: Sequence[Ranges]) -> list[list[bytes]]:
        return [[bytes(view) for view in views] for views in self._views(files)]

    def fill(self, files: Sequence[Ranges], buffer: memoryview) -> None:
        at = 0
        for views in self._views(files):
            for view in views:
                buffer[at : at + len(view)] = view
                at += len(view)

    def on_disk(self, files: Sequence[Ranges]) -> OnDisk | None:
        found: list[Segment] = []
        for path, offsets, lengths in files:
            for segment in self.held.find(self.key(path), offsets, lengths):
                if segment is None or not segment.paged:
                    return None
                found.append(segment)
        for segment in found:
            segment.start()
        return on_disk(found) if found else None

    def _views(self, files: Sequence[Ranges]) -> list[list[memoryview]]:
        """Return the bytes of ranges: those that were read ahead, and the others with requests of their own."""
        found: list[list[memoryview]] = [[_EMPTY] * len(offsets) for _, offsets, _ in files]
        waiting: list[tuple[int, int, int, int, Segment]] = []
        missing: list[list[int]] = [[] for _ in files]
        for number, (path, offsets, lengths) in enumerate(files):
            for place, segment in enumerate(self.held.find(self.key(path), offsets, lengths)):
                if segment is None:
                    missing[number].append(place)
                    continue
                begin, end = offsets[place], offsets[place] + lengths[place]
                if segment.data is None:
                    waiting.append((number, place, begin, end, segment))
                else:
                    found[number][place] = segment.data[begin - segment.begin : end - segment.begin]
        for *_, segment in waiting:
            segment.start()
        for number, place, begin, end, segment in waiting:
            view = segment.view(begin, end)
            if view is None:
                missing[number].append(place)
            else:
                found[number][place] = view
        self._ask(files, missing, found)
        return found

    def _ask(self, files: Sequence[Ranges], missing: Sequence[list[int]], found: list[list[memoryview]]) -> None:
        """Request the ranges at the places `missing` of each file, and put them in `found`."""
        rows = [
            (number, place, offsets[place], lengths[place])
            for number, ((_, offsets, lengths), places) in enumerate(zip(files, missing, strict=True))
            for place in places
        ]
        paths = [path for path, _, _ in files]
        for number, _, offset, length in rows:
            if offset >= 0 and length >= 0 and 1 << OFFSET_BITS <= offset + length < 1 << 63:
                raise self._beyond_end(*files[number])
        ranges = [(number, offset, length) for number, _, offset, length in rows]
        requests, parts = merged([self.locate(path) for path in paths], ranges, fetcher().gap())
        asked = {number for number, _, _ in requests}
        for number, (path, _, lengths) in enumerate(files):
            if number not in asked and not any(lengths):
                self.stat(path)  # nothing is requested of it, and it may not exist
        views = self._fetch([(paths[owner], begin, end) for owner, begin, end in requests], files)
        for (number, place, offset, length), (part, start) in zip(rows, parts, strict=True):
            view = views[part][start : start + length] if length else _EMPTY
            if len(view) != length:
                raise too_short(self.locate(paths[number]), int(offset), int(length), len(view))
            found[number][place] = view

    def _fetch(self, requests: Sequence[tuple[str, int, int]], files: Sequence[Ranges]) -> list[memoryview]:
        """Return the bytes of requests; `files` are the ranges that they are for."""
        if not requests:
            return []
        with self.asking(requests[0][0]):
            try:
                blocks = fetcher().fetch(self, [(self.key(path), begin, end) for path, begin, end in requests])
                return [memoryview(block) for block in blocks]
            except Failed as failed:
                beyond = requests[failed.number][0]
                with self.asking(beyond):  # which names this file
                    if status_of(failed.error) != "416":
                        raise failed.error from None
        raise self._beyond_end(*next(ranges for ranges in files if ranges[0] == beyond))

    def _beyond_end(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> FeedmillError:
        size = self.stat(path).size
        for offset, length in zip(offsets, lengths, strict=True):
            if offset + length > size:
                return too_short(self.locate(path), int(offset), int(length), max(0, int(size - offset)))
        return StorageError("the server refused a range that the file has", file=self.locate(path), fix=AGAIN)


def _rebuild(url: str, options: dict[str, Any]) -> RemoteStore:
    return RemoteStore(url, **options)


def _listed(below: str, suffixes: tuple[str, ...]) -> bool:
    folder = below.rpartition("/")[0]
    hidden = folder.startswith(".") or "/." in folder
    return not hidden and (not suffixes or below.endswith(suffixes))


def _parents(path: str) -> Iterator[str]:
    cut = path.rfind("/")
    while cut > 0:
        yield path[:cut]
        cut = path.rfind("/", 0, cut)


def _guard_against_fork(url: str) -> None:
    if _process["forked"]:
        raise StorageError(
            "this process was forked after its parent had read from an object store: requests would hang",
            file=url,
            kind="forked",
            fix="Start processes with 'spawn' or 'forkserver' (for a torch DataLoader: multiprocessing_context=...).",
        )
    if not _process["requested"]:
        _process["requested"] = True
        os.register_at_fork(after_in_child=lambda: _process.update(forked=True))
