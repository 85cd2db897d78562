"""Locate the parts of many samples of tars in one call, without the GIL."""

from __future__ import annotations

from feedmill.kernels.native import kernel

_DOT, _SLASH, _LOW = 46, 47, 95


@kernel
def plain_samples(buffer, ends, members, firsts, keys, alike):  # type: ignore[no-untyped-def]
    """Locate the parts of samples with plain headers (see `feedmill.formats.tar.samples.parse_plain`).

    Args:
        buffer: uint8, the concatenated samples.
        ends: int64[n], the end of each sample.
        members: int64[most, 4], filled for each part: begin (after the key) and end of its name, and begin and end of
            its content, relative to the sample's beginning.
        firsts: int64[n + 1], filled: the first row of each sample in `members`.
        keys: int64[n], filled: length of the key at the sample's beginning; -1 for a sample that is not plain.
        alike: int64[n], filled: 1 if a sample has the same part names as the previous sample.
    """
    row, begin, before = 0, 0, -1
    for i in range(len(ends)):
        firsts[i], keys[i], alike[i] = row, -1, 0
        found = _sample(buffer, begin, ends[i], members, row)
        if found >= 0:
            keys[i] = members[row, 0] - 1
            if before >= 0 and found - row == row - firsts[i - 1]:
                alike[i] = _same_names(buffer, before, begin, members, firsts[i - 1], row)
            row, before = found, begin
        else:
            before = -1
        begin = ends[i]
    firsts[len(ends)] = row


@kernel
def _same_names(buffer, one, other, members, first, second):  # type: ignore[no-untyped-def]
    """Return 1 if two samples with equally many parts have the same part names."""
    for row in range(second - first):
        a, b = one + members[first + row, 0], other + members[second + row, 0]
        length = members[second + row, 1] - members[second + row, 0]
        if members[first + row, 1] - members[first + row, 0] != length:
            return 0
        for i in range(length):
            if buffer[a + i] != buffer[b + i]:
                return 0
    return 1


@kernel
def _sample(buffer, begin, end, members, row):  # type: ignore[no-untyped-def]
    """Fill the rows of one sample. Return the next row, or -1 if the sample is not plain."""
    at, key, first = begin, 0, row
    while at < end:
        if end - at < 512 or buffer[at + 156] != 48 or buffer[at + 345] != 0 or buffer[at + 135] > 32:
            return -1
        size = 0
        for i in range(at + 124, at + 135):
            if not 48 <= buffer[i] <= 55:
                return -1
            size = size * 8 + (buffer[i] - 48)
        data = at + 512
        behind = data + ((size + 511) & ~511)
        if behind > end:
            return -1
        length = 0
        while length < 100 and buffer[at + length] != 0:
            length += 1
        if key == 0:
            key = _key(buffer, at, length)
            if key <= 0:
                return -1
        else:
            if length <= key or buffer[at + key] != _DOT:
                return -1
            for i in range(key):
                if buffer[at + i] != buffer[begin + i]:
                    return -1
            for i in range(key + 1, length):
                if buffer[at + i] == _SLASH:
                    return -1
        members[row, 0], members[row, 1] = at + key + 1 - begin, at + length - begin
        members[row, 2], members[row, 3] = data - begin, data + size - begin
        row += 1
        at = behind
    return row if row > first else -1


@kernel
def _key(buffer, at, length):  # type: ignore[no-untyped-def]
    """Return the length of the key in a member's name; 0 if the member may not be part of a sample."""
    if length == 0 or buffer[at] == _DOT or (length > 1 and buffer[at] == _LOW and buffer[at + 1] == _LOW):
        return 0
    dot = 0
    for i in range(length):
        if buffer[at + i] == _SLASH:
            dot = 0
        elif buffer[at + i] == _DOT and dot == 0:
            dot = i
    return dot
