"""Walk the headers of a tar, and group its members into samples.

Sources: POSIX.1-2017 pax "ustar Interchange Format" and "pax Extended Header", the GNU tar manual ("Basic Tar Format",
"Storing Sparse Files"), and the layout rules of WebDataset as Energon applies them (docs/formats/energon.md).

`walk` is the plain Python reference: it supports every header (v7, ustar prefix, PAX ``x`` and ``g``, GNU long names,
sparse files, base-256 sizes), and also reads single samples. `scan` indexes a whole shard: large shards with the
compiled kernel, others with the reference. Both give the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.kernels.native import kernel

BLOCK = 512
_DIGITS = 20  # of numbers up to 2^64
_REGULAR = b"0\x007S"
_SKIPPED = re.compile(r"__[^/]*__(?:/|$)")
_NO_DATA = b"123456"
_SPECIAL = b"12346"


class Member(NamedTuple):
    """One file of a tar.

    Attributes:
        start: offset of its first header, including extension headers.
        data: offset of the content.
        size: bytes of the expanded content.
        end: offset of the next header.
        sparse: (offset, length) of the stored pieces of a sparse file, which follow each other from `data` on; None for
            an ordinary file.
        special: whether it is neither a file nor a folder, but a link, a device or a pipe.
    """

    start: int
    data: int
    size: int
    end: int
    name: str
    regular: bool
    sparse: tuple[tuple[int, int], ...] | None = None
    special: bool = False


@dataclass(slots=True)
class ShardScan:
    """The samples of one shard.

    Attributes:
        keys: one per sample, in stored order.
        starts: int64[n + 1], the offset of each sample's first header, then the end of the last member.
        sample: int32[m], the number of each part's sample.
        parts: m part names.
        data, sizes: int64[m], offset and size of each part's content.
        problem: the error that stopped the scan before the end of the tar, or None; earlier samples are valid.
        closed: whether the end-of-archive marker was found.
        trailing: bytes from the first one behind the marker that is not zero to the end of the file, as in two
            concatenated tars; tar readers stop at the marker.
        special: number of links, devices and pipes whose names are those of parts; they are skipped.
        hidden: number of AppleDouble files at the top (``._x.jpg``); they are skipped, as all dot files at the top.
    """

    keys: list[str]
    starts: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int32]
    parts: list[str]
    data: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    problem: DataError | None = None
    closed: bool = True
    trailing: int = 0
    special: int = 0
    hidden: int = 0


@dataclass(slots=True)
class _Extension:
    """Settings of extension headers for the next member."""

    start: int | None = None
    name: bytes | None = None
    pax: dict[bytes, bytes] = field(default_factory=dict)
    sparse_map: list[int] = field(default_factory=list)


def sample_name(name: str) -> tuple[str, str] | None:
    """Return key and part of a member name, which is divided at the first dot after the last slash.

    Returns None if it is not a part of a sample: no dot, a dot file at the top, or a name below ``__...__``.
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= 0 or (name.startswith("__") and _SKIPPED.match(name)):
        return None
    return name[:dot], name[dot + 1 :]


