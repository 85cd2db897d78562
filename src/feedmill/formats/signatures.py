"""Store signatures of documents, so that later documents can be compared without reading earlier ones again.

A folder on a local disk::

    near.json                    {"version": 1 or 2, "options": {...}}: options that determine sets, keys and decisions
    dump-00000.json, ...         a run that added documents: its files in order, their segments, its index;
                                 the fingerprint of the run, and its results
    segments/<print>-00000       arrays of some documents of a file: sets, keys, ids
    segments/<print>.json        {"rows": ..., "ids": ..., "digest": ..., "segments": [rows, ...],
                                 "empty": ..., "xxh3": ...}
    dumps/<print>/               results of a run: ``index-BB-RRRR`` and ``clusters``
    lock                         locked by the active run

A dump is complete when its ``dump-NNNNN.json`` exists; files that no dump names are unfinished work. The documents of
a store are numbered from 0 in the order in which they were added. A segment has, for n documents:

    keys     uint64[bands, n]    the key of each band; 0 for a document without words
    digests  uint64[n]           equal for equal sets
    sets     uint64[...]         the distinct shingles of all documents, concatenated
    ends     int64[n]            end of each set
    lengths  int64[n]            characters of each text
    ids      uint8[...]          the ids as JSON, concatenated
    id_ends  int64[n]            end of each id

`index-BB-RRRR`: the documents of a dump by their keys of band BB in range RRRR: ``keys`` uint64[m], sorted, and
``documents`` uint32[m], relative to the dump's first. Also ``edges`` int64[k, 2], the similar pairs found, and
``counts`` int64[2], the numbers of pairs compared and skipped. `clusters`: the ``members`` int64[m] of clusters among
the dump's documents, ascending; for each, ``roots`` int64[m], the first document of its cluster, and ``kept``
int64[m], the document that is kept. In version 2, the record of a dump with more pairs than a task holds has
``clusters``, a number of documents. The clusters of each range of that many documents, from the dump's first on, are in
a file `clusters-NNNNN`. A folder without such a dump has version 1.

An array file is ``FMARRAY1``, the length of the header (uint64), the header as JSON
(``{name: [dtype, shape, offset], ..., "": size of the file}``), and the arrays, little-endian, each at a multiple of 64
bytes. Rejected: types other than ``<u8``, ``<i8``, ``<u4`` and ``|u1``, arrays outside the file, and a wrong file size.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import DataError
from feedmill.storage import Store
from feedmill.storage.cache.copies import WORK, held_copy

FIRST_VERSION, VERSION = 1, 2
"""Version of folders that every release can read, and of those with clusters in several files."""
RECORD = "near.json"
LOCK = "lock"
MAGIC = b"FMARRAY1"
_ALIGN = 64
_MOST_HEADER = 1 << 20
_DTYPES = ("<u8", "<i8", "<u4", "|u1")

Arrays = dict[str, npt.NDArray[Any]]


def dump_name(number: int) -> str:
    """Return the path of a dump's record."""
    return f"dump-{number:05d}.json"


def segment_name(fingerprint: str, number: int) -> str:
    """Return the path of a segment of a file."""
    return f"segments/{fingerprint}-{number:05d}"


def write_arrays(store: Store, path: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an array file. It is published when it is complete."""
    whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    reserved = sum(len(name) + 80 for name in whole) + 40
    header: dict[str, Any] = {}
    at = _aligned(len(MAGIC) + 8 + reserved)
    start = at
    for name, values in whole.items():
        header[name] = [values.dtype.str, list(values.shape), at]
        at = _aligned(at + values.nbytes)
    header[""] = at
    encoded = orjson.dumps(header)
    encoded = encoded.ljust(start - len(MAGIC) - 8, b" ")
    with store.write(path) as out:
        out.write(MAGIC + struct.pack("<Q", len(encoded)) + encoded)
        for values in whole.values():
            out.write(values.reshape(-1).view(np.uint8).data if values.size else b"")
            out.write(bytes(_aligned(values.nbytes) - values.nbytes))


def read_arrays(store: Store, path: str) -> Arrays:
    """Return the arrays of a file as read-only memory maps.

    Raises:
        DataError: the file is corrupt or missing (kind ``bad-signatures``).
    """
    if not store.exists(path):
        raise damaged(store, path, "the file is missing")
    with held_copy(store, path, kind=WORK) as held, open(held.path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size < len(MAGIC) + 8:
            raise damaged(store, path, "the file is truncated")
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    magic, length = data[:8], struct.unpack("<Q", data[8:16])[0]
    if magic != MAGIC or length > _MOST_HEADER or 16 + length > size:
        raise damaged(store, path, "it is not an array file")
    try:
        header = orjson.loads(data[16 : 16 + length])
        if header.pop("") != size:
            raise damaged(store, path, "its size does not match its header")
        return {name: _view(data, size, *where) for name, where in header.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(store, path, f"its header is invalid: {error}") from None


def _view(data: mmap.mmap, size: int, dtype: str, shape: list[int], offset: int) -> npt.NDArray[Any]:
    if dtype not in _DTYPES or not shape or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{dtype} {shape}")
    count = 1
    for n in shape:
        count *= n
    if type(offset) is not int or offset % _ALIGN or offset + count * np.dtype(dtype).itemsize > size:
        raise ValueError(f"an array at {offset}")
    return np.frombuffer(data, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)


def read_record(store: Store, path: str) -> dict[str, Any] | None:
    """Return a JSON object of the folder; None if it does not exist.

    Raises:
        DataError: the file is corrupt (kind ``bad-signatures``).
    """
    if not store.exists(path):
        return None
    try:
        found = orjson.loads(store.read(path))
    except orjson.JSONDecodeError as error:
        raise damaged(store, path, str(error)) from None
    if not isinstance(found, dict):
        raise damaged(store, path, "it is not a JSON object")
    return found


def write_record(store: Store, path: str, record: Mapping[str, Any]) -> None:
    """Write a JSON object with sorted keys."""
    store.write_bytes(path, orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))


def read_marker(store: Store, path: str) -> dict[str, Any] | None:
    """Return what `write_marker` wrote; None if it does not exist or was damaged by a power failure."""
    try:
        found = read_record(store, path)
        return None if found is None or found.pop("") != _checksum(found) else found
    except (DataError, KeyError):
        return None


def write_marker(store: Store, path: str, record: Mapping[str, Any]) -> None:
    """Record finished work without syncing it: a lost marker repeats the work of one file."""
    store.write_note(path, orjson.dumps({**record, "": _checksum(record)}, option=orjson.OPT_SORT_KEYS))


def _checksum(record: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(orjson.dumps(record, option=orjson.OPT_SORT_KEYS))


def damaged(store: Store, path: str, why: str) -> DataError:
    """Return the error for a folder of signatures that cannot be used."""
    return DataError(
        f"the signatures are corrupt ({why})",
        file=store.locate(path),
        kind="bad-signatures",
        fix="Restore the file, or delete the folder and run again with all documents.",
    )


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN
