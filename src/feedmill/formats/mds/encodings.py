"""The encodings of MDS columns: how the bytes of a column are decoded.

bytes, str, json                    bytes; text and JSON in UTF-8
int                                 int64
uint8 ... int64, float16 ... 64     one number, little endian
str_int, str_float, str_decimal     a number as text: int, float, `decimal.Decimal`
ndarray                             [type: 1 byte] [axes << 2 | log2 of the bytes of an axis: 1] [axes] values
ndarray:TYPE, ndarray:TYPE:2,3      the same without the type; without type and axes
pil                                 u32 width, height, length of the mode; the mode; pixels: an array [H, W, C]
jpeg, png                           the encoded image, decoded as images are
list[jpeg], list[png], list[pil]    u32 unused, number, sizes; then the images
jpegarray, jpeg_array               u32 number, sizes; then the images
pkl                                 a pickle: bytes, unless the user trusts the data
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.rows import PICKLED

_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_AXES = ("<u1", "<u2", "<u4", "<u8")
_MODES = {
    "L": ("u1", 1), "P": ("u1", 1), "LA": ("u1", 2), "PA": ("u1", 2), "RGB": ("u1", 3), "YCbCr": ("u1", 3),
    "LAB": ("u1", 3), "HSV": ("u1", 3), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I": ("<i4", 1),
    "F": ("<f4", 1), "I;16": ("<u2", 1), "I;16L": ("<u2", 1), "I;16B": (">u2", 1), "I;16N": ("u2", 1),
    "La": ("u1", 2), "RGBa": ("u1", 4),
}  # fmt: skip


class Column(NamedTuple):
    """One column: its fixed size in bytes or None, its decoder, and the suffix by which bytes values are decoded."""

    name: str
    encoding: str
    size: int | None
    decode: Callable[[bytes], Any]
    suffix: str = ""


def column(name: Any, encoding: Any, size: Any, where: str) -> Column:
    """Return the column of this name, encoding and fixed size.

    Raises:
        ConfigError: the encoding is unknown.
        ValueError: the size does not match the encoding.
    """
    if not isinstance(name, str) or not isinstance(encoding, str):
        raise ValueError("names and encodings must be text")
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"the size {size!r} of {name!r}")
    kind, _, rest = encoding.partition(":")
    decode, suffix = _reader(kind, rest)
    if decode is None:
        raise ConfigError(
            f"the column {name!r} has the unknown encoding {encoding!r}",
            file=where,
            record=name,
            kind="unsupported",
            fix="Write the dataset with one of MDS's own encodings.",
        )
    return Column(name, encoding, size, decode, suffix)


def _reader(kind: str, rest: str) -> tuple[Callable[[bytes], Any] | None, str]:
    if kind == "ndarray":
        return _ndarray_reader(rest), ""
    if kind in _DTYPES.values():
        return partial(_decode_number, np.dtype(kind).newbyteorder("<")), ""
    if kind in ("list[jpeg]", "list[png]"):
        return partial(_pieces, 4), "jpg" if "jpeg" in kind else "png"
    if kind == "list[pil]":
        return _pil_list, ""
    return _READERS.get(kind, (None, ""))


def _same(data: bytes) -> bytes:
    return data


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _decode_number(dtype: np.dtype[Any], data: bytes) -> Any:
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are not a value of {dtype}")
    return np.frombuffer(data, dtype)[0].item()


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except InvalidOperation:
        raise ValueError(f"{data[:40]!r} is not a number") from None


def _ndarray_reader(rest: str) -> Callable[[bytes], Any] | None:
    dtype, _, shape = rest.partition(":")
    if dtype and dtype not in _DTYPES.values():
        return None
    try:
        axes = tuple(map(int, shape.split(","))) if shape else None
    except ValueError:
        return None
    if axes is not None and min(axes) < 0:
        return None
    return partial(_ndarray, dtype or None, axes)


def _ndarray(dtype: str | None, shape: tuple[int, ...] | None, data: bytes) -> npt.NDArray[Any]:
    at = 0
    if dtype is None:
        if data[0] not in _DTYPES:
            raise ValueError(f"{data[0]} is not an array type")
        dtype, at = _DTYPES[data[0]], 1
    if shape is None:
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, _AXES[data[at] & 3], axes, at + 1).tolist())
        at += 1 + axes * width
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), -1, at).reshape(shape).copy()


def _pil(data: bytes) -> npt.NDArray[Any]:
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii", "replace")
    if mode == "1":
        bits = np.frombuffer(data, np.uint8, -1, 12 + length).reshape(height, -(-width // 8))
        return np.unpackbits(bits, axis=1, count=width).astype(bool)
    if mode not in _MODES:
        raise ValueError(f"unknown image mode {mode!r}")
    dtype, channels = _MODES[mode]
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(data, dtype, -1, 12 + length).reshape(shape).copy()


def _pieces(skip: int, data: bytes) -> list[bytes]:
    (count,) = np.frombuffer(data, "<u4", 1, skip).tolist()
    sizes = np.frombuffer(data, "<u4", count, skip + 4).astype(np.int64)
    ends = skip + 4 + 4 * count + np.cumsum(sizes)
    if count and ends[-1] != len(data):
        raise ValueError(f"the sizes of {count} images do not add up to their bytes")
    return [data[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def _pil_list(data: bytes) -> list[Any]:
    return [_pil(piece) for piece in _pieces(4, data)]


_READERS: dict[str, tuple[Callable[[bytes], Any], str]] = {
    "bytes": (_same, ""),
    "str": (_text, ""),
    "int": (partial(_decode_number, np.dtype("<i8")), ""),
    "json": (json.loads, ""),
    "str_int": (int, ""),
    "str_float": (float, ""),
    "str_decimal": (_decimal, ""),
    "pil": (_pil, ""),
    "jpeg": (_same, "jpg"),
    "png": (_same, "png"),
    "jpegarray": (partial(_pieces, 0), "jpg"),
    "jpeg_array": (partial(_pieces, 0), "jpg"),
    PICKLED: (_same, PICKLED),
}
