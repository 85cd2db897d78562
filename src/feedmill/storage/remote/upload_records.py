"""Records of uploads in the cache folder, by which the next job removes what a killed process left in a store.

Each record is a file with the URL of an upload, which its process keeps locked. The next job of this machine that
writes to the same bucket or server removes the uploads whose process is dead: the parts of an object, or the hidden
file that was about to be renamed (`RangeStore.abort_upload`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from feedmill.storage.folders import cache_folder
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import dead, make_folder, new_staged

if TYPE_CHECKING:
    from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

_checked: set[str] = set()
"""Buckets and servers whose abandoned uploads this process has removed."""
_guard = threading.Lock()


class Record(NamedTuple):
    """A file that names an upload, and its lock."""

    path: str
    lock: FileLock

    @classmethod
    def of(cls, url: str) -> Self | None:
        """Record an upload; return None, with a warning, if the cache folder cannot be written."""
        folder = _folder()
        try:
            make_folder(folder)
            path, lock = new_staged(os.path.join(folder, "upload"))
            Path(path).write_text(url)
        except OSError as error:
            logger.warning(
                "%s: uploads cannot be recorded here, so the parts of a killed upload stay in the store: %s",
                folder,
                error,
            )
            return None
        return cls(path, lock)

    def close(self) -> None:
        """Unlock the record: the next job removes the upload."""
        self.lock.close()

    def delete(self) -> None:
        """Delete the record of an upload that ended."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.lock.close()


@contextlib.contextmanager
def recorded(url: str) -> Iterator[None]:
    """Record an upload for a block, which undoes it after an error."""
    record = Record.of(url)
    try:
        yield
    finally:
        if record is not None:
            record.delete()


def check_again(store: RangeStore) -> None:
    """Make `abort_abandoned` check the bucket of a store again: processes may have been killed since the last job."""
    with _guard:
        _checked.discard(store.host)


def abort_abandoned(store: RangeStore) -> None:
    """Remove the uploads to a store's bucket or server that dead processes of this machine left; once per job.

    An upload that cannot be removed is logged as a warning. The next job tries again.
    """
    with _guard:
        if store.host in _checked:
            return
        _checked.add(store.host)
    with contextlib.ExitStack() as stack:
        alive, candidates = set(), []
        with contextlib.suppress(OSError):
            for entry in os.scandir(_folder()):
                lock = stack.enter_context(dead(entry.path))
                url = Path(entry.path).read_text(errors="replace")
                if lock is None:
                    alive.add(url)
                elif not url or url.startswith(store.host + "/"):
                    candidates.append((entry.path, url))  # empty: its process was killed before it sent a part
        for path, url in candidates:
            if not url or (url not in alive and store.abort_upload(url)):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _folder() -> str:
    """Return the folder with the records."""
    return os.path.join(os.path.abspath(cache_folder()), "uploads")
