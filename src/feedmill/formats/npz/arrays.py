"""Read and write ``.npz``, NumPy's archive of arrays, several times faster than through `zipfile`.

An ``.npz`` is a zip of ``<name>.npy`` members ("NEP 1", and PKWARE's APPNOTE for zip). Reading scans the zip's
directory and caches parsed array headers. Writing does not compress, and writes the same bytes for the same arrays.
Unusual archives (zip64, encrypted, other compression than deflate, object arrays, newer header versions) are passed to
NumPy, which reads them or raises an error, and so is writing that needs zip64.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from isal import isal_zlib

from feedmill.storage.limits import max_unpacked, too_large

Array = np.ndarray[Any, Any]

_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = b"PK\x05\x06"
_DATE = 0x21  # 1 January 1980, the first date of zip
_ZIP64_FROM = 1 << 31
_PLAIN_FLAGS = 0x0808 | 0x0006  # a data descriptor, UTF-8, and the level of deflate


def read_npz(data: bytes, names: Iterable[str] | None = None, *, writable: bool = True) -> dict[str, Array]:
    """Return arrays by name, in stored order.

    Args:
        names: read only these arrays; missing ones are skipped.
        writable: if False, arrays may be read-only, which saves a copy.

    Raises:
        ValueError, OSError, zipfile.BadZipFile, zlib.error: the data is not npz, is corrupt, or contains objects.
        DataError: the arrays decompress to more than the limit (kind ``too-large``).
    """
    wanted = None if names is None else set(names)
    found = _directory(data)
    limit = max_unpacked(len(data))
    if found is not None:
        out: dict[str, Array] | None = {}
        for name, method, crc, packed, size, local in found:
            if wanted is not None and name not in wanted:
                continue
            limit = _rest(limit, size, len(data))
            array = _array(data, method, crc, packed, size, local, writable)
            if array is None:
                out = None
                break
            assert out is not None
            out[name] = array
        if out is not None:
            return out
    if not data.startswith(b"PK"):
        raise ValueError("it is not a zip archive")
    with npy_errors(), np.load(io.BytesIO(data), allow_pickle=False) as archive:
        limit = max_unpacked(len(data))
        names = [name for name in archive.files if wanted is None or name in wanted]
        for entry in archive.zip.infolist():
            if entry.filename.removesuffix(".npy") in names:
                limit = _rest(limit, entry.file_size, len(data))
        return {name: archive[name] for name in names}


def _rest(limit: int, size: int, stored: int) -> int:
    """Return the bytes that may still be decompressed. Raises `DataError` of kind ``too-large``."""
    if size > limit:
        raise too_large(max_unpacked(stored))
    return limit - size


def _directory(data: bytes) -> list[tuple[str, int, int, int, int, int]] | None:
    """Return (name, method, crc, packed size, size, offset) of every array; None if anything is unusual."""
    end = len(data) - 22
    if end < 0 or data[end : end + 4] != _END:
        return None
    count, size, at = struct.unpack_from("<10xHLL", data, end)
    if count == 0xFFFF or at + size != end:
        return None
    out = []
    for _ in range(count):
        if at + 46 > end:
            return None
        mark, _, _, flags, method, _, _, crc, packed, whole, n, extra, comment, _, _, _, local = _CENTRAL.unpack_from(
            data, at
        )
        name = data[at + 46 : at + 46 + n]
        if (
            mark != b"PK\x01\x02"
            or flags & ~_PLAIN_FLAGS
            or method not in (0, 8)
            or 0xFFFFFFFF in (packed, whole, local)
            or not name.endswith(b".npy")
            or not name.isascii()
        ):
            return None
        out.append((name[:-4].decode(), method, crc, packed, whole, local))
        at += 46 + n + extra + comment
    return out if at == end else None


def _array(data: bytes, method: int, crc: int, packed: int, size: int, local: int, writable: bool) -> Array | None:
    if data[local : local + 4] != b"PK\x03\x04":
        return None
    n, extra = struct.unpack_from("<HH", data, local + 26)
    start = local + 30 + n + extra
    content = data[start : start + packed]
    if method:
        inflate = isal_zlib.decompressobj(-15)
        content = inflate.decompress(content, size + 1)
    if len(content) != size or zlib.crc32(content) != crc or size < 10 or content[:8] != b"\x93NUMPY\x01\x00":
        return None
    begin = 10 + int.from_bytes(content[8:10], "little")
    header = _header(content[:begin])
    if header is None:
        return None
    dtype, shape, fortran, count = header
    if begin + count * dtype.itemsize != size:
        return None
    array = np.frombuffer(bytearray(content) if writable else content, dtype, count, begin)
    return array.reshape(shape, order="F") if fortran else array.reshape(shape)


@lru_cache(maxsize=4096)
def _header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int] | None:
    """Return dtype, shape, whether in Fortran order, and number of elements; None for headers left to NumPy."""
    try:
        shape, fortran, dtype = npy_header(io.BytesIO(header))
    except ValueError:
        return None
    if dtype.hasobject or dtype.itemsize == 0:
        return None
    count = 1
    for length in shape:
        count *= length
    return dtype, shape, fortran, count


@contextmanager
def npy_errors() -> Iterator[None]:
    """Raise `ValueError` for any exception that NumPy raises in the block for ``.npy`` data that is not valid.

    It parses headers as Python's literals, after tokenizing them: a byte more or less is any of these.
    """
    try:
        yield
    except (SyntaxError, TokenError, TypeError, LookupError, EOFError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"it is not an .npy file ({error})") from None
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"it is not an .npy file ({type(error).__name__})") from None


def npy_header(stream: IO[bytes], most: int = 10_000) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an ``.npy`` file, up to the first value.

    Args:
        most: bytes that it may have.

    Returns:
        The shape, whether the values are in Fortran's order, and the dtype.

    Raises:
        ValueError: it is not valid.
    """
    with npy_errors():
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read.get(version, read[2, 0])(stream, max_header_size=most)
        if any(length < 0 for length in shape):
            raise ValueError(f"its shape is {shape}")
        return tuple(shape), fortran, np.dtype(dtype)


def read_npy(data: bytes) -> Array:
    """Return the array of an ``.npy`` file. Raises `ValueError` if it is not valid, or contains objects."""
    with npy_errors():
        array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return array


def npy(array: Any) -> bytes:
    """Return an array as ``.npy``. Raises `ValueError` for arrays of Python objects, which require pickling."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), allow_pickle=False)
    return out.getvalue()


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays by name as ``.npz``. Raises as `npy`."""
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
