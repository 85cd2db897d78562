"""Values in CBOR (RFC 8949), decoded to plain Python data.

Integers of any size (tags 2 and 3 too), byte and text strings, lists, maps with any hashable key, floats of 16, 32 and
64 bits, true, false, null and undefined (both None), definite and indefinite lengths. Other tags are read through:
their content is the value.
"""

from __future__ import annotations

import struct
from typing import Any

_MAX_DEPTH = 256
_BREAK = object()
_FLOATS = {25: ("e", 2), 26: ("f", 4), 27: ("d", 8)}
_SIMPLE = {20: False, 21: True, 22: None, 23: None}


def decode(data: bytes) -> Any:
    """The one value that `data` holds. Raises `ValueError` where it is not one whole CBOR value."""
    reader = _Reader(data)
    value = reader.value(0)
    if value is _BREAK:
        raise ValueError("a break outside a collection")
    if reader.offset != len(data):
        raise ValueError(f"{len(data) - reader.offset} bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.offset:
            raise ValueError(f"cut short at byte {len(self.data)}")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def value(self, depth: int) -> Any:
        """The next value; `_BREAK` for the break code."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
        major, info = divmod(self.take(1)[0], 32)
        if major == 7:
            return self._simple(info)
        length = self._argument(info)
        if major in (0, 1, 6):
            if length is None:
                raise ValueError("an indefinite length where none is allowed")
            return self._tagged(length, depth) if major == 6 else (length if major == 0 else -1 - length)
        if major in (2, 3):
            return self._string(major, length, depth)
        return self._list(length, depth) if major == 4 else self._map(length, depth)

    def _argument(self, info: int) -> int | None:
        if info < 24:
            return info
        if info <= 27:
            return int.from_bytes(self.take(1 << (info - 24)), "big")
        if info == 31:
            return None
        raise ValueError(f"a reserved length code {info}")

    def _simple(self, info: int) -> Any:
        if info in _FLOATS:
            code, size = _FLOATS[info]
            return struct.unpack(f">{code}", self.take(size))[0]
        if info == 31:
            return _BREAK
        if info not in _SIMPLE:
            raise ValueError(f"an unassigned simple value {info}")
        return _SIMPLE[info]

    def _tagged(self, tag: int, depth: int) -> Any:
        value = self._item(depth)
        if tag in (2, 3) and isinstance(value, bytes):
            number = int.from_bytes(value, "big")
            return number if tag == 2 else -1 - number
        return value

    def _item(self, depth: int) -> Any:
        value = self.value(depth + 1)
        if value is _BREAK:
            raise ValueError("a break where a value is expected")
        return value

    def _string(self, major: int, length: int | None, depth: int) -> bytes | str:
        if length is not None:
            raw = self.take(length)
            return raw if major == 2 else raw.decode()
        pieces: list[Any] = self._list(None, depth)
        kind = bytes if major == 2 else str
        if not all(isinstance(piece, kind) for piece in pieces):
            raise ValueError("a string made of pieces of another type")
        return b"".join(pieces) if major == 2 else "".join(pieces)

    def _list(self, length: int | None, depth: int) -> list[Any]:
        if length is not None:
            return [self._item(depth) for _ in range(length)]
        items = []
        while (value := self.value(depth + 1)) is not _BREAK:
            items.append(value)
        return items

    def _map(self, length: int | None, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        left = -1 if length is None else length
        while left:
            key = self.value(depth + 1)
            if key is _BREAK:
                if length is None:
                    break
                raise ValueError("a break where a key is expected")
            if isinstance(key, list | dict):
                raise ValueError("a map key that is itself a list or map")
            result[key] = self._item(depth)
            left -= 1
        return result
