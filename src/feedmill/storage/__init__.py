"""Where bytes live: local folders and object stores behind one `Store`."""

from __future__ import annotations

import os
from urllib.parse import unquote

from feedmill.errors import ConfigError
from feedmill.storage.base import Entry, Store, refuse_nul
from feedmill.storage.local import LocalStore

__all__ = [
    "Entry",
    "LocalStore",
    "Store",
    "is_local_file",
    "is_local_folder",
    "join_url",
    "open_store",
    "real_place",
    "split_url",
]

_OF_OBSTORE = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://", "adl://", "http://", "https://")
"""Schemes of `RemoteStore`; others are those of `fsspec`."""


def open_store(url: str | os.PathLike[str]) -> Store:
    """Return the store for a folder given as a path or URL (``s3://bucket/prefix``, ``file:///data``).

    Raises `ConfigError` for an unknown scheme or profile, and `MissingExtra` if a package for the scheme is missing.
    """
    text = _plain(os.fspath(url))
    if "://" not in text:
        return LocalStore(text)
    from feedmill.storage.remote.msc import resolve
    from feedmill.storage.remote.options import options_for

    refuse_nul(text)
    place = resolve(text).url
    if "://" not in place:
        return LocalStore(place)
    if place.startswith(_OF_OBSTORE):
        from feedmill.storage.remote.object_store import RemoteStore

        return RemoteStore(text, **options_for(text))
    from feedmill.storage.remote.filesystem import FilesystemStore

    return FilesystemStore(text, **options_for(text))


def is_local_folder(url: str) -> bool:
    """Return whether this is a folder of this machine, whatever its suffix."""
    path = _plain(url)
    return "://" not in path and os.path.isdir(LocalStore(path).root)


def real_place(url: str) -> str:
    """Return the canonical name of a location: a local path with links resolved, or the URL."""
    path = _plain(url)
    return path.rstrip("/") if "://" in path else os.path.realpath(LocalStore(path).root)


def is_local_file(url: str) -> bool:
    """Return whether this is a file of this machine."""
    path = _plain(url)
    return "://" not in path and os.path.isfile(LocalStore(path).root)


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the folder and file name of a path or URL, for a file that is read through its folder's store.

    The name is empty if the URL is a whole bucket or the root folder.
    """
    root, rest = _root(os.fspath(url))
    folder, _, name = rest.rstrip("/").rpartition("/")
    return (root + folder).rstrip("/") or root or ".", name


def join_url(base: str, path: str) -> str:
    """Return `path` relative to the folder `base`; absolute paths and URLs are unchanged, ``~/`` is the home folder.

    Raises `ConfigError` if ``..`` leads out of a bucket.
    """
    if path.startswith("~/"):
        return os.path.expanduser(path)
    path = _plain(path)
    if "://" in path or path.startswith("/"):
        return path
    root, rest = _root(base)
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part == ".." and "://" in root:
            raise ConfigError(
                f"the path {path!r} leaves the bucket",
                file=base,
                kind="path-escapes",
                fix="Use the full URL instead.",
            )
        elif part not in ("", ".") and not (part == ".." and root):
            parts.append(part)
    return (root + "/".join(parts)).rstrip("/") or root or "."


def _root(url: str) -> tuple[str, str]:
    """Split a URL into its root, which ``..`` cannot leave (``/``, ``s3://bucket/``, or nothing), and the rest."""
    url = _plain(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return ("/", url.lstrip("/")) if url.startswith("/") else ("", url)
    host, _, rest = rest.partition("/")
    return f"{scheme}://{host}/", rest


def _plain(url: str) -> str:
    """Return the path of a ``file://`` URL or of WebDataset's ``file:PATH``; anything else is unchanged."""
    if not url.startswith("file://"):
        return url.removeprefix("file:")
    return "/" + unquote(url.removeprefix("file://")).removeprefix("localhost").lstrip("/")
