"""Writing ``.npz``: NumPy's archive of arrays, stored without compression, the same bytes for the same arrays.

An ``.npz`` is a zip of ``<name>.npy`` members ("NEP 1", and PKWARE's APPNOTE for zip). Small ones are written here,
several times faster than through `zipfile`; what would need zip64 is left to NumPy.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_DATE = 0x21  # 1 January 1980, the first day that zip knows
_ZIP64_FROM = 1 << 31


def npy(array: Any) -> bytes:
    """An array as ``.npy``. Raises `ValueError` for arrays of Python objects: they would have to be pickled."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), allow_pickle=False)
    return out.getvalue()


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Arrays by name as ``.npz``. Raises as `npy` does."""
    members = [(f"{name}.npy".encode(), npy(array)) for name, array in arrays.items()]
    if sum(len(name) + len(data) + 100 for name, data in members) >= _ZIP64_FROM or len(members) >= 1 << 16:
        out = io.BytesIO()
        np.savez(out, **{name: np.asanyarray(array) for name, array in arrays.items()})
        return out.getvalue()
    pieces: list[bytes] = []
    directory: list[bytes] = []
    at = 0
    for name, data in members:
        flags = 0 if name.isascii() else 1 << 11
        about = struct.pack("<HHHHIIIHH", flags, 0, 0, _DATE, zlib.crc32(data), len(data), len(data), len(name), 0)
        pieces += (b"PK\3\4\x14\0", about, name, data)
        directory.append(b"PK\1\2\x14\3\x14\0" + about + struct.pack("<HHHII", 0, 0, 0, 0o600 << 16, at) + name)
        at += 30 + len(name) + len(data)
    listing = b"".join(directory)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, len(members), len(members), len(listing), at, 0)
    return b"".join([*pieces, listing, end])
