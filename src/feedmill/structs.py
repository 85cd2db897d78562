"""msgspec's reading into types, made ready by one thread at a time.

The first use of a class is not safe in several threads: verbs on a busy machine ended by SIGSEGV now and then (msgspec
0.22). So all that reads into types asks here, and `tests/test_rooms.py` looks for what does not.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_Bytes = bytes | bytearray | memoryview

_making = threading.RLock()
# A process that is forked while another thread makes something ready would wait for ever, or have a half of it.
os.register_at_fork(before=_making.acquire, after_in_child=_making.release, after_in_parent=_making.release)


def decoder_of(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """Return a decoder of JSON for a type, for callers that keep it."""
    with _making:
        return msgspec.json.Decoder(kind)


_decoder: Any = cache(decoder_of)


def _unpacker_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _making:
        return msgspec.msgpack.Decoder(kind)


_unpacker: Any = cache(_unpacker_of)


def decode_as(data: _Bytes | str, kind: type[_T]) -> _T:
    """Parse JSON into a type of a module, which is never forgotten. Raises `msgspec.DecodeError`."""
    found: _T = _decoder(kind).decode(data)
    return found


def unpack_as(data: _Bytes, kind: type[_T]) -> _T:
    """Parse MessagePack into a type of a module. Raises `msgspec.DecodeError`."""
    found: _T = _unpacker(kind).decode(data)
    return found


def convert_as(value: Any, kind: type[_T]) -> _T:
    """Make a value of a type of a module from plain objects. Raises `msgspec.ValidationError`."""
    _unpacker(kind)  # what the conversion then finds with the classes is complete
    return msgspec.convert(value, kind)
