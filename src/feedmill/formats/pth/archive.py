"""Locate the entries of a ``.pth`` zip: read the central directory, and verify it with every local header."""

from __future__ import annotations

import struct
from typing import NamedTuple

from feedmill.errors import DataError

_END, _END64 = b"PK\x05\x06", b"PK\x06\x06"
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_END_RECORD = struct.Struct("<4s4H2LH")
_END64_RECORD = struct.Struct("<4sQ2H2L4Q")
_MOST = 1 << 20


class Entry(NamedTuple):
    """One stored file of the zip: its bytes are ``[start, stop)``; the offsets of its headers are for `checksums`."""

    name: str
    start: int
    stop: int
    central: int
    local: int
    flags: int


def entries(data: bytes) -> dict[str, Entry]:
    """Return entries by name without the archive's folder (``data.pkl``, ``data/0``, ...).

    Raises:
        DataError: the data is not such a zip, or an entry is compressed, encrypted, out of range, overlapping or
            duplicate.
    """
    first, after, count = _directory(data)
    by_name: dict[str, Entry] = {}
    root: str | None = None
    at = first
    for _ in range(count):
        if at + _CENTRAL.size > after:
            raise bad("its directory is truncated")
        entry, at = _entry(data, at, first)
        folder, slash, name = entry.name.partition("/")
        root = folder if root is None else root
        if not slash or folder != root:
            raise bad(f"the entry {entry.name!r:.80} is not below the folder {root!r:.80}", "bad-pickle")
        if name in by_name:
            raise bad(f"the entry {name!r:.80} occurs twice")
        by_name[name] = entry._replace(name=name)
    if at != after:
        raise bad("its directory does not have the declared number of entries")
    stop = 0
    for entry in sorted(by_name.values(), key=lambda entry: entry.local):
        if entry.local < stop:
            raise bad(f"the entry {entry.name!r:.80} overlaps another")
        stop = entry.stop
    return by_name


def _directory(data: bytes) -> tuple[int, int, int]:
    """Return begin and end of the central directory, and its number of entries."""
    at = len(data) - _END_RECORD.size
    if data[max(at, 0) : at + 4] != _END:
        at = data.rfind(_END, max(0, len(data) - 65_557))
        if at < 0 or at + _END_RECORD.size > len(data):
            raise bad("the end of the zip is missing: the file was truncated")
    _, disk, first_disk, here, count, size, start, comment = _END_RECORD.unpack_from(data, at)
    if at + _END_RECORD.size + comment != len(data):
        raise bad("bytes follow the end of the zip")
    if 0xFFFF in (here, count) or 0xFFFFFFFF in (size, start):
        locator = at - 20
        if locator < 0 or data[locator : locator + 4] != b"PK\x06\x07":
            raise bad("the end of the zip is incomplete")
        (at,) = struct.unpack_from("<Q", data, locator + 8)
        if at + _END64_RECORD.size > locator or data[at : at + 4] != _END64:
            raise bad("the end of the zip is incomplete")
        _, _, _, _, disk, first_disk, here, count, size, start = _END64_RECORD.unpack_from(data, at)
    elif data[at - 20 : at - 16] == b"PK\x06\x07":  # torch writes zip64 ends for large files only
        (at,) = struct.unpack_from("<Q", data, at - 12)
    if disk or first_disk or here != count or start + size != at or count > _MOST:
        raise bad("its directory is at a wrong offset")
    return start, at, count


def _entry(data: bytes, at: int, limit: int) -> tuple[Entry, int]:
    """Return the entry of the central header at `at`, and the offset of the next header."""
    mark, _, _, flags, method, _, _, _, packed, size, n, extra, comment, disk, _, _, local = _CENTRAL.unpack_from(
        data, at
    )
    after = at + _CENTRAL.size + n + extra + comment
    name = data[at + _CENTRAL.size : at + _CENTRAL.size + n]
    shown = name[:80].decode("utf-8", "replace")
    if mark != b"PK\x01\x02" or disk not in (0, 0xFFFF) or after > len(data):
        raise bad("its directory is damaged")
    if 0xFFFFFFFF in (size, packed, local):
        begin = at + _CENTRAL.size + n
        size, packed, local = _wide(data[begin : begin + extra], size, packed, local)
    if method or size != packed:
        raise bad(f"the entry {shown!r} is compressed, which torch.save never does", "unsupported")
    if flags & 1:
        raise bad(f"the entry {shown!r} is encrypted", "unsupported")
    if local + _LOCAL.size > limit:
        raise bad(f"the entry {shown!r} lies outside the file")
    header = _LOCAL.unpack_from(data, local)
    start = local + _LOCAL.size + header[9] + header[10]
    named = data[local + _LOCAL.size : local + _LOCAL.size + header[9]]
    if header[0] != b"PK\x03\x04" or named != name or header[3] or header[2] & 1:
        raise bad(f"the entry {shown!r} is not at the offset in the directory")
    if start + size > limit:
        raise bad(f"the entry {shown!r} lies outside the file")
    return Entry(name.decode("utf-8", "replace"), start, start + size, at, local, flags), after


def _wide(extra: bytes, size: int, packed: int, local: int) -> tuple[int, int, int]:
    """Return sizes and offset beyond 32 bits, from the zip64 field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            words = [int.from_bytes(extra[i : i + 8], "little") for i in range(at + 4, at + 4 + length // 8 * 8, 8)]
            values = []
            for value in (size, packed, local):
                if value == 0xFFFFFFFF and not words:
                    break
                values.append(words.pop(0) if value == 0xFFFFFFFF else value)
            else:
                return values[0], values[1], values[2]
        at += 4 + length
    raise bad("its directory is damaged")


def checksums(entry: Entry) -> list[tuple[int, int]]:
    """Return the byte ranges of the entry's checksum, which change with its content."""
    places = [(entry.central + 16, entry.central + 20)]
    if entry.flags & 8:
        places.append((entry.stop + 4, entry.stop + 8))  # after PK\7\8 of the data descriptor
    else:
        places.append((entry.local + 14, entry.local + 18))
    return places


def bad(what: str, kind: str = "bad-pickle") -> DataError:
    """Return the error for an invalid file."""
    return DataError(
        f"this is not a .pth file that can be read: {what}",
        kind=kind,
        fix="Save it again with torch.save.",
    )
