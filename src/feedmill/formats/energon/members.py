"""Feedmill's index of member names, in addition to Energon's database: find the bytes of a file name in one probe.

``.nv-meta/feedmill.members``, all numbers u64 little endian::

    64 bytes    "FMMEMBR1", slots, 36 bytes of index.uuid, zeros
    slots x 16  offset << 24 | shard, then size << 24 | low 24 bits of the name's CRC-32; all zero if empty

The search for a member named `name` (``key.part``) begins at slot ``crc * homes >> 32`` and ends at the first empty
slot; `homes` is the number of slots without the last 4,096, which take the overflow. `offset` is that of the content in
the tar, below 2^40 like `size`; shards are numbered as in the database, below 2^24. Members beyond these limits are not
in the index.

A result is only a hint: the caller must compare the tar header before the content with the name, and query the database
if they differ. So two names with the same CRC cost time but never return wrong bytes.
"""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from feedmill.formats.energon.index import IndexRows

PATH = ".nv-meta/feedmill.members"
_MAGIC = b"FMMEMBR1"
_HEADER = 64
_OVERFLOW = 4_096
_TAG = (1 << 24) - 1


def write_members(path: Path, rows: IndexRows, uuid: str) -> None:
    """Write the index of these rows to `path`. `uuid` identifies the state of the database.

    Raises:
        UnicodeEncodeError: a name is not valid Unicode (writing the database fails first).
    """
    slots = _slots(rows)
    header = _MAGIC + len(slots).to_bytes(8, "little") + uuid.encode("ascii", "replace")[:36].ljust(36, b"\0")
    with open(path, "wb") as f:
        f.write(header.ljust(_HEADER, b"\0"))
        f.write(slots.data)


def _slots(rows: IndexRows) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    """Return the hash table, uint64[slots, 2], at most 70% full, with linear probing.

    Names with the same CRC are in the order of their rows.
    """
    owners = np.searchsorted(rows.tar_file_id, rows.part_tar_file_id) + rows.part_sample_index
    begun = [zlib.crc32(f"{key}.".encode()) for key in rows.keys]  # a kernel would take longer to load than this takes
    encoded = {part: part.encode() for part in set(rows.part_names)}
    found = map(zlib.crc32, map(encoded.__getitem__, rows.part_names), map(begun.__getitem__, owners.tolist()))
    crc = np.fromiter(found, np.uint64, len(owners))
    shard, offset, size = (
        column.astype(np.uint64) for column in (rows.part_tar_file_id, rows.content_byte_offset, rows.content_byte_size)
    )
    fits = np.flatnonzero((offset < 1 << 40) & (size < 1 << 40) & (shard < 1 << 24))
    homes = max(16, len(fits) * 10 // 7)
    home = (crc[fits] * np.uint64(homes)) >> np.uint64(32)
    order = np.argsort(home, kind="stable")
    rank = np.arange(len(order))
    place = np.maximum.accumulate(home[order].astype(np.int64) - rank) + rank
    keep = place < homes + _OVERFLOW - 1  # keep the last slot empty, so that every search ends
    place, chosen = place[keep], fits[order[keep]]
    slots = np.zeros((homes + _OVERFLOW, 2), np.uint64)
    slots[place, 0] = offset[chosen] << np.uint64(24) | shard[chosen]
    slots[place, 1] = size[chosen] << np.uint64(24) | crc[chosen] & np.uint64(_TAG)
    return slots


class Members:
    """The mapped index. Safe to use from several threads.

    Args:
        path: the file.
        uuid: content of ``index.uuid``.

    Raises:
        ValueError: the file is damaged, or belongs to another state of the database.
    """

    def __init__(self, path: Path, uuid: str) -> None:
        with open(path, "rb") as f:
            header = f.read(_HEADER)
            slots = int.from_bytes(header[8:16], "little")
            whole = f.seek(0, 2) == _HEADER + 16 * slots and slots > _OVERFLOW
            if header[:8] != _MAGIC or not whole or header[16:52].rstrip(b"\0") != uuid.encode("ascii", "replace")[:36]:
                raise ValueError("not the index of this dataset's members")
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self._words = memoryview(self._map).cast("Q")
        self._homes = slots - _OVERFLOW

    def find(self, name: str) -> tuple[int, int, int] | None:
        """Return shard number, offset and size of the content that is probably the member's; None if there is none."""
        crc = zlib.crc32(name.encode("utf-8", "surrogateescape"))
        words = self._words
        at = (crc * self._homes >> 32) * 2 + 8
        tag = crc & _TAG
        try:
            while place := words[at]:
                size = words[at + 1]
                if size & _TAG == tag:
                    return place & _TAG, place >> 24, size >> 24
                at += 2
        except IndexError:  # a corrupt file without the empty slot at its end
            pass
        return None
