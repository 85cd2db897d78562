"""The folder of unfinished work: its name, whether an output has one, and files of units in it, by path or URL.

It is on a disk, or in the object store that an engine shares. A file of a unit is published when it is complete, so a
killed run finds its finished work again. What is finished is in `feedmill.jobs.journal`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO

from feedmill.storage import Store, open_store, split_url
from feedmill.storage.base import storage_error
from feedmill.storage.staging import make_folder, staged

FOLDER = ".feedmill-work"
"""Folder of the job on an output, in the output or beside it."""
JOB = "job.json"


def has_journal(target: Store, name: str = "") -> bool:
    """Return whether there may be an unfinished job on an output: less work than a `Journal` where there is none."""
    return target.exists(f".{name}{FOLDER}/{JOB}" if name else f"{FOLDER}/{JOB}")


@lru_cache(maxsize=8)
def _store(url: str) -> Store:
    return open_store(url)


def stored(path: str) -> tuple[Store, str] | None:
    """Return the store and the name of a file in an object store; None for a file on a disk."""
    if "://" not in path:
        return None
    folder, name = split_url(path)
    return _store(folder), name


@contextlib.contextmanager
def write_unit(path: str, synced: bool) -> Iterator[BinaryIO]:
    """Open a file that is published as `path` when the block ends without an error.

    Args:
        synced: sync a file on a disk before it gets its name, so that it is whole after a failure of the machine, too.

    Raises:
        StorageError: it cannot be written. Errors of other files that the block has open are raised as they are.
    """
    remote = stored(path)
    if remote is not None:
        with remote[0].write(remote[1]) as out:
            yield out
        return
    temporary = None
    try:
        make_folder(os.path.dirname(path))
        with staged(path) as temporary:
            with open(temporary, "wb") as out:
                yield out
                if synced:
                    out.flush()
                    os.fsync(out.fileno())
            os.replace(temporary, path)
    except OSError as error:
        if temporary is None or error.filename in (None, temporary):
            raise storage_error(error, path) from None
        raise
