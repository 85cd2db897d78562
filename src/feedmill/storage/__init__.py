"""Where bytes live: local folders and object stores behind one `Store`."""

from __future__ import annotations

import os

from feedmill.storage.base import Entry, Store
from feedmill.storage.local import LocalStore

__all__ = ["Entry", "LocalStore", "Store", "join_url", "open_store", "split_url"]


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store for a folder given as a path or URL (``s3://bucket/prefix``, ``file:///data``)."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(text)
    if scheme == "file":
        return LocalStore(rest)
    from feedmill.storage.remote import RemoteStore

    return RemoteStore(text)


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Folder and file name of a path or URL, for a file that is to be read through its folder's store."""
    folder, slash, name = os.fspath(url).rstrip("/").rpartition("/")
    return (folder or slash or "."), name


def join_url(base: str, path: str) -> str:
    """`path` as seen from the folder `base`; absolute paths and URLs stay as they are."""
    if "://" in path or path.startswith("/"):
        return path
    parts = base.rstrip("/").split("/")
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "/"
