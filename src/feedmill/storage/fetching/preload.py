"""Small objects that are read before they are looked at, all at once: opening a dataset takes few round trips."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, NamedTuple

from feedmill.errors import NotFound
from feedmill.storage.base import Entry
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.remote.errors import translate
from feedmill.storage.remote.files import entry_of

if TYPE_CHECKING:
    from feedmill.storage.remote.object_store import RemoteStore

_SMALL = 256 << 10
"""Bytes of an object that are read before it is looked at."""


class Small(NamedTuple):
    """An object that was read before it was looked at.

    Attributes:
        entry: None if there is no such object.
        data: its bytes; None if it is larger than `_SMALL`.
    """

    entry: Entry | None
    data: bytes | None


def preload(store: RemoteStore, keys: list[str]) -> dict[str, Small]:
    """Return objects by key, with one request for each, all at once. Those whose request failed are missing."""
    found: dict[str, Small] = {}
    for key, future in [(key, fetcher().run(0, _read, store, key)) for key in keys]:
        try:
            found[key] = future.result()
        except (Exception, CancelledError) as error:  # the caller asks again, and reports what comes of it
            if isinstance(translate(error, key), NotFound):
                found[key] = Small(None, None)
    return found


def _read(store: RemoteStore, key: str) -> Small:
    import obstore

    answer = obstore.get(store.reader, key, options={"range": (0, _SMALL)})
    entry, data = entry_of(key, answer.meta), answer.bytes().to_bytes()
    return Small(entry, data if len(data) == entry.size else None)
