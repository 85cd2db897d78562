"""Store signatures of documents, so that later documents can be compared without reading earlier ones again.

A folder on a local disk::

    near.json                    {"version": 2, "options": {...}}: options that determine sets, keys and decisions
    dump-00000.json, ...         a run that added documents: its files in order, their segments, the number of
                                 ranges of its index; the fingerprint of the run, and its results
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
``documents`` uint32[m], relative to the dump's first. Also ``edges`` int64[k, 2], the similar pairs found; ``copies``
int64[k, 2], pairs of documents with equal sets, where `removal` is ``covered``; and ``counts`` int64[2], the numbers of
pairs compared and skipped. `clusters`: the ``members`` int64[m] of clusters among the dump's documents, ascending; for
each, ``kept`` int64[m], the document that is kept, and ``roots`` int64[m], the first document of its cluster or, if
`removal` is ``covered``, the one that is kept. The record of a dump with several files of clusters has ``clusters``, a
number of documents. The clusters of each range of that many documents, from the dump's first on, are in a file
`clusters-NNNNN`.

Array files are those of `feedmill.formats.arrays`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import xxhash

from feedmill.errors import DataError
from feedmill.formats import arrays
from feedmill.formats.arrays import Arrays
from feedmill.storage import Store

VERSION = 2
RECORD = "near.json"
LOCK = "lock"


def dump_name(number: int) -> str:
    """Return the path of a dump's record."""
    return f"dump-{number:05d}.json"


def segment_name(fingerprint: str, number: int) -> str:
    """Return the path of a segment of a file."""
    return f"segments/{fingerprint}-{number:05d}"


def read_arrays(store: Store, path: str) -> Arrays:
    """Return the arrays of a file as read-only memory maps.

    Raises:
        DataError: the file is corrupt or missing (kind ``bad-data``).
    """
    if not store.exists(path):
        raise damaged(store, path, "the file is missing")
    try:
        return arrays.read_arrays(store, path)
    except ValueError as error:
        raise damaged(store, path, str(error)) from None


def read_record(store: Store, path: str) -> dict[str, Any] | None:
    """Return a JSON object of the folder; None if it does not exist.

    Raises:
        DataError: the file is corrupt (kind ``bad-data``).
    """
    if not store.exists(path):
        return None
    try:
        content = orjson.loads(store.read(path))
    except orjson.JSONDecodeError as error:
        raise damaged(store, path, str(error)) from None
    if not isinstance(content, dict):
        raise damaged(store, path, "it is not a JSON object")
    return content


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
        kind="bad-data",
        fix="Restore the file, or delete the folder and run again with all documents.",
    )
