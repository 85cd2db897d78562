"""Values of samples as a user reads them: what `feedmill.open` gives, and the digest by which a proof compares them.

Bytes that a decoder would decode stay bytes and know their decoder (`Coded`): equal bytes with one decoder are one
value, so no image is decoded to be compared. All other values are compared as they are: their type, and their content.
"""

from __future__ import annotations

import base64
import datetime
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.rows import Lazy, RowSample, magic_suffix, to_bytes
from feedmill.formats.sample import Sample
from feedmill.samples.decode import Decoder, codec_of

_DECODED = Decoder()
_MEDIA = ("image", "av", "pickle", "pth")
"""Decoders whose values are not made to compare them."""


class Coded(bytes):
    """Bytes that are decoded when they are read, such as an image, with the suffix that selects their decoder."""

    suffix: str

    def __new__(cls, data: bytes, suffix: str) -> Coded:
        self = super().__new__(cls, data)
        self.suffix = suffix
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Coded, (bytes(self), self.suffix)


def tagged(name: str, data: bytes) -> bytes:
    """Return the bytes of a part, as `Coded` if they would be decoded: the decoder with which conversions read."""
    return Coded(data, name.rpartition(".")[2]) if codec_of(name) else data


def read(dataset: Dataset) -> Dataset:
    """Return a dataset whose samples have the values that `feedmill.open` gives, with bytes as `tagged`."""
    return dataset.opened_as(decode=tagged)


def values_of(sample: Sample) -> dict[str, Any]:
    """Return the values of a sample of such a dataset. A frame of a video is its image, encoded."""
    if not isinstance(sample, RowSample):
        return {name: sample[name] for name in sample}
    rows = sample.row
    out = {}
    for name in sample:
        lazy = rows.get(name)
        if isinstance(lazy, Lazy):
            data = lazy.packed()
            out[name] = Coded(data, magic_suffix(data) or "png")
        else:
            out[name] = sample[name]
    return out


def simple(value: Any) -> Any:
    """Return a value as JSON data: dates and times in ISO 8601, decimals as text, bytes in base64."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): simple(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [simple(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Lazy):
        return simple(value.packed())
    if isinstance(value, np.ndarray | np.generic):
        return simple(value.tolist())
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def decoded(name: str, value: Any) -> Any:
    """Return the value of a `Coded` part; media, and bytes that cannot be decoded, as they are."""
    if not isinstance(value, Coded) or codec_of(name) in _MEDIA:
        return value
    try:
        return _DECODED(name, bytes(value))
    except FeedmillError:
        return value


def plain_bytes(value: Any) -> bytes:
    """Return a value as bytes, by the rules of `feedmill.formats.rows`."""
    return bytes(value) if type(value) is Coded else to_bytes(value)


def digest(key: str, values: Mapping[str, Any], *, loose: bool = False) -> bytes:
    """Return the xxh3-128 digest of a key and named values, independent of their order. 16 bytes.

    A null is the same as no value.

    Args:
        loose: compare as the columns of JSON rows do, which also keep no difference between null and no value within
            objects, and between lists and arrays.
    """
    out = [key.encode("utf-8", "surrogatepass")]
    _add_items({name: value for name, value in values.items() if value is not None}, out, loose)
    return bytes(xxhash.xxh3_128_digest(b"".join(out)))


def _add_items(values: Mapping[Any, Any], out: list[bytes], loose: bool) -> None:
    names = sorted(name for name, value in values.items() if not (loose and value is None))
    out.append(b"{%d" % len(names))
    for name in names:
        _add(name, out, loose)
        _add(values[name], out, loose)


def _add(value: Any, out: list[bytes], loose: bool) -> None:
    """Append a value to what is hashed, with its type and length, so that no two values are the same bytes."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        out += (b"s%d:" % len(data), data)
    elif isinstance(value, bytes):
        codec = codec_of(value.suffix).encode() if isinstance(value, Coded) else b""
        out += (b"b%s:%d:" % (codec, len(value)), value)
    elif isinstance(value, bool) or value is None:
        out.append(b"n" if value is None else b"t" if value else b"f")
    elif isinstance(value, int):
        out.append(b"i%d;" % value)
    elif isinstance(value, float):
        out.append(b"d" + (b"NaN-----" if value != value else struct.pack("<d", value)))
    elif isinstance(value, Mapping):
        _add_items(value, out, loose)
    elif isinstance(value, list | tuple):
        out.append(b"%s%d" % (b"[" if isinstance(value, list) or loose else b"(", len(value)))
        for item in value:
            _add(item, out, loose)
    elif isinstance(value, np.generic):
        _add(value.item(), out, loose)
    elif isinstance(value, np.ndarray):
        _add_array(value, out, loose)
    else:
        text = _text_of(value)
        out.append(f"o{type(value).__name__}:{len(text)}:{text}".encode())


def _add_array(value: Any, out: list[bytes], loose: bool) -> None:
    """Append an array. The order of its bytes is no part of its value."""
    if loose:
        _add(value.tolist(), out, loose)
        return
    ordered = value.astype(value.dtype.newbyteorder("<"), copy=False)
    data = ordered.tobytes()
    out += (f"a{np.lib.format.dtype_to_descr(ordered.dtype)}{ordered.shape}{len(data)}:".encode(), data)


def _text_of(value: Any) -> str:
    """Return a text that is the same for equal values of one type."""
    if isinstance(value, Decimal) and value.is_finite():
        sign, digits, exponent = value.as_tuple()
        text = "".join(map(str, digits)).lstrip("0")
        kept = text.rstrip("0")
        return f"{sign if kept else 0}{kept}e{int(exponent) + len(text) - len(kept) if kept else 0}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, UUID | datetime.timedelta | Decimal) else repr(value)
