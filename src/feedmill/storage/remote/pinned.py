"""Pin the versions of remote files (`PinningStore`): a file that is replaced while a dataset is open is an error."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from feedmill.errors import NotFound, StorageError
from feedmill.storage.base import Entry, Store
from feedmill.storage.fetching.fetch import fetcher, replaced, result_of
from feedmill.storage.remote.errors import CHECK

SINGLE_LOOKUPS = 4
"""Up to this number of files, entries are requested one by one; more are listed."""


class PinningStore(Store):
    """A remote store that knows which version of each file it has read. Base class of `RangeStore`."""

    def __init__(self) -> None:
        self._versions: dict[str, str] | None = None
        self._entries: dict[str, Entry | None] = {}

    def pin_files(self) -> None:
        if self._versions is None:
            self._versions = {}

    def pin_version(self, key: str, version: str) -> None:
        """Pin the version of a file unless one is pinned already."""
        assert self._versions is not None
        self._versions.setdefault(key, version)

    def check_version(self, key: str, version: str) -> None:
        """Raise `DataError` if a pinned file has another version than before."""
        if self._versions is not None and self._versions.setdefault(key, version) != version:
            raise replaced(f"{self.url}/{key}")

    def forget(self, key: str) -> None:
        """Unpin a file that this store writes or deletes."""
        self._entries.pop(key, None)
        if self._versions is not None:
            self._versions.pop(key, None)

    def note_entry(self, entry: Entry) -> None:
        """Keep the entry of a pinned file that came with its bytes, so that `entries` makes no request for it."""
        if self._versions is not None and entry.path not in self._entries:
            self._entries[entry.path] = entry

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        self.pin_files()
        keys = [self.key(path) for path in paths]
        missing = [key for key in dict.fromkeys(keys) if key not in self._entries]
        if len(missing) > SINGLE_LOOKUPS and self.lists:
            self._list_entries(missing)
            missing = [key for key in missing if key not in self._entries]
        futures = [fetcher().run(0, self._look_up, key) for key in missing]
        for key, future in zip(missing, futures, strict=True):
            self._entries[key] = result_of(future)
        return [self._entries[key] for key in keys]

    def _look_up(self, key: str) -> Entry | None:
        """Return the entry of a file, with its version pinned; None if there is no such file."""
        try:
            entry = self.stat(key)
        except NotFound:
            return None
        self.pin_version(key, entry.version)
        return entry

    @property
    @abstractmethod
    def lists(self) -> bool:
        """Return whether the store can list its files."""

    @abstractmethod
    def _list_entries(self, keys: Sequence[str]) -> None:
        """Read the entries of files in one folder from listings, and pin their versions."""

    def key(self, path: str) -> str:
        """Return the key of a file below the store's URL. Raises `StorageError` for a folder."""
        key = "/".join(part for part in self.check_path(path).split("/") if part not in ("", "."))
        if not key:
            raise StorageError("this is a folder, a file was expected", file=self.url, kind="eisdir", fix=CHECK)
        return key
