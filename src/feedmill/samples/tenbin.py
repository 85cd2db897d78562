"""Encode and decode arrays in WebDataset's ``.ten`` layout.

A file is a sequence of chunks. Each chunk is ``b"~TenBin~"``, an int64 length in bytes, then the bytes, padded with
zeros to a multiple of 64. Chunks come in pairs: header, then data. A header consists of int64 words: the dtype's short
name (``f4``, ``i8``, ... as 8 ASCII bytes), an 8-byte array name, the number of dimensions, and each dimension. Numbers
are little-endian, arrays in C order.
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
    """Return the arrays of a ``.ten`` file, in order. Raises `ValueError` if the file is invalid."""
    chunks = _chunks(data)
    if len(chunks) % 2:
        raise ValueError("the last array has a header but no data")
    return [_array(header, body) for header, body in zip(chunks[::2], chunks[1::2], strict=True)]


def _chunks(data: bytes) -> list[memoryview]:
    view, offset, chunks = memoryview(data), 0, []
    while offset < len(view):
        if view[offset : offset + 8] != _MAGIC:
            raise ValueError(f"invalid chunk at byte {offset}: expected it to begin with ~TenBin~")
        head = view[offset + 8 : offset + 16]
        length = struct.unpack("<q", head)[0] if len(head) == 8 else -1
        start = offset + 16
        if not 0 <= length <= len(view) - start:
            raise ValueError(f"the chunk at byte {offset} is truncated")
        chunks.append(view[start : start + length])
        offset = start + -(-length // 64) * 64
    return chunks


def _array(header: memoryview, body: memoryview) -> npt.NDArray[Any]:
    if len(header) < 24 or len(header) % 8:
        raise ValueError(f"invalid array header of {len(header)} bytes: expected a multiple of 8, at least 24")
    dtype = bytes(header[:8]).rstrip(b"\0").decode("latin-1")
    if dtype not in _DTYPES:
        raise ValueError(f"unknown array dtype {dtype!r}")
    rank, *shape = struct.unpack(f"<{len(header) // 8 - 2}q", header[16:])
    if not 0 <= rank <= min(len(shape), _MAX_DIMENSIONS) or any(size < 0 for size in shape[:rank]):
        raise ValueError(f"invalid array header: {rank} dimensions of sizes {shape}")
    shape = shape[:rank]
    little = np.dtype(f"<{dtype}")
    if math.prod(shape) * little.itemsize != len(body):
        raise ValueError(f"wrong data size: an array {dtype}{shape} has {len(body)} bytes of data")
    return np.frombuffer(body, dtype=little).reshape(shape).copy()


def encode(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return arrays as a ``.ten`` file with empty array names. Raises `ValueError` for unsupported dtypes."""
    out: list[bytes] = []
    for array in arrays:
        array = np.asarray(array)
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        if kind not in _DTYPES:
            raise ValueError(f"the .ten layout does not support the dtype {array.dtype}")
        header = struct.pack(f"<8s8sq{array.ndim}q", kind.encode(), b"", array.ndim, *array.shape)
        for body in (header, np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()):
            out += (_MAGIC, struct.pack("<q", len(body)), body, bytes(-len(body) % 64))
    return b"".join(out)
