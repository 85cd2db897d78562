"""Read small objects all at once, before they are needed, so that opening a dataset takes few round trips."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from feedmill.errors import NotFound
from feedmill.storage.base import Entry
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.remote.errors import translate
from feedmill.storage.remote.files import entry_of

if TYPE_CHECKING:
    from feedmill.storage.remote.object_store import RemoteStore

_SMALL = 256 << 10
"""Bytes of an object that are preloaded; of larger objects, the beginning."""


class SmallObject(NamedTuple):
    """A preloaded object.

    Attributes:
        entry: its entry; None if there is no such object.
        data: its first bytes, at most `_SMALL`.
    """

    entry: Entry | None
    data: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Return whether all its bytes are there."""
        return self.entry is not None and len(self.data) == self.entry.size


def preload(store: RemoteStore, keys: list[str]) -> dict[str, SmallObject]:
    """Return objects by key, with one request for each, all at once. Objects whose request failed are omitted.

    In a block of `preloaded_once`, objects that were preloaded in it are not requested again.
    """
    stores = _kept.get()
    kept: dict[str, SmallObject] = {} if stores is None else stores.setdefault(store.url, {})
    objects = {key: kept[key] for key in keys if key in kept}
    for key, future in [(key, fetcher().run(0, _read, store, key)) for key in dict.fromkeys(keys) if key not in kept]:
        try:
            objects[key] = future.result()
        except (Exception, CancelledError) as error:  # a later read requests it again and raises the error
            if isinstance(translate(error, key), NotFound):
                objects[key] = SmallObject(None)
    kept.update(objects)
    return objects


_kept: ContextVar[dict[str, dict[str, SmallObject]] | None] = ContextVar("preloaded objects by store", default=None)


@contextlib.contextmanager
def preloaded_once() -> Iterator[None]:
    """Preload the small files of a dataset once in a block that opens it several times, such as for its splits."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _read(store: RemoteStore, key: str) -> SmallObject:
    import obstore

    answer = obstore.get(store.reader, key, options={"range": (0, _SMALL)})
    return SmallObject(entry_of(key, answer.meta), answer.bytes().to_bytes())
