"""Lazy handles on files that cookers need later, and the interface of the pools that create them.

Use a handle if samples wait long before they are used, for example in a packing buffer. The cooker calls
`CachePool.get_lazy` instead of reading the file, and a later hook calls `Lazy.get` on the samples that were selected.
`NoCachePool` reads the file in `Lazy.get`. `feedmill.loading.diskpool.FileStoreCachePool` fetches it to the local disk
before that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from feedmill.samples.stores import FileStore

T = TypeVar("T")


class Lazy(ABC, Generic[T]):
    """Handle on a value that is read by `get`.

    Attributes:
        ds: the store of the file; None for a value that was stored with `CachePool.to_cache`.
        fname: name of the file in the store.
    """

    ds: FileStore[Any] | None
    fname: str

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Return the value.

        Args:
            sample: sample to whose sources the location of the file is added; None for no sample.

        Raises:
            FeedmillError: as `FileStore.get` does.
        """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lazy):
            return NotImplemented
        return self is other or (self.ds is not None and self.ds is other.ds and self.fname == other.fname)

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fname!r} of {self.ds!r})"


class DirectLazy(Lazy[Any]):
    """Handle that reads from the store at each call of `get`."""

    def __init__(self, ds: FileStore[Any], fname: str) -> None:
        self.ds, self.fname = ds, fname

    def get(self, sample: Any = None) -> Any:
        assert self.ds is not None
        return self.ds.get(self.fname, sample)


class HeldLazy(Lazy[Any]):
    """Handle on a value in memory."""

    def __init__(self, value: Any, fname: str) -> None:
        self.ds, self.fname, self._value = None, fname, value

    def get(self, sample: Any = None) -> Any:  # noqa: ARG002
        return self._value

    def __hash__(self) -> int:
        return id(self)


class MockLazy(Lazy[Any]):
    """Handle on a value that a function computes from its name: for tests and generated values."""

    def __init__(self, fname: str, get_fn: Any) -> None:
        self.ds, self.fname, self._make = None, fname, get_fn

    def get(self, sample: Any = None) -> Any:  # noqa: ARG002
        return self._make(self.fname)

    def __hash__(self) -> int:
        return id(self)


class CachePool(ABC):
    """Interface for reading files of stores, at once or lazily."""

    @abstractmethod
    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        """Return a handle that reads the value of a file later.

        Args:
            ds: the store of the file.
            fname: name of the file in the store.
        """

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        """Store a value, and return a handle on it.

        Args:
            data: the value.
            name: name of the value in messages.
        """

    def get(self, ds: FileStore[Any], fname: str, sample: Any = None) -> Any:
        """Return the value of a file, read at once. The arguments are those of `FileStore.get`."""
        return ds.get(fname, sample)

    def close(self) -> None:
        """Delete the files of the pool. Remaining handles read from their stores."""
        return


class NoCachePool(CachePool):
    """Pool without a cache: its handles read the file in `Lazy.get`."""

    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        return DirectLazy(ds, fname)

    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        return HeldLazy(data, name)
