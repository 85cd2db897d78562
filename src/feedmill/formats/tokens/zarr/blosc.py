"""The container of Blosc 1, read with the decompressors that Feedmill has anyway.

Layout (little-endian)::

    u8 version (1 or 2), u8 version of the compressor's format, u8 flags, u8 bytes per number
    u32 bytes unpacked, u32 bytes per block, u32 bytes of the container
    i32 x blocks: where each block begins
    a block: its streams, each i32 size, then the data; a stream of its unpacked size is stored as it is

Flags: 1 bytes shuffled, 2 stored as it is, 4 bits shuffled, 16 one stream per block, from bit 5 the compressor. Blocks
that are not divided by flag 16, except a shorter last one, have a stream for each byte of a number.

>>> unpack(bytes([2, 1, 2, 4]) + b"".join(n.to_bytes(4, "little") for n in (5, 5, 21)) + b"hello", 5).tobytes()
b'hello'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.columns import load_pyarrow
from feedmill.storage.codec import inflate, unzstd

Bytes = npt.NDArray[np.uint8]
_HEADER = 16
_SHUFFLED, _STORED, _BITS, _WHOLE = 1, 2, 4, 16
_NAMES = ("blosclz", "lz4", "snappy", "zlib", "zstd")
_MOST_STREAMS, _LEAST = 16, 128
"""Blocks have several streams up to this number of bytes per number, and from this number of numbers."""


def unpack(data: memoryview | bytes, size: int) -> Bytes:
    """Return the unpacked bytes, uint8[size].

    Args:
        data: the container.
        size: its unpacked size; any other is an error, found before memory is allocated.

    Raises:
        ValueError: the container is corrupt or truncated, or has an unsupported compressor.
        MissingExtra: LZ4 needs pyarrow.
    """
    view = memoryview(data)
    if len(view) < _HEADER:
        raise ValueError(f"its {len(view)} bytes are not a Blosc container")
    version, _, flags, width = view[:4]
    unpacked, block, packed = np.frombuffer(view[4:_HEADER], "<u4").tolist()
    if version not in (1, 2):
        raise ValueError(f"expected version 1 or 2 of Blosc's container, found {version}")
    if unpacked != size or packed != len(view):
        raise ValueError(
            f"expected {len(view):,} bytes that unpack to {size:,}, its header has {packed:,} and {unpacked:,}"
        )
    if flags & _STORED:
        if packed != _HEADER + size:
            raise ValueError(f"{packed - _HEADER:,} bytes are stored for {size:,}")
        return np.frombuffer(view[_HEADER:], np.uint8)
    if size and not (block and width):
        raise ValueError("its header has blocks or numbers of 0 bytes")
    count = -(-size // block) if size else 0
    if _HEADER + 4 * count > packed:
        raise ValueError(f"it is too short for {count:,} blocks")
    out = np.empty(size, np.uint8)
    decode = _decoder(flags >> 5)
    for number, at in enumerate(np.frombuffer(view, "<i4", count, _HEADER).tolist()):
        here = out[number * block : (number + 1) * block]
        split = not flags & _WHOLE and len(here) == block and width <= _MOST_STREAMS and block // width >= _LEAST
        streams = _streams(view, at, len(here), width if split else 1, decode)
        if flags & _SHUFFLED and width > 1:
            _unshuffle(streams, width, here)
        elif flags & _BITS and len(here) // width % 8 == 0:
            _unshuffle_bits(streams, width, here)
        else:
            here[:] = streams
    return out


def _streams(view: memoryview, at: int, size: int, count: int, decode: Callable[[memoryview, int], Any]) -> Bytes:
    """Return the unpacked streams of one block, uint8[size]."""
    each, left = divmod(size, count)
    if left:
        raise ValueError(f"a block of {size:,} bytes has {count} streams")
    parts = []
    for _ in range(count):
        if not _HEADER <= at <= len(view) - 4:
            raise ValueError("a block begins outside the container")
        stored = int.from_bytes(view[at : at + 4], "little", signed=True)
        at += 4
        if not 0 < stored <= len(view) - at:
            raise ValueError(f"a stream has {stored:,} bytes, {len(view) - at:,} are left")
        stream = view[at : at + stored]
        at += stored
        parts.append(np.frombuffer(stream if stored == each else decode(stream, each), np.uint8))
    return parts[0] if count == 1 else np.concatenate(parts)


def _unshuffle(data: Bytes, width: int, out: Bytes) -> None:
    """Undo the order of bytes: first those that begin the numbers, then the second bytes, and so on."""
    whole = len(data) // width * width
    numbers, streams = out[:whole].reshape(-1, width), data[:whole].reshape(width, -1)
    for place in range(width):  # a third of the time of one assignment of the transposed array
        numbers[:, place] = streams[place]
    out[whole:] = data[whole:]


def _unshuffle_bits(data: Bytes, width: int, out: Bytes) -> None:
    """Undo the order of bits: the first bits of the first bytes of all numbers, then the second bits, and so on."""
    whole = len(data) // width * width
    bits = np.unpackbits(data[:whole].reshape(width, 8, -1), axis=2, bitorder="little")
    out[:whole].reshape(-1, width)[...] = np.packbits(bits, axis=1, bitorder="little")[:, 0].T
    out[whole:] = data[whole:]


@cache
def _decoder(code: int) -> Callable[[memoryview, int], Any]:
    name = _NAMES[code] if code < len(_NAMES) else str(code)
    if name not in ("lz4", "zlib", "zstd"):
        raise ValueError(f"the compressor {name} is unsupported, expected lz4, zlib or zstd")
    return {"zlib": inflate, "zstd": unzstd}.get(name) or lz4_decoder()


@cache
def lz4_decoder() -> Callable[[memoryview, int], Any]:
    """Return the decoder of a block of LZ4: of its bytes and unpacked size. Raises `MissingExtra` without pyarrow."""
    pyarrow = load_pyarrow()
    codec = pyarrow.Codec("lz4_raw")

    def unpack_lz4(stream: memoryview, size: int) -> Any:
        packed = pyarrow.py_buffer(stream)
        try:
            found = codec.decompress(packed, decompressed_size=size)
        except OSError as error:
            raise ValueError(f"the LZ4 data are corrupt ({error})") from None
        # The codec leaves the rest as it is where a stream ends early: it must not fit into a byte less.
        try:
            codec.decompress(packed, decompressed_size=size - 1)
        except OSError:
            return found
        raise ValueError(f"the LZ4 data end before {size:,} bytes")

    return unpack_lz4
