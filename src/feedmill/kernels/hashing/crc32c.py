"""CRC-32C (Castagnoli), which Zarr stores behind chunks and indices of shards."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the checksum of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    from feedmill.kernels.hashing.crc32c_compiled import add_bytes

    return int(add_bytes(np.frombuffer(data, np.uint8), table(), 0xFFFFFFFF)) ^ 0xFFFFFFFF


def crc32c_plain(data: bytes) -> int:
    """Return the same in plain Python, the test oracle of the compiled loop."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@cache
def table() -> npt.NDArray[np.int64]:
    """Return the change of the checksum for each byte, int64[256]."""
    found = np.arange(256, dtype=np.int64)
    for _ in range(8):
        found = found >> 1 ^ np.where(found & 1, _POLYNOMIAL, 0)
    return found