def walk(
    buffer: memoryview | bytes, position: int = 0, end: int | None = None, *, headers: list[int] | None = None
) -> Iterator[Member]:
    """Yield the members of a tar, or of a range of it that begins and ends at headers, in stored order.

    Args:
        buffer: the bytes; all offsets are relative to its beginning.
        position: offset of the first header.
        end: offset at which to stop; by default the end of the buffer.
        headers: receives the offset of every header, including extension headers.

    Raises:
        DataError: ``bad-header`` or ``truncated``, with the offset.
    """
    end = len(buffer) if end is None else end
    globals_: dict[bytes, bytes] = {}
    pending = _Extension()
    while position < end:
        header = bytes(buffer[position : position + BLOCK])
        if len(header) < BLOCK or position + BLOCK > end:
            raise cut_header(position, min(len(header), end - position))
        if not header[0] and not any(header):
            return
        if headers is not None:
            headers.append(position)
        kind = header[156:157]
        size = number(header[124:136], position)
        data = position + BLOCK
        if kind in b"xgXLK":
            stop = data + -(-size // BLOCK) * BLOCK
            if data + size > end:
                raise cut_member(position, f"extension header {kind.decode()!r}", size, end - data)
            content = bytes(buffer[data : data + size])
            if kind == b"g":
                globals_.update(_pax_records(content, position))
            else:
                pending.start = position if pending.start is None else pending.start
                if kind == b"L":
                    pending.name = content.split(b"\0", 1)[0]
                elif kind != b"K":
                    pending.pax.update(_pax_records(content, position, pending.sparse_map))
            position = stop
            continue
        member = _member(buffer, header, position, size, end, {**globals_, **pending.pax}, pending)
        if member.end > end:
            raise cut_member(position, member.name, member.end - member.data, end - member.data)
        yield member
        position = member.end
        pending = _Extension()
    if pending.start is not None:
        raise cut_header(end, 0)


def _member(
    buffer: memoryview | bytes,
    header: bytes,
    position: int,
    size: int,
    end: int,
    pax: dict[bytes, bytes],
    pending: _Extension,
) -> Member:
    """Return the member whose own header is at `position`, with the settings of its extension headers."""
    kind = header[156:157]
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    if prefix and kind not in b"LKS":
        name = prefix + b"/" + name
    if pending.name is not None:
        name = pending.name
    name = pax.get(b"GNU.sparse.name") or pax.get(b"path") or name
    if b"size" in pax:
        size = decimal(pax[b"size"], position)
    data = position + BLOCK
    regular = kind in _REGULAR and not (kind == b"\0" and name.endswith(b"/"))
    stored = 0 if kind in _NO_DATA or (kind == b"\0" and not regular) else size
    stop = data + -(-stored // BLOCK) * BLOCK
    sparse: tuple[tuple[int, int], ...] | None = None
    if kind == b"S":
        sparse, size, data = gnu_pieces(buffer, header, position, end)
        stop = data + -(-stored // BLOCK) * BLOCK
    elif any(key.startswith(b"GNU.sparse.") for key in pax):
        sparse, data = pax_pieces(buffer, pax, pending.sparse_map, position, data)
        size = decimal(pax.get(b"GNU.sparse.realsize") or pax.get(b"GNU.sparse.size") or b"%d" % size, position)
    if sparse is not None and not fits(sparse, size, stop - data):
        raise bad_header(position)
    start = position if pending.start is None else pending.start
    return Member(start, data, size, stop, name.decode("utf-8", "surrogateescape"), regular, sparse, kind in _SPECIAL)


def expand(buffer: memoryview | bytes, member: Member) -> bytes:
    """Return the content of a sparse member with holes as zeros. Raises `DataError` if it does not fit in memory."""
    try:
        out = bytearray(member.size)
    except MemoryError:
        raise bad_header(member.start, member.name) from None
    position = member.data
    for offset, length in member.sparse or ():
        out[offset : offset + length] = buffer[position : position + length]
        position += length
    return bytes(out)


def _pax_records(content: bytes, position: int, sparse_map: list[int] | None = None) -> dict[bytes, bytes]:
    """Parse records ``<length> <key>=<value>\\n``. Repeated sparse 0.0 offsets and lengths go to `sparse_map`."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        space = content.find(b" ", at, at + 21)
        length = int(content[at:space]) if space > at and content[at:space].isdigit() else 0
        key, equals, value = content[space + 1 : at + length - 1].partition(b"=")
        if length < 5 or not equals or content[at + length - 1 : at + length] != b"\n":
            raise bad_header(position)
        if sparse_map is not None and key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            sparse_map.append(decimal(value, position))
        records[key] = value
        at += length
    return records


def scan(buffer: npt.NDArray[np.uint8]) -> ShardScan:
    """Return the samples of a whole tar.

    Args:
        buffer: uint8[size], the tar, usually mapped.

    Invalid data raises no error: `ShardScan.problem` has the error that stopped the scan.
    """
    found = scan_compiled(buffer) or scan_reference(buffer)
    rest = buffer[int(found.starts[-1]) :] if found.closed else buffer[:0]
    first = int(rest.view(np.bool_).argmax()) if len(rest) else 0  # 0: all are zeros, as the first block is
    found.trailing = len(rest) - first if first else 0
    return found


def scan_reference(buffer: npt.NDArray[np.uint8]) -> ShardScan:
    """Scan in plain Python, which supports all tars and names each fault; the oracle of the kernel's tests."""
    view = memoryview(buffer)  # type: ignore[arg-type]
    keys: list[str] = []
    starts: list[int] = []
    sample: list[int] = []
    parts: list[str] = []
    data: list[int] = []
    sizes: list[int] = []
    headers: list[int] = []
    last, problem, end, special, hidden = None, None, 0, 0, 0
    try:
        for member in walk(view, headers=headers):
            end = member.end
            name = sample_name(member.name) if member.regular or member.special else None
            if name is None:
                hidden += member.regular and member.name.startswith("._")
                continue
            if member.special:
                special += 1
                continue
            if name[0] != last:
                last = name[0]
                keys.append(last)
                starts.append(member.start)
            sample.append(len(keys) - 1)
            parts.append(name[1])
            data.append(member.data)
            sizes.append(member.size)
    except DataError as error:
        problem = error
    wrong = first_bad_checksum(buffer, np.asarray(headers, np.int64))
    if wrong is not None and (problem is None or wrong <= (problem.offset or 0)):
        return _cut(keys, starts, sample, parts, data, sizes, bad_header(wrong), wrong)
    closed = problem is None and bool(len(buffer) >= end + BLOCK and not buffer[end : end + BLOCK].any())
    return ShardScan(
        keys,
        np.asarray([*starts, end], np.int64),
        np.asarray(sample, np.int32),
        parts,
        np.asarray(data, np.int64),
        np.asarray(sizes, np.int64),
        problem,
        closed,
        special=special,
        hidden=hidden,
    )


def _cut(
    keys: list[str],
    starts: list[int],
    sample: list[int],
    parts: list[str],
    data: list[int],
    sizes: list[int],
    problem: DataError,
    at: int,
) -> ShardScan:
    """Return the scan up to the header at `at`."""
    kept = int(np.searchsorted(np.asarray(data, np.int64), at))
    samples = sample[kept - 1] + 1 if kept else 0
    return ShardScan(
        keys[:samples],
        np.asarray([*starts[:samples], at], np.int64),
        np.asarray(sample[:kept], np.int32),
        parts[:kept],
        np.asarray(data[:kept], np.int64),
        np.asarray(sizes[:kept], np.int64),
        problem,
        False,
    )


def first_bad_checksum(buffer: npt.NDArray[np.uint8], headers: npt.NDArray[np.int64]) -> int | None:
    """Return the first of these header offsets whose checksum is wrong; computed for 2,048 headers at a time.

    Both the signed and the unsigned sum are accepted, since old writers differ.
    """
    for low in range(0, len(headers), 2048):
        batch = headers[low : low + 2048]
        blocks = np.lib.stride_tricks.sliding_window_view(buffer, BLOCK)[batch]
        text = blocks[:, 148:156]
        total = blocks.sum(axis=1, dtype=np.int64) - text.sum(axis=1, dtype=np.int64) + 8 * 32
        signed = total - 256 * ((blocks >= 128).sum(axis=1) - (text >= 128).sum(axis=1))
        for at, want, want_signed, raw in zip(batch.tolist(), total.tolist(), signed.tolist(), text, strict=True):
            field_ = raw.tobytes().split(b"\0", 1)[0].strip()
            if not field_ or any(c not in b"01234567" for c in field_) or int(field_, 8) not in (want, want_signed):
                return int(at)
    return None


# --- fields and errors ------------------------------------------------------------------------------------------------


def number(field_: bytes, position: int) -> int:
    """Return a numeric field: octal text, or base 256 if the first bit is set (GNU, for files above 8 GiB)."""
    if field_[0] in (0o200, 0o377):
        value = int.from_bytes(field_[1:], "big")
        if field_[0] == 0o377:
            value -= 256 ** (len(field_) - 1)
    else:
        text = field_.split(b"\0", 1)[0].strip()
        try:
            value = int(text, 8) if text else 0
        except ValueError:
            raise bad_header(position) from None
    if value < 0:
        raise bad_header(position)
    return value


def decimal(text: bytes, position: int) -> int:
    """Return a number of a PAX header or of the map of a sparse file."""
    if not text.isdigit() or len(text) > _DIGITS:
        raise bad_header(position)
    return int(text)


def bad_header(position: int, record: str | None = None) -> DataError:
    """Return the error for a block that is not a tar header."""
    return DataError(
        "invalid tar header (its checksum or its numbers are wrong)",
        offset=position,
        record=record,
        kind="bad-header",
        fix="The shard is corrupt from here on: restore it, or run 'feedmill edit repair' to"
        " keep the samples before this point.",
    )


def cut_header(position: int, found: int) -> DataError:
    """Return the error for an archive that ends inside a header."""
    return DataError(
        f"the archive is truncated inside a header (expected {BLOCK} bytes, found {found})",
        offset=position,
        kind="truncated",
        fix="The shard was truncated: restore it, or run 'feedmill edit repair' to drop the incomplete tail.",
    )


def cut_member(position: int, name: str, size: int, found: int) -> DataError:
    """Return the error for an archive that ends inside a member: expected `size` bytes, found `found`."""
    return DataError(
        f"the archive is truncated inside this member (expected {size} bytes, found {max(0, found)})",
        offset=position,
        record=name,
        kind="truncated",
        fix="The shard was truncated: restore it, or run 'feedmill edit repair' to drop the incomplete sample.",
    )


# --- sparse members ---------------------------------------------------------------------------------------------------

_MOST = (1 << 63) - 1


def fits(pieces: tuple[tuple[int, int], ...], size: int, stored: int) -> bool:
    """Return whether the pieces of a sparse member are inside its content and completely stored."""
    return (
        size <= _MOST
        and sum(length for _, length in pieces) <= stored
        and all(offset + length <= size for offset, length in pieces)
    )


def gnu_pieces(
    buffer: memoryview | bytes, header: bytes, position: int, end: int
) -> tuple[tuple[tuple[int, int], ...], int, int]:
    """Return pieces, size and data offset of the old GNU form: four pieces in the header, 21 per extension block."""
    pieces: list[tuple[int, int]] = []
    fields, more, data = header[386:482], header[482], position + BLOCK
    size = number(header[483:495], position)
    while True:
        for at in range(0, len(fields), 24):
            offset, length = number(fields[at : at + 12], position), number(fields[at + 12 : at + 24], position)
            if offset or length:
                pieces.append((offset, length))
        if not more:
            return tuple(pieces), size, data
        if data + BLOCK > end:
            raise cut_header(data, end - data)
        block = bytes(buffer[data : data + BLOCK])
        fields, more, data = block[:504], block[504], data + BLOCK


def pax_pieces(
    buffer: memoryview | bytes, pax: dict[bytes, bytes], repeated: list[int], position: int, data: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the PAX forms 0.0 (repeated records), 0.1 (one map record) and 1.0 (map at the head of the data)."""
    if b"GNU.sparse.map" in pax:
        numbers = [decimal(word, position) for word in pax[b"GNU.sparse.map"].split(b",")]
    elif pax.get(b"GNU.sparse.major") == b"1":
        text, found, wanted = bytearray(), 0, 1
        while found < wanted:
            if data + BLOCK > len(buffer):
                raise cut_header(data, len(buffer) - data)
            block = bytes(buffer[data : data + BLOCK])
            if not found:  # the number of pieces comes first
                wanted = 1 + 2 * decimal(block.partition(b"\n")[0], position)
            text += block
            found += block.count(b"\n")
            data += BLOCK
        numbers = [decimal(line, position) for line in bytes(text).split(b"\n", wanted)[1:wanted]]
    else:
        numbers = repeated
    if len(numbers) % 2:
        raise bad_header(position)
    return tuple(zip(numbers[::2], numbers[1::2], strict=False)), data


# --- compiled ---------------------------------------------------------------------------------------------------------
# One pass over the headers of a shard. It supports the headers of nearly all shards: v7, ustar with prefix, GNU long
# names, and PAX headers that set the path, the size, or fields that are not used. For anything else (sparse files,
# global headers, corrupt data) the reference is used, which reports the exact error. Names are collected
# NUL-terminated, so that Python splits and decodes them in two calls.

_DONE, _OPEN, _FULL, _OTHER = 0, 1, 2, 3


@kernel
def _octal(buf, at, length):  # type: ignore[no-untyped-def]
    """Return a numeric header field; -1 if it is invalid."""
    if buf[at] == 0x80:
        value = 0
        for i in range(at + 1, at + length):
            if value > (1 << 54):
                return -1
            value = value * 256 + buf[i]
        return value
    i, end = at, at + length
    while i < end and buf[i] == 32:
        i += 1
    value = 0
    while i < end and 48 <= buf[i] <= 55:
        value = value * 8 + (buf[i] - 48)
        i += 1
    while i < end and buf[i] == 32:
        i += 1
    return value if i == end or buf[i] == 0 else -1


@kernel
def _checksum_holds(buf, words, at):  # type: ignore[no-untyped-def]
    """Return whether the checksum of a header is correct.

    Eight bytes are summed at a time: 64 words keep each 16-bit lane below 2 * 64 * 255, so no lane overflows.
    """
    low = np.uint64(0x00FF00FF00FF00FF)
    lanes = np.uint64(0)
    for i in range(at >> 3, (at >> 3) + 64):
        lanes += (words[i] & low) + ((words[i] >> np.uint64(8)) & low)
    pairs = (lanes & np.uint64(0x0000FFFF0000FFFF)) + ((lanes >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF))
    total = np.int64(pairs & np.uint64(0xFFFFFFFF)) + np.int64(pairs >> np.uint64(32)) + 256
    for i in range(at + 148, at + 156):
        total -= np.int64(buf[i])
    stored = _octal(buf, at + 148, 8) if buf[at + 148] != 0x80 else -1
    if stored == total:
        return True
    for i in range(at, at + 512):  # old writers summed signed bytes
        if buf[i] >= 128 and not at + 148 <= i < at + 156:
            total -= 256
    return stored == total


@kernel
def _pax(buf, at, end, found):  # type: ignore[no-untyped-def]
    """Read PAX records to found = [path offset, path length, size]. Return False if a record needs the reference."""
    while at < end and buf[at] != 0:
        begin, length = at, 0
        while at < end and 48 <= buf[at] <= 57:
            length = length * 10 + (buf[at] - 48)
            at += 1
        if at >= end or buf[at] != 32 or at - begin > 18 or length < 5 or begin + length > end:
            return False
        if buf[begin + length - 1] != 10:
            return False
        key = at + 1
        value = key
        while value < begin + length and buf[value] != 61:
            value += 1
        if value >= begin + length - 1:
            return False
        size = value - key
        value += 1
        empty = value == begin + length - 1
        if size == 4 and buf[key] == 112 and buf[key + 1] == 97 and buf[key + 2] == 116 and buf[key + 3] == 104:
            if empty:
                return False
            found[0] = value
            found[1] = begin + length - 1 - value
            found[3] = 0
        elif size == 4 and buf[key] == 115 and buf[key + 1] == 105 and buf[key + 2] == 122 and buf[key + 3] == 101:
            if empty:
                return False
            number = 0
            for i in range(value, begin + length - 1):
                if not 48 <= buf[i] <= 57 or number > (1 << 58):
                    return False
                number = number * 10 + (buf[i] - 48)
            found[2] = number
        elif size >= 4 and buf[key] == 71 and buf[key + 1] == 78 and buf[key + 2] == 85 and buf[key + 3] == 46:
            return False
        at = begin + length
    return True


@kernel
def _gather_name(buf, at, found, name):  # type: ignore[no-untyped-def]
    """Write the member's full name to `name`. Return its length, or -1 if it is too long."""
    if found[0] >= 0:
        if found[1] > len(name):
            return -1
        for i in range(found[1]):
            if buf[found[0] + i] == 0:
                return i if found[3] else -1
            name[i] = buf[found[0] + i]
        return found[1]
    n = 0
    if buf[at + 345] != 0:
        for i in range(at + 345, at + 500):
            if buf[i] == 0:
                break
            name[n] = buf[i]
            n += 1
        name[n] = 47
        n += 1
    for i in range(at, at + 100):
        if buf[i] == 0:
            break
        name[n] = buf[i]
        n += 1
    return n


@kernel
def _key_length(name, n):  # type: ignore[no-untyped-def]
    """Return the length of the key in a member name; 0 if the member is not a part of a sample."""
    slash, first = 0, n
    for i in range(n):
        if name[i] == 47:
            slash = i + 1
            first = min(first, i)
    if first >= 4 and name[0] == 95 and name[1] == 95 and name[first - 1] == 95 and name[first - 2] == 95:
        return 0
    for i in range(slash, n):
        if name[i] == 46:
            return i
    return 0


@kernel(
    "u8[:], u64[:], out i64[:], out i64[:], out i64[:], out i32[:], out i64[:], out i64[:], out u8[:], "
    "out u8[:], out u8[:] -> i64"
)
def _scan(buf, words, state, found, starts, sample, data, sizes, keys, parts, name):  # type: ignore[no-untyped-def]
    """Walk from state[0].

    state = [position, samples, parts, bytes in keys, bytes in parts, length of last key, special, hidden].

    `found` is for the fields of one member: path offset, path length, size, whether the path is a GNU long name.
    """
    size_all = len(buf)
    while True:
        start = state[0]
        at = start
        found[:] = -1
        found[3] = 0
        while True:
            if at == size_all and at == start:
                return _OPEN
            if at + 512 > size_all:
                return _OTHER
            if buf[at] == 0:
                for i in range(at, at + 512):
                    if buf[i] != 0:
                        return _OTHER
                return _OTHER if at > start else _DONE
            if not _checksum_holds(buf, words, at):
                return _OTHER
            kind = buf[at + 156]
            size = _octal(buf, at + 124, 12)
            if size < 0:
                return _OTHER
            if kind == 120 or kind == 88 or kind == 76 or kind == 75:  # x X L K
                stop = at + 512 + size
                if stop > size_all:
                    return _OTHER
                if kind == 76:
                    if found[0] >= 0 and not found[3]:
                        return _OTHER
                    found[0] = at + 512
                    found[1] = size
                    found[3] = 1
                elif kind != 75 and not _pax(buf, at + 512, stop, found):
                    return _OTHER
                at += 512 + (size + 511) // 512 * 512
                continue
            break
        if kind == 103 or kind == 83:  # global PAX header, GNU sparse
            return _OTHER
        n = _gather_name(buf, at, found, name)
        if n < 0:
            return _OTHER
        if found[2] >= 0:
            size = found[2]
        regular = kind == 48 or kind == 55 or (kind == 0 and not (n > 0 and name[n - 1] == 47))
        empty = 49 <= kind <= 54
        stored = size
        if empty or (kind == 0 and not regular):
            stored = 0
        stop = at + 512 + (stored + 511) // 512 * 512
        if stop > size_all:
            return _OTHER
        key = _key_length(name, n)
        if not regular:
            state[6] += key > 0 and empty and kind != 53
            key = 0
        if regular and n > 1 and name[0] == 46 and name[1] == 95 and key == 0:  # "._x" at the top: AppleDouble
            state[7] += 1
        if key > 0:
            if state[2] + 1 > len(sample) or state[3] + key + 1 > len(keys) or state[4] + n - key > len(parts):
                return _FULL
            same = state[1] > 0 and key == state[5]
            if same:
                for i in range(key):
                    if keys[state[3] - key - 1 + i] != name[i]:
                        same = False
                        break
            if not same:
                starts[state[1]] = start
                for i in range(key):
                    keys[state[3] + i] = name[i]
                keys[state[3] + key] = 0
                state[3] += key + 1
                state[5] = key
                state[1] += 1
            m = state[2]
            sample[m] = state[1] - 1
            data[m] = at + 512
            sizes[m] = size
            for i in range(key + 1, n):
                parts[state[4] + i - key - 1] = name[i]
            parts[state[4] + n - key - 1] = 0
            state[4] += n - key
            state[2] += 1
        state[0] = stop


def scan_compiled(buffer: npt.NDArray[np.uint8]) -> ShardScan | None:
    """Scan with the kernel. Returns None if the tar needs the reference."""
    words = buffer[: len(buffer) // 8 * 8].view(np.uint64)
    room = max(64, len(buffer) // (16 * BLOCK))
    state, member = np.zeros(8, np.int64), np.empty(4, np.int64)
    starts, sample = np.empty(room, np.int64), np.empty(room, np.int32)
    data, sizes = np.empty(room, np.int64), np.empty(room, np.int64)
    keys, parts = np.empty(room * 24, np.uint8), np.empty(room * 16, np.uint8)
    name = np.empty(1 << 16, np.uint8)
    status = _scan(buffer, words, state, member, starts, sample, data, sizes, keys, parts, name)
    while status == _FULL:
        starts, sample, data, sizes, keys, parts = (_grown(a) for a in (starts, sample, data, sizes, keys, parts))
        status = _scan(buffer, words, state, member, starts, sample, data, sizes, keys, parts, name)
    if status == _OTHER:
        return None
    n, m = int(state[1]), int(state[2])
    starts = np.append(starts[:n], state[0])
    return ShardScan(
        _words(keys, int(state[3])),
        starts,
        sample[:m].copy(),
        _shared(_words(parts, int(state[4]))),
        data[:m].copy(),
        sizes[:m].copy(),
        closed=status == _DONE,
        special=int(state[6]),
        hidden=int(state[7]),
    )


def _grown(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    out = np.empty(2 * len(array) + 65536, array.dtype)
    out[: len(array)] = array
    return out


def _shared(words: list[str]) -> list[str]:
    """Return the same words with one object per distinct word: a shard has few part names, but many parts."""
    once: dict[str, str] = {}
    return list(map(once.setdefault, words, words))


def _words(buffer: npt.NDArray[np.uint8], used: int) -> list[str]:
    if not used:
        return []
    return buffer[: used - 1].tobytes().decode("utf-8", "surrogateescape").split("\0")
