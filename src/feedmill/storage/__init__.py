"""Storage: local folders, object stores and other file systems behind one class, `Store`.

All reads and writes of data go through a store. `open_store` returns the one for a path or URL.

- `base.py`: the class, and errors of the system. `local.py`: local folders, whose files stay
  open, over `staging.py` (files that appear when they are whole). `remote/`: object stores and other systems.
- `fetching/`: requests to remote stores, and reading ahead. `cache/`: the cache of remote data on disk.
- `codec.py`: compression. `hashed.py`: hashes of what is read or written. `window.py`: a range as a file.
- `locks.py`: locks between processes, and whether the machine was restarted. `folders.py`: Feedmill's own
  folders. `limits.py`: limits on untrusted data. `reasons.py`: why a file cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from feedmill.errors import ConfigError
from feedmill.storage.base import Entry, Store, refuse_nul
from feedmill.storage.local import LocalStore

__all__ = [
    "Entry",
    "LocalStore",
    "Store",
    "canonical_location",
    "is_local_file",
    "is_local_folder",
    "join_url",
    "open_store",
    "paths_of",
    "split_url",
]

_OBSTORE_SCHEMES = (
    "s3://",
    "s3a://",
    "gs://",
    "az://",
    "azure://",
    "abfs://",
    "abfss://",
    "adl://",
    "http://",
    "https://",
)
"""Schemes of `RemoteStore`; for all others, `FilesystemStore` uses `fsspec`."""


def open_store(url: str | os.PathLike[str]) -> Store:
    """Return the store for a folder given as a path or URL (``s3://bucket/prefix``, ``file:///data``).

    Raises:
        ConfigError: the scheme or the profile is unknown, or the URL has a password, a key or a signature.
        MissingExtra: the package for the scheme is not installed.
    """
    text = _plain(os.fspath(url))
    if "://" not in text:
        return LocalStore(text)
    from feedmill.storage.remote.msc import resolve
    from feedmill.storage.remote.options import options_for

    refuse_nul(text)
    refuse_secrets(text)
    target = resolve(text).url
    refuse_secrets(target)
    if "://" not in target:
        return LocalStore(target)
    if target.startswith(_OBSTORE_SCHEMES):
        from feedmill.storage.remote.object_store import RemoteStore

        return RemoteStore(text, **options_for(text))
    from feedmill.storage.remote.filesystem import FilesystemStore

    return FilesystemStore(text, **options_for(text))


_GITHUB_REPOSITORY = re.compile(r"github://[^/@]+:[^/@]+@")
"""A URL whose user and password are an owner and a repository."""
_SIGNED = re.compile(
    r"[?&;](?:[^=&]*(?:signature|secret|password|credential|access_?key[^=&]*)|sig|token|[a-z-]*-token|api_?key|sas)=",
    re.I,
)
"""Parameters of presigned URLs, of shared access signatures, and of others that let in whoever has the URL."""


def refuse_secrets(url: str) -> None:
    """Raise `ConfigError` for a URL with a password, a key or a signature: messages, reports, lineages and lists of
    processes show URLs."""
    scheme, _, rest = url.partition("://")
    login, at, place = rest.partition("/")[0].rpartition("@")
    found = "a password" if at and ":" in login and not _GITHUB_REPOSITORY.match(url) else ""
    if not found and _SIGNED.search(rest):
        found = "a signature or a key"
    if found:
        path = rest.partition("/")[2].partition("?")[0].rpartition("@")[2]
        raise ConfigError(
            f"the URL has {found}, which would be shown in messages and reports",
            file=f"{scheme}://{'...@' if at else ''}{place or rest.partition('/')[0]}/{path}",
            kind="bad-url",
            fix="Remove it, and set it in the environment (AWS_*, AZURE_*, GOOGLE_*), in a profile, or in fsspec's"
            " configuration (FSSPEC_<PROTOCOL>_PASSWORD, or a file in ~/.config/fsspec). See docs/storage.md.",
        )


def paths_of(given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return paths or URLs as strings; one alone counts as a list of it."""
    return [os.fspath(given)] if isinstance(given, str | os.PathLike) else [os.fspath(one) for one in given]


def is_local_folder(url: str) -> bool:
    """Return whether a path or URL is that of an existing local folder."""
    path = _plain(url)
    return "://" not in path and os.path.isdir(LocalStore(path).root)


def canonical_location(url: str) -> str:
    """Return a local path with links resolved, or a URL without a slash at the end, to compare locations."""
    path = _plain(url)
    return path.rstrip("/") if "://" in path else os.path.realpath(LocalStore(path).root)


def is_local_file(url: str) -> bool:
    """Return whether a path or URL is that of an existing local file."""
    path = _plain(url)
    return "://" not in path and os.path.isfile(LocalStore(path).root)


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the folder and the file name of a path or URL, to read the file through the store of its folder.

    The name is empty if the URL is a whole bucket or the root folder.

    Raises:
        ConfigError: the URL has a password, a key or a signature.
    """
    if "://" in (text := os.fspath(url)):
        refuse_secrets(text)
    root, rest = _root(os.fspath(url))
    folder, _, name = rest.rstrip("/").rpartition("/")
    return (root + folder).rstrip("/") or root or ".", name


def join_url(base: str, path: str) -> str:
    """Return the path or URL of `path` in the folder `base`. Absolute paths and URLs are unchanged; ``~/`` is expanded.

    Raises:
        ConfigError: ``..`` leads out of a bucket.
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
                kind="unsafe-name",
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


def _plain(url: str | os.PathLike[str]) -> str:
    """Return the path of a ``file://`` URL or of WebDataset's ``file:PATH``; anything else is unchanged."""
    url = os.fspath(url)
    if not url.startswith("file://"):
        return url.removeprefix("file:")
    from urllib.parse import unquote

    return "/" + unquote(url.removeprefix("file://")).removeprefix("localhost").lstrip("/")
