"""CRC-32 of many file names at once: each ``key + "." + part``, the key's share computed once for all of its parts."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]
COMPILED_FROM = 20_000
"""Names from which the compiled loop pays, where numba is loaded already."""


def crc_names(
    keys: Sequence[str], owners: npt.NDArray[np.int64], parts: Sequence[str], *, compiled: bool | None = None
) -> UInt32s:
    """CRC-32 (as of zlib) of the UTF-8 bytes of ``f"{keys[owners[i]]}.{parts[i]}"`` for each part i.

    Args:
        keys: n texts without NUL.
        owners: int64[m], the key of each part.
        parts: m texts without NUL.
        compiled: use the numba kernel; by default where it is loaded and there are names enough.

    Raises:
        UnicodeEncodeError: a text is not valid Unicode.
    """
    if compiled is None:
        compiled = len(parts) >= COMPILED_FROM and "numba" in sys.modules
    if compiled:
        from feedmill.kernels.crc_compiled import crc_pairs

        key_text, part_text = ("\0".join((*texts, "")).encode() for texts in (keys, parts))
        key_bytes, part_bytes = np.frombuffer(key_text, np.uint8), np.frombuffer(part_text, np.uint8)
        found: UInt32s = crc_pairs(key_bytes, _starts(key_bytes), owners, part_bytes, _starts(part_bytes), _table())
        return found
    begun = [zlib.crc32(f"{key}.".encode()) for key in keys]
    pairs = zip(parts, owners.tolist(), strict=True)
    return np.fromiter((zlib.crc32(part.encode(), begun[owner]) for part, owner in pairs), np.uint32, len(parts))


def _starts(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return np.concatenate(([0], np.flatnonzero(text == 0) + 1)).astype(np.int64)


def _table() -> UInt32s:
    """The remainders of the 256 bytes for the reversed polynomial 0xEDB88320."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(np.uint32)
    return table
