"""CRC-32C (Castagnoli), which Zarr stores behind chunks and indices of shards."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the checksum of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return int(_add_bytes(np.frombuffer(data, np.uint8), table(), 0xFFFFFFFF)) ^ 0xFFFFFFFF


@cache
def table() -> npt.NDArray[np.int64]:
    """Return the change of the checksum for each byte, int64[256]."""
    found = np.arange(256, dtype=np.int64)
    for _ in range(8):
        found = found >> 1 ^ np.where(found & 1, _POLYNOMIAL, 0)
    return found


@kernel("u8[:], i64[:], i64 -> i64")
def _add_bytes(data, table, crc):  # type: ignore[no-untyped-def]
    """Return the state of the checksum after more bytes: uint8[n], int64[256], and the state before."""
    for n in range(len(data)):
        crc = (crc >> 8) ^ table[(crc ^ data[n]) & 255]
    return crc
