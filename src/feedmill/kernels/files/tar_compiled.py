"""The compiled form of `feedmill.kernels.files.tar.scan`: one pass over the headers of a shard.

It supports the headers of nearly all shards: v7, ustar with prefix, GNU long names, and PAX headers that set the path,
the size, or fields that are not used. For anything else (sparse files, global headers, corrupt data) the reference is
used, which reports the exact error. Names are collected NUL-terminated, so that Python splits and decodes them in two
calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.files.tar_fields import BLOCK
from feedmill.kernels.native import kernel

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


@kernel
def _scan(buf, words, state, found, starts, sample, data, sizes, keys, parts, name):  # type: ignore[no-untyped-def]
    """Walk from state[0].

    state = [position, samples, parts, bytes in keys, bytes in parts, length of last key, links, hidden].

    `found` is for the fields of one member: path offset, path length, size, whether the path is a GNU long name.
    """
    size_all = len(buf)
    while True:
        start = state[0]
        at = start
        found[:] = -1
        found[3] = 0
        extended = False
        while True:
            if at == size_all and not extended:
                return _OPEN
            if at + 512 > size_all:
                return _OTHER
            if buf[at] == 0:
                for i in range(at, at + 512):
                    if buf[i] != 0:
                        return _OTHER
                return _OTHER if extended else _DONE
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
                extended = True
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
        stored = size
        if 49 <= kind <= 54 or (kind == 0 and not regular):
            stored = 0
        stop = at + 512 + (stored + 511) // 512 * 512
        if stop > size_all:
            return _OTHER
        key = _key_length(name, n) if regular else 0
        if (kind == 49 or kind == 50) and _key_length(name, n) > 0:
            state[6] += 1
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


def find_samples(buffer: npt.NDArray[np.uint8]) -> tuple[Any, ...] | None:
    """Return the fields of a `ShardScan` of a tar, or None if the tar needs the reference."""
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
    return (
        _words(keys, int(state[3])),
        starts,
        sample[:m].copy(),
        _shared(_words(parts, int(state[4]))),
        data[:m].copy(),
        sizes[:m].copy(),
        None,
        status == _DONE,
        0,
        int(state[6]),
        int(state[7]),
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
