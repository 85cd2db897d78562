"""Energon's path type, for scripts that create paths with it. Feedmill's own functions take paths and URLs as text."""

from __future__ import annotations

import os

from feedmill.storage import split_url

__all__ = ["EPath"]


class EPath(str):
    """A path or URL, as a string with Energon's operators and properties."""

    __slots__ = ()

    def __new__(cls, path: str | os.PathLike[str]) -> EPath:
        return super().__new__(cls, os.fspath(path))

    def __fspath__(self) -> str:
        return str(self)

    def __truediv__(self, name: str | os.PathLike[str]) -> EPath:
        return EPath(f"{self.rstrip('/')}/{os.fspath(name)}")

    @property
    def name(self) -> str:
        """Return the last component."""
        return self.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> EPath:
        """Return the path without its last component: ``.`` for a single name; a root or bucket is its own parent."""
        return EPath(split_url(self)[0])
