"""Locate the parts of many samples of tars in one call, without the GIL."""

from __future__ import annotations

from feedmill.kernels.machine import memcmp, memcpy
from feedmill.kernels.native import kernel

_DOT, _SLASH, _LOW = 46, 47, 95


@kernel("i64[:], i64[:], u8[:], i64, out i64[:,:], out i64[:], out i64[:], out i64[:]")
def plain_samples(addresses, lengths, header, place, members, firsts, keys, alike):  # type: ignore[no-untyped-def]
    """Locate the parts of samples with plain headers (see `feedmill.formats.tar.dataset.parse_plain`).

    Args:
        addresses, lengths: int64[n], where each sample is in memory, and its bytes.
        header: uint8[512], memory for one header.
        place: the address of `header`.
        members: int64[most, 4], filled for each part: begin (after the key) and end of its name, and begin and end of
            its content, relative to the sample's beginning. Samples for which it has no room are not plain.
        firsts: int64[n + 1], filled: the first row of each sample in `members`.
        keys: int64[n], filled: length of the key at the sample's beginning; -1 for a sample that is not plain.
        alike: int64[n], filled: 1 if a sample has the same part names as the previous sample.
    """
    row, before = 0, -1
    for i in range(len(addresses)):
        firsts[i], keys[i], alike[i] = row, -1, 0
        found = _sample(addresses[i], lengths[i], header, place, members, row)
        if found >= 0:
            keys[i] = members[row, 0] - 1
            if before >= 0 and found - row == row - firsts[before]:
                alike[i] = _same_names(addresses[before], addresses[i], members, firsts[before], row)
            row, before = found, i
        else:
            before = -1
    firsts[len(addresses)] = row


@kernel
def _same_names(one, other, members, first, second):  # type: ignore[no-untyped-def]
    """Return 1 if two samples with equally many parts have the same part names."""
    for row in range(second - first):
        a, b = first + row, second + row
        length = members[b, 1] - members[b, 0]
        if members[a, 1] - members[a, 0] != length:
            return 0
        if memcmp(one + members[a, 0], other + members[b, 0], length) != 0:
            return 0
    return 1


@kernel
def _sample(begin, end, header, place, members, row):  # type: ignore[no-untyped-def]
    """Fill the rows of one sample. Return the next row, or -1 if the sample is not plain."""
    at, key, first = 0, 0, row
    while at < end:
        if end - at < 512 or row >= len(members):
            return -1
        memcpy(place, begin + at, 160)  # all that is read of the header but one byte
        memcpy(place + 345, begin + at + 345, 1)
        if header[156] != 48 or header[345] != 0 or header[135] > 32:
            return -1
        size = 0
        for i in range(124, 135):
            if not 48 <= header[i] <= 55:
                return -1
            size = size * 8 + (header[i] - 48)
        data = at + 512
        behind = data + ((size + 511) & ~511)
        if behind > end:
            return -1
        length = 0
        while length < 100 and header[length] != 0:
            length += 1
        if key == 0:
            key = _key(header, length)
            if key <= 0:
                return -1
        else:
            if length <= key or header[key] != _DOT or memcmp(place, begin, key) != 0:
                return -1
            for i in range(key + 1, length):
                if header[i] == _SLASH:
                    return -1
        members[row, 0], members[row, 1] = at + key + 1, at + length
        members[row, 2], members[row, 3] = data, data + size
        row += 1
        at = behind
    return row if row > first else -1


@kernel
def _key(header, length):  # type: ignore[no-untyped-def]
    """Return the length of the key in a member's name; 0 if the member may not be part of a sample."""
    if length == 0 or header[0] == _DOT or (length > 1 and header[0] == _LOW and header[1] == _LOW):
        return 0
    dot = 0
    for i in range(length):
        if header[i] == _SLASH:
            dot = 0
        elif header[i] == _DOT and dot == 0:
            dot = i
    return dot
