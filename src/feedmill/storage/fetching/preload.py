"""Read small objects all at once, before they are needed, so that opening a dataset takes few round trips."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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

SMALL, HEAD = 256 << 10, 64
"""Bytes of an object that are preloaded: of a small one, of which larger ones have the beginning; and of a head."""


class SmallObject(NamedTuple):
    """A preloaded object.

    Attributes:
        entry: its entry; None if there is no such object.
        data: its first bytes, at most as many as were asked for.
    """

    entry: Entry | None
    data: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Return whether all its bytes are there."""
        return self.entry is not None and len(self.data) == self.entry.size


def preload(store: RemoteStore, sizes: Mapping[str, int]) -> dict[str, SmallObject]:
    """Return objects by key, with one request for each, all at once. Objects whose request failed are omitted.

    In a block of `preloaded_once`, objects that were preloaded in it are not requested again.

    Args:
        sizes: number of bytes to request of each object, by key.
    """
    stores = _kept.get()
    kept: dict[str, SmallObject] = {} if stores is None else stores.setdefault(store.url, {})
    objects = {key: kept[key] for key in sizes if key in kept}
    missing = [(key, size) for key, size in sizes.items() if key not in kept]
    for key, future in [(key, fetcher().run(0, _read, store, key, size)) for key, size in missing]:
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


def _read(store: RemoteStore, key: str, size: int) -> SmallObject:
    import obstore

    answer = obstore.get(store.reader, key, options={"range": (0, size)})
    return SmallObject(entry_of(key, answer.meta), answer.bytes().to_bytes())
