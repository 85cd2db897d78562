"""Which pages of one object the page cache has (`PageStates`): their records, checks, and what drops corrupt ones.

A page is `PAGE` bytes of the object, stored at the same offset in a sparse file. Its record says whether it is present,
and has its hash and its generation, which grows whenever the bytes change.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import weakref
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.storage.cache.page_locks import Range, locked, set_lock
from feedmill.storage.cache.page_map import (
    PAGE,
    PRESENT,
    USERS,
    WRITE,
    Header,
    MappedFile,
    Records,
    Usable,
    page_sizes,
    runs,
)
from feedmill.storage.cache.usage import Usage

logger = logging.getLogger("feedmill")

Int64s = npt.NDArray[np.int64]


class Owner(Protocol):
    """The part of a `PageCache` that its pages use. Attributes as there."""

    usage: Usage | None
    disabled: bool
    holes: bool
    corrupt: int

    def reserve(self, size: int) -> bool:
        """Reserve bytes, evicting pages if they do not fit; return whether they are reserved."""

    def disable(self, error: OSError) -> None:
        """Stop writing to the cache because of an error."""


class PageStates:
    """The states of the pages of one version of an object. Base class of `feedmill.storage.cache.page_io.Pages`.

    Attributes:
        header: URL, version and size of the object.
        fd: descriptor of a file with the bytes of the object at their offsets. Only pages that are pinned and present
            may be read from it.
        size: size of the object in bytes.
    """

    def __init__(self, owner: Owner, header: Header, files: Usable, mapped: MappedFile) -> None:
        self.header, self.size, self.fd = header, header.size, files.data
        self._owner, self._files, self._mapped = owner, files, mapped
        self._records: Records = mapped.records
        self._close = weakref.finalize(self, _close, files, mapped)

    def missing(self, begin: int, end: int) -> list[Range]:
        """Return the byte ranges of the missing pages of a range, aligned to pages and cut at the object's end."""
        first, last = self._span(begin, end)
        return self._ranges(runs(self._records["state"][first:last] != PRESENT), first)

    def present(self, begins: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
        """Return for each byte range whether all of its pages are present; True for empty ranges.

        Args:
            begins: int64[n], first bytes.
            ends: int64[n], ends of the ranges; at most `size`.

        Returns:
            bool[n].
        """
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        filled = ends > begins
        if not filled.any():
            return np.ones(len(begins), np.bool_)
        first, last = begins // PAGE, -(-ends // PAGE)
        low, high = self._span(int(begins[filled].min()), int(ends[filled].max()))
        absent = np.zeros(high - low + 1, np.int64)
        np.cumsum(self._records["state"][low:high] != PRESENT, out=absent[1:])
        result = np.ones(len(begins), np.bool_)
        result[filled] = absent[last[filled] - low] == absent[first[filled] - low]
        return result

    @property
    def usage(self) -> Usage | None:
        """Return the counters of the cache; None if it cannot be used."""
        return self._owner.usage

    @property
    def evictions(self) -> int:
        """Return `Usage.evictions`; -1 if the cache cannot be used."""
        return -1 if self._owner.usage is None else self._owner.usage.evictions

    def trusted(self, begin: int, end: int) -> bool:
        """Return whether all pages of a byte range are present, and were written or verified in this session."""
        first, last = self._span(begin, end)
        records = self._records[first:last]
        return bool((records["state"] == PRESENT).all() and (records["session"] == self._mapped.session).all())

    def verify(self, begin: int, end: int) -> bool:
        """Compare pages of earlier sessions with their hashes; return whether all pages are present.

        Raises:
            OSError: the file cannot be read.
        """
        return self._verify(*self._span(begin, end))

    def _verify(self, first: int, last: int) -> bool:
        """Compare present pages of other sessions with their hashes; return whether all pages are present."""
        records, session = self._records, self._mapped.session
        stale = (records["session"][first:last] != session) & (records["state"][first:last] == PRESENT)
        for page in (first + np.flatnonzero(stale)).tolist():
            generation = records["generation"][page]
            data = os.pread(self.fd, PAGE, page * PAGE)
            if xxhash.xxh3_64_intdigest(data) == records["digest"][page]:
                records["session"][page] = session
            else:
                self._drop(page, page + 1, "corrupt", int(generation))
        return not (records["state"][first:last] != PRESENT).any()

    def _drop(self, first: int, last: int, what: str, generation: int | None = None) -> None:
        """Mark corrupt pages as missing, even if they are pinned.

        Args:
            what: what is wrong with them, for the log.
            generation: generation of the corrupt content; a page that was written since is kept.
        """
        self._announce()
        with locked(self._files.map, WRITE + first, last - first):
            records = self._records[first:last]
            corrupt = records["state"] == PRESENT
            if generation is not None:
                corrupt &= records["generation"] == generation
            pages = first + np.flatnonzero(corrupt)
            size = int(page_sizes(self.header, pages).sum())
            with self._freeing() as freed:
                records["generation"][corrupt] += 1
                records["state"][corrupt] = 0
                freed.append(size)
            self._release(size)
        if len(pages):
            owner = self._owner
            if not owner.corrupt:
                logger.warning("page cache: page %d of %s is %s; it is fetched again", pages[0], self.header.url, what)
            owner.corrupt += len(pages)

    def _freeing(self) -> contextlib.AbstractContextManager[list[int]]:
        usage = self._owner.usage
        return contextlib.nullcontext([]) if usage is None else usage.freeing()

    def _release(self, size: int) -> None:
        usage = self._owner.usage
        if usage is not None:
            usage.release(size)

    def _announce(self) -> None:
        usage = self._owner.usage
        if usage is not None:
            usage.announce_eviction()

    def snapshot(self) -> Records:
        """Return a copy of the records."""
        return self._records.copy()

    def close(self) -> None:
        """Close the object; no method may be called afterwards. A second call does nothing."""
        self._close()

    def _span(self, begin: int, end: int) -> Range:
        """Return the first page and the end of the pages of a byte range."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"{begin}-{end} is not a byte range of an object of {self.size} bytes")
        return (begin // PAGE, -(-end // PAGE)) if end > begin else (begin // PAGE, begin // PAGE)

    def _ranges(self, pages: list[Range], first: int) -> list[Range]:
        return [((first + a) * PAGE, min((first + b) * PAGE, self.size)) for a, b in pages]


def _close(files: Usable, mapped: MappedFile) -> None:
    """Close the files. The last user of the map records that it was closed properly."""
    with contextlib.suppress(OSError):
        if set_lock(files.map, fcntl.F_WRLCK, USERS, 1):
            mapped.end()
        # Closing is not enough to release the locks: the mapping has a copy of the descriptor.
        set_lock(files.map, fcntl.F_UNLCK, 0, 1 << 62)
    files.close()
