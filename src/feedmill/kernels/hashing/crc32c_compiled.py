"""The compiled loop of `feedmill.kernels.hashing.crc32c`."""

from __future__ import annotations

from feedmill.kernels.native import kernel


@kernel
def add_bytes(data, table, crc):  # type: ignore[no-untyped-def]
    """Return the state of the checksum after more bytes: uint8[n], int64[256], and the state before."""
    for n in range(len(data)):
        crc = (crc >> 8) ^ table[(crc ^ data[n]) & 255]
    return crc
