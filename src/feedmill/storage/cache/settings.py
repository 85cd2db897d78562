"""Settings of the cache of remote data (`DataCache`): the loader and ``feedmill cache`` get the cache from here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from feedmill.errors import ConfigError
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.folder import SIZE
from feedmill.storage.cache.reading import WHOLE_SHARE, CacheUse, Unit
from feedmill.storage.folders import cache_folder
from feedmill.storage.limits import parse_size

FOLDER, UNIT = "FEEDMILL_CACHE_DIR", "FEEDMILL_CACHE_UNIT"
_MIN_SIZE = 32 << 20


@dataclass(frozen=True, slots=True)
class DataCache:
    """Settings of the cache of remote data.

    Attributes:
        size: maximum size of the cached data in bytes; 0 for no cache.
        dir: folder of the cache.
        unit: what is fetched at once; see `CacheUse`.

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
        if 0 < self.size < _MIN_SIZE:
            raise ConfigError(
                f"a cache of {self.size:,} bytes is too small",
                kind="bad-cache",
                fix=f"Set at least {_MIN_SIZE >> 20} MiB, or 0 for no cache.",
            )

    @classmethod
    def of(cls, size: int | str | None = None, dir: str | None = None, unit: str | None = None) -> DataCache:
        """Return settings; those that are None are read from the environment. Without a size there is no cache.

        Args:
            size: bytes, or text such as ``"500GB"``.
            dir: folder of the cache.
            unit: ``auto``, ``block`` or ``shard``.

        Raises:
            ConfigError: a value is invalid.
        """
        size = os.environ.get(SIZE) or 0 if size is None else size
        unit = unit or os.environ.get(UNIT) or "auto"
        folder = cache_folder() if dir is None else Path(dir).expanduser()
        return cls(parse_size(size, SIZE) or 0, folder, unit)  # type: ignore[arg-type]

    def use(self) -> CacheUse | None:
        """Return the object by which `ReadAhead` uses the cache; None without a cache.

        All calls for a folder share one cache, which has the size of the last of them.
        """
        if not self.size:
            return None
        cache = disk_cache(self.dir)
        cache.start(self.size)
        return CacheUse(cache, self.unit)


def data_cache() -> DataCache:
    """Return the settings of the enclosing `using_cache` block, or those of the environment. Raises `ConfigError`."""
    return _current.get() or DataCache.of()


def fitting_cache(size: int) -> DataCache:
    """Return `data_cache` for data that is read as a whole; of size 0 if it does not fit, as it would evict itself."""
    settings = data_cache()
    return settings if size <= WHOLE_SHARE * settings.size else dataclasses.replace(settings, size=0)


@contextlib.contextmanager
def using_cache(settings: DataCache | None) -> Iterator[None]:
    """Use a cache for what is opened in a block; with None, that of the outer block or of the environment."""
    token = _current.set(settings or _current.get())
    try:
        yield
    finally:
        _current.reset(token)


_current: ContextVar[DataCache | None] = ContextVar("cache of remote data", default=None)
