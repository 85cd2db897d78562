"""What a cooker wants to read later: lazy handles on files of stores, with or without a cache on the local disk.

A cooker whose samples wait long (for a pack, in a buffer) takes `CachePool.get_lazy` in place of the bytes; the task
reads them by `Lazy.get` once the sample was chosen. `NoCachePool` reads then, `feedmill.loading.diskpool` fetches
ahead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from feedmill.samples.stores import FileStore, add_source

T = TypeVar("T")


class Lazy(ABC, Generic[T]):
    """A value that is read when it is asked for.

    Attributes:
        ds: the store; None for a value that was put away with `CachePool.to_cache`.
        fname: the file's name in it.
    """

    ds: FileStore[Any] | None
    fname: str

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Return the value; where `sample` is given, where it came from is added to the sample's sources."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lazy):
            return NotImplemented
        return self is other or (self.ds is not None and self.ds is other.ds and self.fname == other.fname)

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fname!r} of {self.ds!r})"


class DirectLazy(Lazy[Any]):
    """Reads from the store whenever it is asked."""

    def __init__(self, ds: FileStore[Any], fname: str) -> None:
        self.ds, self.fname = ds, fname

    def get(self, sample: Any = None) -> Any:
        assert self.ds is not None
        return self.ds.get(self.fname, sample)


class HeldLazy(Lazy[Any]):
    """A value in memory."""

    def __init__(self, value: Any, fname: str) -> None:
        self.ds, self.fname, self._value = None, fname, value

    def get(self, sample: Any = None) -> Any:  # noqa: ARG002
        return self._value

    def __hash__(self) -> int:
        return id(self)


class MockLazy(Lazy[Any]):
    """A lazy value that a function makes, called with its name: for tests, and for what is made by rule."""

    def __init__(self, fname: str, get_fn: Any) -> None:
        self.ds, self.fname, self._make = None, fname, get_fn

    def get(self, sample: Any = None) -> Any:  # noqa: ARG002
        return self._make(self.fname)

    def __hash__(self) -> int:
        return id(self)


class CachePool(ABC):
    """Gives files of stores now, or lazily."""

    @abstractmethod
    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        """Return a handle on a file's value, to be read later."""

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        """Put a value away; the handle gives it back. `name` is for messages."""

    def get(self, ds: FileStore[Any], fname: str, sample: Any = None) -> Any:
        """Return a file's value, now."""
        return ds.get(fname, sample)

    def close(self) -> None:
        """Give back what the pool holds; handles that are left read from their stores."""
        return


class NoCachePool(CachePool):
    """Keeps nothing: lazy handles read when they are asked."""

    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        return DirectLazy(ds, fname)

    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        return HeldLazy(data, name)


def noted(ds: FileStore[Any], fname: str, sample: Any) -> None:
    """Add where a file lies to the sample's sources, where there is a sample."""
    if sample is not None:
        add_source(sample, ds.source(fname))
