"""Locate the stored pieces of a sparse member of a tar: the old GNU form, and the three forms of PAX headers."""

from __future__ import annotations

from feedmill.kernels.files.tar_fields import BLOCK, bad_header, cut_header, decimal, number

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
