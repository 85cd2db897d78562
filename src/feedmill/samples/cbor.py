"""Decode CBOR (RFC 8949) into plain Python data with `cbor2`, and encode plain data.

Supported are integers of any size (including tags 2 and 3), byte and text strings, lists, maps with any hashable key,
floats, true, false, null and undefined (both become None). Other tags are ignored and their content is the value, so
data cannot create dates, patterns or addresses, and no value can refer to itself.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from feedmill.errors import MissingExtra

_MAX_DEPTH = 256
_KNOWN = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""Tags that cbor2 interprets by default."""
_PLAIN = (int, str, bytes, float)


def decode(data: bytes) -> Any:
    """Return the value that `data` holds.

    Raises:
        ValueError: `data` is not exactly one CBOR value.
        MissingExtra: `cbor2` is not installed.
    """
    cbor2 = _cbor2()
    stream = io.BytesIO(data)
    decoders = dict.fromkeys(_KNOWN, _content) | {2: _bignum, 3: _negative}
    decoder = cbor2.CBORDecoder(
        stream, tag_hook=lambda tag, *_: tag.value, semantic_decoders=decoders, max_depth=_MAX_DEPTH, read_size=1
    )
    try:
        value = decoder.decode()
    except cbor2.CBORDecodeEOF:
        raise ValueError(f"the CBOR value is truncated at byte {len(data)}") from None
    except cbor2.CBORError as error:
        raise ValueError(str(error)) from error
    if stream.tell() != len(data):
        raise ValueError(f"{len(data) - stream.tell()} bytes follow the CBOR value: expected none")
    return _unfrozen(value)


def encode(value: Any) -> bytes:
    """Return plain data as CBOR: what `decode` returns as it is, and arrays as lists.

    Raises:
        TypeError: The value is or holds something else, such as a date, which would be read as text or a number.
        ValueError: The value is nested too deeply.
        MissingExtra: `cbor2` is not installed.
    """
    data: bytes = _cbor2().dumps(_packable(value, 0))
    return data


def _packable(value: Any, depth: int) -> Any:
    if depth == _MAX_DEPTH:
        raise ValueError(f"the value is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_packable(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {_packable(key, depth + 1): _packable(item, depth + 1) for key, item in value.items()}
    raise TypeError(f"CBOR parts hold plain data, and no {type(value).__name__}")


@cache
def _cbor2() -> Any:
    try:
        import cbor2
    except ImportError:
        raise MissingExtra(".cbor parts need cbor2", extra="cbor") from None
    return cbor2


def _content(content: Any, _immutable: bool) -> Any:
    return content


def _bignum(content: Any, _immutable: bool) -> Any:
    return int.from_bytes(content, "big") if isinstance(content, bytes) else content


def _negative(content: Any, _immutable: bool) -> Any:
    return -1 - int.from_bytes(content, "big") if isinstance(content, bytes) else content


def _unfrozen(value: Any) -> Any:
    """Convert the immutable values that cbor2 makes inside tags to lists and dicts, and undefined to None."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_unfrozen(item) for item in value]
    if isinstance(value, _cbor2().frozendict | dict):
        return {_key(key): _unfrozen(item) for key, item in value.items()}
    if value is _cbor2().undefined:
        return None
    raise ValueError(f"unassigned CBOR simple value {value}")


def _key(key: Any) -> Any:
    if isinstance(key, tuple | _cbor2().frozendict):
        raise ValueError("a CBOR map key is itself a list or map, which Feedmill does not support")
    return _unfrozen(key)
