"""The cache of remote data on this machine's disk: its settings, and one page cache for each folder."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from feedmill.errors import ConfigError
from feedmill.storage.folders import cache_folder
from feedmill.storage.limits import parse_size
from feedmill.storage.paged import Paging, Unit
from feedmill.storage.pages import PAGE, PageCache

FOLDER, SIZE, UNIT = "FEEDMILL_CACHE_DIR", "FEEDMILL_CACHE_SIZE", "FEEDMILL_CACHE_UNIT"
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
        folder = cache_folder() / "data" if dir is None else Path(dir).expanduser()
        return cls(parse_size(size, SIZE) or 0, folder, unit)  # type: ignore[arg-type]

    def paging(self) -> Paging | None:
        """Return what reading ahead needs of the cache; None if there is none. All calls share one cache."""
        if not self.size:
            return None
        with _lock:
            key = str(self.dir.absolute()), self.size
            if key not in _caches:
                _caches[key] = PageCache(self.dir, self.size)
            return Paging(_caches[key], self.unit)


_lock = threading.Lock()
_caches: dict[tuple[str, int], PageCache] = {}
"""One for each folder and size of the process. They live as long as it does."""
