"""The cache of remote data on this machine's disk: its settings, and one page cache for each folder."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from feedmill.errors import ConfigError
from feedmill.storage.cache.files import SIZE, FileCache, file_cache
from feedmill.storage.cache.paged import Paging, Unit
from feedmill.storage.cache.pages import PAGE, PageCache
from feedmill.storage.folders import cache_folder
from feedmill.storage.limits import parse_size

FOLDER, UNIT = "FEEDMILL_CACHE_DIR", "FEEDMILL_CACHE_UNIT"
DATA = "data"
"""Folder of the pages in the cache folder."""
_LEAST = 256 * PAGE


@dataclass(frozen=True, slots=True)
class DataCache:
    """Settings of the cache of remote data.

    Attributes:
        size: bytes of data that it may hold; 0 for no cache.
        dir: its folder.
        unit: what is fetched; see `Paging`.

    Raises:
        ConfigError: the size is too small, or the unit is unknown.
    """

    size: int
    dir: Path
    unit: Unit = "auto"

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ConfigError(
                f"the cache unit {self.unit!r} is unknown",
                kind="bad-cache",
                fix=f"Use one of: {', '.join(get_args(Unit))}.",
            )
        if 0 < self.size < _LEAST:
            raise ConfigError(
                f"a cache of {self.size:,} bytes is too small",
                kind="bad-cache",
                fix=f"Give it at least {_LEAST >> 20} MiB, or 0 for none.",
            )

    @classmethod
    def of(cls, size: int | str | None = None, dir: str | None = None, unit: str | None = None) -> DataCache:
        """Return settings, with those of the environment for what is None: no size there means no cache.

        Raises:
            ConfigError: a value is invalid.
        """
        size = os.environ.get(SIZE) or 0 if size is None else size
        unit = unit or os.environ.get(UNIT) or "auto"
        folder = cache_folder() / DATA if dir is None else Path(dir).expanduser()
        return cls(parse_size(size, SIZE) or 0, folder, unit)  # type: ignore[arg-type]

    def paging(self) -> Paging | None:
        """Return what reading ahead needs of the cache; None if there is none. All calls share one cache.

        In the cache folder, the size is also that of its `FileCache`, which gets half of it for files in no use.
        """
        if not self.size:
            return None
        with _lock:
            key = str(self.dir.absolute()), self.size
            if key not in _caches:
                files = _files_beside(self.dir)
                if files is None:
                    _caches[key] = PageCache(self.dir, self.size)
                else:
                    files.limit = self.size // 2
                    files.trim()
                    _caches[key] = PageCache(self.dir, self.size, lambda: files.total)
            return Paging(_caches[key], self.unit)


def trim_pages(files: FileCache) -> None:
    """Evict the pages for which the files in a cache folder have left no room. Raises `ConfigError`."""
    settings = DataCache.of()
    if settings.size and settings.dir.is_dir():
        settings.paging()
    with _lock:
        beside = [cache for (folder, _), cache in _caches.items() if _files_beside(Path(folder)) is files]
    for cache in beside:
        cache.reserve(0)


def _files_beside(folder: Path) -> FileCache | None:
    """Return the `FileCache` of the cache folder if the pages lie there, too."""
    here = cache_folder()
    return file_cache(here) if folder.absolute() == here.absolute() / DATA else None


_lock = threading.Lock()
_caches: dict[tuple[str, int], PageCache] = {}
"""One for each folder and size of the process. They live as long as it does."""
