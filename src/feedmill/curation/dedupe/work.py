"""Temporary files of an exact run: arrays and markers on a local disk, deleted at the end.

A file is published when it is complete, so a killed run finds its finished work again. Files are synced to disk only if
other machines read them or the system has no boot id. Otherwise the job discards work from before the last boot
(`feedmill.jobs.work`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.jobs.engine import is_shared
from feedmill.jobs.unfinished import boot
from feedmill.storage.local import storage_error
from feedmill.storage.staging import make_folder, staged

_ALIGN = 64


@contextlib.contextmanager
def put(path: str) -> Iterator[BinaryIO]:
    """Open a file that is published as `path` when the block ends without an error. Raises `StorageError`."""
    try:
        make_folder(os.path.dirname(path))
        with staged(path) as beside:
            with open(beside, "wb") as f:
                yield f
                if is_shared() or not boot():
                    f.flush()
                    os.fsync(f.fileno())
            os.replace(beside, path)
    except OSError as error:
        raise storage_error(error, path) from None


def put_marker(path: str, value: Mapping[str, Any]) -> None:
    """Write a marker of finished work."""
    with put(path) as f:
        f.write(orjson.dumps(value))


def get_marker(path: str) -> dict[str, Any] | None:
    """Return the value of a marker, or None if it is missing or invalid."""
    try:
        with open(path, "rb") as f:
            found = orjson.loads(f.read())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    except OSError as error:
        raise storage_error(error, path) from None
    return found if isinstance(found, dict) else None


def put_arrays(path: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays by name: a line of JSON with the type, shape and offset of each, then their bytes."""
    places, at = {}, 0
    for name, array in arrays.items():
        places[name] = (array.dtype.str, array.shape, at)
        at += -(-array.nbytes // _ALIGN) * _ALIGN
    head = orjson.dumps(places) + b"\n"
    with put(path) as f:
        f.write(head)
        for array in arrays.values():
            f.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            f.write(bytes(-array.nbytes % _ALIGN))


def get_arrays(path: str, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Return the named arrays of a file, or all if none are named."""
    try:
        with open(path, "rb") as f:
            head = f.readline()
            found = {}
            for name, (kind, shape, at) in orjson.loads(head).items():
                if not names or name in names:
                    f.seek(len(head) + at)
                    found[name] = np.fromfile(f, kind, int(np.prod(shape))).reshape(shape)
            return found
    except OSError as error:
        raise storage_error(error, path) from None
