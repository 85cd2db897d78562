"""Classes of `fsspec` by their schemes, and their instances: one for all threads, or some that are used in turn."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from feedmill.errors import ConfigError, MissingExtra

CONNECTIONS = 8
"""Instances of a file system that is not made for threads; servers of FTP and SFTP allow about ten connections."""
_SHARED = {"hf", "memory", "local", "hdfs", "arrow_hdfs"}
"""File systems without `asyncio` of which one instance serves all threads."""
_NOT_STORES = {
    *("async_wrapper", "asyncwrapper", "asynclocal", "blockcache", "cached", "filecache", "simplecache"),  # of others
    *("dir", "reference", "generic", "zip", "tar", "libarchive", "dask", "data", "pyscript", "jlab", "jupyter"),
    *("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "http", "https"),  # others of our stores read these
}


def filesystem_class(protocol: str, url: str) -> Any:
    """Return the class of `fsspec` for a scheme. Raises `ConfigError`, and `MissingExtra` if a package is missing."""
    try:
        from fsspec.registry import get_filesystem_class, known_implementations, registry
    except ImportError:
        raise MissingExtra(
            f"the scheme {protocol}:// is read with fsspec, which is not installed", "fsspec", file=url
        ) from None
    known = (set(known_implementations) | set(registry)) - _NOT_STORES
    if protocol not in known or "::" in url:
        raise ConfigError(
            f"the scheme {protocol + '://'!r} is not supported" if protocol not in known else "URLs cannot be chained",
            file=url,
            kind="bad-scheme",
            fix="Use a path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/folder,"
            f" msc://profile/path, or one of fsspec: {', '.join(sorted(known))}.",
        )
    try:
        return get_filesystem_class(protocol)
    except ImportError as error:
        hint = known_implementations.get(protocol, {}).get("err") or str(error)
        fix = "Install it with: pip install huggingface_hub" if protocol == "hf" else f"{hint.rstrip('.')}."
        raise MissingExtra(f"URLs with {protocol}:// need another package", file=url, fix=fix) from None


class Instances:
    """The instances of a file system in this process: one for all threads, or some that are used in turn."""

    def __init__(self, kind: Any, options: Mapping[str, Any], *, shared: bool) -> None:
        self.shared = shared
        self._kind, self._options = kind, options
        self._lock = threading.Lock()
        self._free: list[Any] = []

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """Have an instance for the time of a block."""
        with self._lock:
            fs = (self._free[-1] if self.shared else self._free.pop()) if self._free else None
            if fs is None and self.shared:
                self._free.append(fs := self._new())
        if self.shared:
            yield fs
            return
        fs = self._new() if fs is None else fs
        yield fs  # after an error it may be in the middle of an answer, and is not used again
        with self._lock:
            if len(self._free) < CONNECTIONS:
                self._free.append(fs)

    def _new(self) -> Any:
        return self._kind(**self._options, skip_instance_cache=True)

    def clear(self) -> None:
        """Make new instances from now on."""
        with self._lock:
            self._free.clear()


_known: dict[tuple[str, str], Instances] = {}
_lock = threading.Lock()


def instances_of(protocol: str, kind: Any, options: Mapping[str, Any]) -> Instances:
    """Return the instances for these options, which all stores with them share."""
    shared = bool(getattr(kind, "async_impl", False)) or protocol in _SHARED
    with _lock:
        word = (protocol, json.dumps(options, sort_keys=True, default=repr))
        return _known.setdefault(word, Instances(kind, options, shared=shared))
