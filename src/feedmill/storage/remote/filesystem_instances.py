"""Classes of `fsspec` file systems by scheme, and their instances.

A file system that is safe for threads has one instance for all of them. Others have up to `CONNECTIONS` instances, each
used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from feedmill.errors import ConfigError, MissingExtra

CONNECTIONS = 8
"""Instances kept of a file system that is not thread-safe; servers of FTP and SFTP allow about ten connections."""
_SHARED = {"hf", "memory", "local", "hdfs", "arrow_hdfs"}
"""File systems without `asyncio` whose instances are thread-safe."""
_NOT_STORES = {
    *("async_wrapper", "asyncwrapper", "asynclocal", "blockcache", "cached", "filecache", "simplecache"),  # wrappers
    *("dir", "reference", "generic", "zip", "tar", "libarchive", "dask", "data", "pyscript", "jlab", "jupyter"),
    *("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "http", "https"),  # our other stores read these
}
"""Schemes of `fsspec` that are not stores of files, or that our other stores read."""


def filesystem_class(protocol: str, url: str) -> Any:
    """Return the `fsspec` class for a scheme.

    Args:
        protocol: the scheme without ``://``.
        url: of the store, for errors.

    Raises:
        ConfigError: the scheme is not supported.
        MissingExtra: `fsspec` or the package of the file system is not installed.
    """
    try:
        from fsspec.registry import get_filesystem_class, known_implementations, registry
    except ImportError:
        raise MissingExtra(
            f"the scheme {protocol}:// is read with fsspec, which is not installed", "fsspec", file=url
        ) from None
    schemes = (set(known_implementations) | set(registry)) - _NOT_STORES
    if protocol not in schemes or "::" in url:
        raise ConfigError(
            f"the scheme {protocol + '://'!r} is not supported"
            if protocol not in schemes
            else "chained URLs are not supported",
            file=url,
            kind="bad-scheme",
            fix="Use a path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/folder,"
            f" msc://profile/path, or one of fsspec: {', '.join(sorted(schemes))}.",
        )
    try:
        return get_filesystem_class(protocol)
    except ImportError as error:
        hint = known_implementations.get(protocol, {}).get("err") or str(error)
        fix = "Install it with: pip install huggingface_hub" if protocol == "hf" else f"{hint.rstrip('.')}."
        raise MissingExtra(f"{protocol}:// URLs need a package that is not installed", file=url, fix=fix) from None


class Instances:
    """The instances of one file system in this process.

    Args:
        kind: class of `fsspec`.
        options: its arguments.
        shared: whether one instance serves all threads; else each is used by one thread at a time.
    """

    def __init__(self, kind: Any, options: Mapping[str, Any], *, shared: bool) -> None:
        self.shared = shared
        self.kind, self._options = kind, options
        self._lock = threading.Lock()
        self._free: list[Any] = []

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """Lend an instance to a block."""
        with self._lock:
            fs = (self._free[-1] if self.shared else self._free.pop()) if self._free else None
            if fs is None and self.shared:
                self._free.append(fs := self._new())
        if self.shared:
            yield fs
            return
        fs = self._new() if fs is None else fs
        # After an error the instance is dropped: its connection may be in the middle of an answer.
        yield fs
        with self._lock:
            if len(self._free) < CONNECTIONS:
                self._free.append(fs)

    def _new(self) -> Any:
        return self.kind(**self._options, skip_instance_cache=True)

    def clear(self) -> None:
        """Drop all instances, so that new ones connect again."""
        with self._lock:
            self._free.clear()


_known: dict[tuple[str, str], Instances] = {}
_lock = threading.Lock()


def instances_of(protocol: str, kind: Any, options: Mapping[str, Any]) -> Instances:
    """Return the instances of a file system class; all stores with the same options share them."""
    shared = bool(getattr(kind, "async_impl", False)) or protocol in _SHARED
    with _lock:
        key = (protocol, json.dumps(options, sort_keys=True, default=repr))
        return _known.setdefault(key, Instances(kind, options, shared=shared))
