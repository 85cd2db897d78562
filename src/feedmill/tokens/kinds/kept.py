"""Conversions that take seconds are kept in ``$FEEDMILL_CACHE_DIR/tokenizers``, so that they are made once.

A file is named after everything that decides its content, and after its own hash. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import xxhash

from feedmill.errors import StorageError
from feedmill.storage.folders import cache_folder
from feedmill.storage.local import LocalStore

VERSION = "1"
"""Changed when a conversion changes."""


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """Return the conversion of this key, or make it. A cache folder that cannot be used is no error."""
    folder = cache_folder() / "tokenizers"
    stem = xxhash.xxh3_128_hexdigest(f"{VERSION} {key}".encode())
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"{stem}-*.json")):
            data = path.read_bytes()
            if path.name == _named(stem, data):
                return data
    data = make()
    with contextlib.suppress(OSError, StorageError):
        LocalStore(folder).write_bytes(_named(stem, data), data)
    return data


def _named(stem: str, data: bytes) -> str:
    return f"{stem}-{xxhash.xxh3_128_hexdigest(data)}.json"
