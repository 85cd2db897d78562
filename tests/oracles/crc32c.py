"""The checksum of `feedmill.kernels.hashing.crc32c` in plain Python."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    """Return the checksum of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
