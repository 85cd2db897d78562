"""Bounds sidecar ``<x.pbin>.feedmill.bounds``, with which a file with any number of documents opens instantly.

    0   8 bytes  "FMBOUNDS"
    8   u32      2, the version of this layout
    12  u32      version of the file that it belongs to (for .pbin 0 to 3)
    16  u64      documents, n
    24  u64      bytes of the file
    32  16 bytes xxh3-128 of the file's first 12 bytes and its last 64 KiB (of a shorter file: all bytes)
    48  u64      entries of the file's own index that were wrong and are corrected here
    56  u64      xxh3-64 of the rest
    64  u64 x (n + 1)  first token of each document, then the number of tokens

All numbers are little-endian. A sidecar of another layout, or whose size or hash does not match its file, is ignored,
since it only saves time. A sidecar whose own hash differs is corrupt and an error. Its hash is verified by `check`, and
when it is loaded if it has at most `HASHED` bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import xxhash

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.storage import Store
from feedmill.storage.descriptors import raise_file_limit

SUFFIX = ".feedmill.bounds"
HEADER = struct.Struct("<8sIIQQ16sQQ")
MAGIC, LAYOUT = b"FMBOUNDS", 2
HASHED = 1 << 20
"""Maximum bytes of a table that is hashed each time it is loaded, which takes a tenth of a millisecond."""
HEAD, TAIL = 12, 1 << 16


class BoundsHeader(NamedTuple):
    """Header of a sidecar: version, documents, bytes, hash and corrected index entries of its file; its own hash."""

    version: int
    documents: int
    size: int
    digest: bytes
    repaired: int
    table: int

    def pack(self) -> bytes:
        """Return the first 64 bytes of the sidecar."""
        return HEADER.pack(MAGIC, LAYOUT, *self)


def bounds_path(path: str) -> str:
    """Return the path of the sidecar of a token file."""
    return path + SUFFIX


def file_ends(store: Store, path: str, size: int) -> bytes:
    """Return the beginning and the end of a sidecar's file, or all of a small one; see `file_digest`."""
    if size <= HEAD + TAIL:
        return store.read(path, 0, size)
    return b"".join(store.read_ranges(path, [0, size - TAIL], [HEAD, TAIL]))


def file_digest(store: Store, path: str, size: int) -> bytes:
    """Return the hash that identifies a sidecar's file: of its beginning and end, 16 bytes."""
    return digest_of(file_ends(store, path, size))


def digest_of(ends: bytes) -> bytes:
    """Return the hash of the beginning and end of a file, 16 bytes."""
    return bytes(xxhash.xxh3_128_digest(ends))


def read_header(store: Store, path: str, size: int, digest: bytes) -> BoundsHeader | None:
    """Return the header of a file's sidecar; None if there is none, or it belongs to another file or release."""
    side = bounds_path(path)
    if not store.exists(side):
        return None
    length = store.stat(side).size
    if length < HEADER.size:
        return None
    magic, layout, *rest = HEADER.unpack(store.read(side, 0, HEADER.size))
    header = BoundsHeader(*rest)
    fits = length == HEADER.size + 8 * (header.documents + 1) and (header.size, header.digest) == (size, digest)
    return header if (magic, layout) == (MAGIC, LAYOUT) and fits else None


def map_bounds(store: Store, path: str, header: BoundsHeader) -> Int64s:
    """Return the bounds in a file's sidecar, int64[documents + 1], mapped if the file is local. Raises `DataError`."""
    side, count = bounds_path(path), header.documents + 1
    if store.is_local:
        raise_file_limit()
        with store.local_copy(side) as local:
            bounds = np.asarray(np.memmap(local, "<i8", "r", HEADER.size, (count,)))
    else:
        bounds = np.frombuffer(store.read(side, HEADER.size, 8 * count), "<i8")
    if bounds.nbytes <= HASHED:
        check_table(store, path, header, bounds)
    return bounds


def table_hash(bounds: Int64s) -> int:
    """Return the hash of a table, int64[n], little endian."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(bounds, "<i8").data)


def check_table(store: Store, path: str, header: BoundsHeader, bounds: Int64s) -> None:
    """Raise `DataError` if the bounds are not those that were written."""
    if table_hash(bounds) != header.table:
        raise DataError(
            "the bounds of documents are corrupt (their hash differs)",
            file=store.locate(bounds_path(path)),
            kind="bad-index",
            fix=f"Run 'feedmill tokens index {store.locate(path)} --overwrite' to write it again, or delete this file.",
        )
