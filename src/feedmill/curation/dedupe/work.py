"""Temporary files of an exact run: arrays and markers, on a disk or in an object store, deleted at the end.

Files are synced to disk only if other machines read them or the system has no boot id. Otherwise the job discards work
from before the last boot (`feedmill.jobs.work`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import NotFound, StorageError
from feedmill.formats.arrays import Arrays, pack_arrays, unpack_arrays
from feedmill.jobs.engine import is_shared
from feedmill.jobs.threads import ordered_map
from feedmill.jobs.work_folder import stored, write_unit
from feedmill.storage.base import storage_error
from feedmill.storage.locks import boot_id

_AT_ONCE = 16
"""Number of files read concurrently from an object store."""
Result = TypeVar("Result")


def is_there(path: str) -> bool:
    """Return whether a file was published."""
    found = stored(path)
    return os.path.exists(path) if found is None else found[0].exists(found[1])


def get_slices(path: str, spans: Sequence[tuple[int, int]], out: npt.NDArray[Any]) -> None:
    """Read items of a file of one array into `out`, one span [first, last) after another.

    Args:
        path: the file. A negative first item counts from the end of the file, to which the span then extends.
        spans: of items, each as large as an entry of `out`.
        out: as many entries as the spans have.

    Raises:
        StorageError: the file cannot be read, or is too short.
    """
    size, remote = out[:1].nbytes, stored(path)
    whole = out.reshape(-1).view(np.uint8).data
    wanted = [(low, high) for low, high in spans if high > low]
    if remote is not None:
        end = remote[0].stat(remote[1]).size if any(low < 0 for low, _ in wanted) else 0
        begins = [low * size if low >= 0 else end + low * size for low, _ in wanted]
        at = 0
        for block in remote[0].read_ranges(remote[1], begins, [(high - low) * size for low, high in wanted]):
            whole[at : at + len(block)] = block
            at += len(block)
        return
    try:
        with open(path, "rb", buffering=0) as f:
            at = 0
            for low, high in wanted:
                f.seek(low * size, os.SEEK_SET if low >= 0 else os.SEEK_END)
                stop = at + (high - low) * size
                while at < stop:  # one call reads up to 2 GiB
                    if not (count := f.readinto(whole[at:stop])):
                        raise StorageError("the file is too short", file=path, kind="truncated")
                    at += count
    except OSError as error:
        raise storage_error(error, path) from None


def size_of(path: str) -> int:
    """Return the size of a file in bytes. Raises `StorageError`."""
    remote = stored(path)
    try:
        return os.path.getsize(path) if remote is None else remote[0].stat(remote[1]).size
    except OSError as error:
        raise storage_error(error, path) from None


def of_each(function: Callable[[int], Result], count: int, folder: str) -> Iterator[Result]:
    """Yield ``function(n)`` for the numbers from 0 to `count`, in order; several at a time for an object store."""
    workers = _AT_ONCE if "://" in folder else 0
    return ordered_map(function, range(count), workers=workers, in_flight=2 * _AT_ONCE)


def put(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file that is published as `path` when the block ends without an error. Raises `StorageError`."""
    return write_unit(path, synced=is_shared() or not boot_id())


def put_marker(path: str, value: Mapping[str, Any]) -> None:
    """Write a marker of finished work."""
    with put(path) as f:
        f.write(orjson.dumps(value))


def get_marker(path: str) -> dict[str, Any] | None:
    """Return the value of a marker, or None if it is missing or invalid."""
    remote = stored(path)
    try:
        if remote is not None:
            content = orjson.loads(remote[0].read(remote[1]))
        else:
            with open(path, "rb") as f:
                content = orjson.loads(f.read())
    except (FileNotFoundError, NotFound, orjson.JSONDecodeError):
        return None
    except OSError as error:
        raise storage_error(error, path) from None
    return content if isinstance(content, dict) else None


def put_arrays(path: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a file of named arrays."""
    with put(path) as f:
        pack_arrays(f, arrays)


def get_arrays(path: str) -> Arrays:
    """Return the arrays of a file. Raises `StorageError` if it is corrupt."""
    remote = stored(path)
    try:
        return unpack_arrays(np.fromfile(path, np.uint8) if remote is None else bytearray(remote[0].read(remote[1])))
    except OSError as error:
        raise storage_error(error, path) from None
    except ValueError as error:
        raise StorageError(f"the work of an interrupted run is damaged: {error}", file=path, kind="truncated") from None
