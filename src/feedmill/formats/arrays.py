"""Named arrays in one file, which can be mapped into memory.

An array file is ``FMARRAY1``, the length of the header (uint64), the header as JSON
(``{name: [dtype, shape, offset], ..., "": size of the file}``), and the arrays, little-endian, each at a multiple of 64
bytes. Rejected: types other than ``<u8``, ``<i8``, ``<u4``, ``<i4``, ``<u2`` and ``|u1``, arrays outside the file, and
a wrong file size.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.storage import Store

MAGIC = b"FMARRAY1"
STREAMED_AT = 1024
"""Offset of the array that `stream_arrays` writes in pieces."""
_ALIGN = 64
_MOST_HEADER = 1 << 20
_DTYPES = ("<u8", "<i8", "<u4", "<i4", "<u2", "|u1")

Arrays = dict[str, npt.NDArray[Any]]


def write_arrays(store: Store, path: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an array file. It is published when it is complete."""
    with store.write(path) as out:
        pack_arrays(out, arrays)


def pack_arrays(out: BinaryIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the bytes of an array file."""
    whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    out.write(_head({name: (values.dtype.str, list(values.shape)) for name, values in whole.items()}))
    for values in whole.values():
        out.write(values.reshape(-1).view(np.uint8).data if values.size else b"")
        out.write(bytes(_aligned(values.nbytes) - values.nbytes))


def stream_arrays(
    out: BinaryIO,
    name: str,
    pieces: Iterable[npt.NDArray[Any]],
    rest: Callable[[], Mapping[str, npt.NDArray[Any]]] = dict,
    *,
    dtype: str = "<i8",
) -> None:
    """Write the bytes of an array file of which one array is too large for memory.

    Args:
        out: file that can seek, empty.
        name: name of that array, which lies at `STREAMED_AT`.
        pieces: its pieces, int[n] each.
        rest: returns the other arrays, at most ten. It is called when the file ends with the last piece.
        dtype: as which it is stored.
    """
    out.seek(STREAMED_AT)
    count = 0
    for piece in pieces:
        out.write(np.ascontiguousarray(piece, dtype).data)
        count += len(piece)
    header: dict[str, Any] = {name: [dtype, [count], STREAMED_AT]}
    out.flush()
    at = _aligned(STREAMED_AT + np.dtype(dtype).itemsize * count)
    for key, values in rest().items():
        out.seek(at)
        header[key] = [values.dtype.str, list(values.shape), at]
        out.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data if values.size else b"")
        at = _aligned(at + values.nbytes)
    out.truncate(at)
    header[""] = at
    out.seek(0)
    encoded = orjson.dumps(header).ljust(STREAMED_AT - len(MAGIC) - 8, b" ")
    out.write(MAGIC + struct.pack("<Q", len(encoded)) + encoded)


def read_arrays(store: Store, path: str) -> Arrays:
    """Return the arrays of a file as read-only memory maps.

    Raises:
        NotFound: the file does not exist.
        ValueError: it is corrupt.
    """
    from feedmill.storage.cache.copies import WORK, held_copy

    with held_copy(store, path, kind=WORK) as held, open(held.path, "rb") as f:
        if os.fstat(f.fileno()).st_size < len(MAGIC) + 8:
            raise ValueError("the file is truncated")
        return unpack_arrays(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))


def release(arrays: Arrays) -> None:
    """Take the pages of memory maps from the resident memory of the process. They stay in the cache of the system."""
    for values in arrays.values():
        held: Any = values
        while isinstance(held, np.ndarray | memoryview):
            held = held.base if isinstance(held, np.ndarray) else held.obj
        if isinstance(held, mmap.mmap):
            held.madvise(mmap.MADV_DONTNEED)
            return


def _head(kinds: Mapping[str, tuple[str, list[int]]]) -> bytes:
    """Return the bytes before the arrays, for the type and shape of each."""
    reserved = sum(len(name) + 80 for name in kinds) + 40
    header: dict[str, Any] = {}
    start = at = _aligned(len(MAGIC) + 8 + reserved)
    for name, (dtype, shape) in kinds.items():
        header[name] = [dtype, shape, at]
        at = _aligned(at + prod(shape) * np.dtype(dtype).itemsize)
    header[""] = at
    encoded = orjson.dumps(header).ljust(start - len(MAGIC) - 8, b" ")
    return MAGIC + struct.pack("<Q", len(encoded)) + encoded


def unpack_arrays(data: Any) -> Arrays:
    """Return the arrays of a file's bytes, which they share. Raises `ValueError` if these are corrupt.

    Args:
        data: what has the interface of buffers. The arrays can be written to if it can.
    """
    view = memoryview(data)
    if len(view) < len(MAGIC) + 8:
        raise ValueError("the file is truncated")
    length = struct.unpack("<Q", view[8:16])[0]
    if view[:8] != MAGIC or length > _MOST_HEADER or 16 + length > len(view):
        raise ValueError("it is not an array file")
    try:
        header = orjson.loads(view[16 : 16 + length])
        if header.pop("") != len(view):
            raise ValueError("its size does not match its header")
        return {name: _array(data, len(view), *where) for name, where in header.items()}
    except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError) as error:
        raise ValueError(f"its header is invalid: {error}") from None


def _array(data: Any, size: int, dtype: str, shape: list[int], offset: int) -> npt.NDArray[Any]:
    if dtype not in _DTYPES or not shape or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"its header is invalid: {dtype} {shape}")
    count = 1
    for n in shape:
        count *= n
    if type(offset) is not int or offset % _ALIGN or offset + count * np.dtype(dtype).itemsize > size:
        raise ValueError(f"its header is invalid: an array at {offset}")
    return np.frombuffer(data, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN
