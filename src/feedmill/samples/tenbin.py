"""Arrays in webdataset's ``.ten`` layout.

A file is a sequence of chunks, each ``b"~TenBin~"``, an int64 length in bytes, then the bytes, padded with zeros to a
multiple of 64. Chunks come in pairs, header then data; a header is int64 words: the dtype's short name (``f4``, ``i8``,
... as 8 ASCII bytes), an 8-byte array name, the number of dimensions, and each dimension. Little-endian, C order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"~TenBin~"
_DTYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})
_MAX_DIMENSIONS = 32


def decode(data: bytes) -> list[npt.NDArray[Any]]:
    """Return the arrays of a ``.ten`` file, in order. Raises `ValueError` if the layout is broken."""
    chunks = _chunks(data)
    if len(chunks) % 2:
        raise ValueError("the last array has a header but no data")
    return [_array(header, body) for header, body in zip(chunks[::2], chunks[1::2], strict=True)]


def _chunks(data: bytes) -> list[memoryview]:
    view, offset, chunks = memoryview(data), 0, []
    while offset < len(view):
        if view[offset : offset + 8] != _MAGIC:
            raise ValueError(f"no chunk begins at byte {offset}")
        head = view[offset + 8 : offset + 16]
        length = struct.unpack("<q", head)[0] if len(head) == 8 else -1
        start = offset + 16
        if not 0 <= length <= len(view) - start:
            raise ValueError(f"the chunk at byte {offset} is cut short")
        chunks.append(view[start : start + length])
        offset = start + -(-length // 64) * 64
    return chunks


def _array(header: memoryview, body: memoryview) -> npt.NDArray[Any]:
    if len(header) < 24 or len(header) % 8:
        raise ValueError(f"an array header of {len(header)} bytes")
    dtype = bytes(header[:8]).rstrip(b"\0").decode("latin-1")
    if dtype not in _DTYPES:
        raise ValueError(f"an array of unknown type {dtype!r}")
    rank, *shape = struct.unpack(f"<{len(header) // 8 - 2}q", header[16:])
    if not 0 <= rank <= min(len(shape), _MAX_DIMENSIONS) or any(size < 0 for size in shape[:rank]):
        raise ValueError(f"an array with {rank} dimensions of sizes {shape}")
    shape = shape[:rank]
    little = np.dtype(f"<{dtype}")
    if math.prod(shape) * little.itemsize != len(body):
        raise ValueError(f"an array {dtype}{shape} with {len(body)} bytes of data")
    return np.frombuffer(body, dtype=little).reshape(shape).copy()


def encode(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Arrays as a ``.ten`` file, their names empty. Raises `ValueError` for types that the layout does not have."""
    out: list[bytes] = []
    for array in arrays:
        array = np.asarray(array)
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        if kind not in _DTYPES:
            raise ValueError(f"an array of type {array.dtype}")
        header = struct.pack(f"<8s8sq{array.ndim}q", kind.encode(), b"", array.ndim, *array.shape)
        for body in (header, np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()):
            out += (_MAGIC, struct.pack("<q", len(body)), body, bytes(-len(body) % 64))
    return b"".join(out)
