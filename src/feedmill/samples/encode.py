"""Encode values as the bytes of a part, chosen by the last suffix of the part's name: the inverse of `decode`.

Bytes are stored unchanged, whatever the suffix. Nothing is pickled: objects that only a pickle could hold raise an
error. The same value always gives the same bytes (gzip without a timestamp, archives with a fixed date); for images,
this requires the same release of Pillow.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra
from feedmill.formats.npz import arrays as npz
from feedmill.samples import cbor, tenbin
from feedmill.samples.images import converted

Encode = Callable[[Any], bytes]
"""Function value -> bytes. It must be pure, since several threads call it at once."""

_JSON = (
    orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF", "tiff": "TIFF"}
_IMAGES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "ppm", "pgm", "pbm", "tif", "tiff", "jp2", "avif")
JPEG_QUALITY = 95
_BYTES = frozenset((bytes, bytearray, memoryview))


class Encoder:
    """Encoder of parts: (part name, value) -> bytes. It holds only settings, so it pickles and is thread-safe.

    Args:
        own: Suffix, or whole part name (``"detail.json"``) -> function. These override the built-in functions.

    Raises (when called):
        DataError: ``no-conversion``, the value does not fit the suffix, or the suffix has no encoding function.
        MissingExtra: A package that this kind of part needs is not installed.

    >>> Encoder()("json", {"caption": "a cat"}), Encoder()("cls", 7), Encoder()("jpg", b"as it is")
    (b'{"caption":"a cat"}', b'7', b'as it is')
    """

    __slots__ = ("_known", "own")

    def __init__(self, own: Mapping[str, Encode] | None = None) -> None:
        self.own = dict(own or {})
        self._known: dict[str, Encode] = {}

    def __reduce__(self) -> tuple[type[Encoder], tuple[dict[str, Encode]]]:
        return Encoder, (self.own,)

    def __repr__(self) -> str:
        return f"Encoder({', '.join(sorted(self.own))})"

    def __call__(self, name: str, value: Any) -> bytes:
        kind = type(value)
        if kind is bytes:
            return value  # type: ignore[no-any-return]
        if kind in _BYTES:
            return bytes(value)
        try:
            encode = self._known.get(name) or self._find(name, value)
            data = encode(value)
        except FeedmillError:
            raise
        except Exception as error:  # codecs raise TypeError, ValueError, OSError, OverflowError, ... for bad values
            raise _refused(name, value, f"{error}" or type(error).__name__) from error
        if type(data) is not bytes:
            raise _refused(name, value, f"its encoding function returned {type(data).__name__}, not bytes")
        return data

    def _find(self, name: str, value: Any) -> Encode:
        """Return the function for a part, and cache it."""
        suffix = name.rpartition(".")[2]
        own = self.own.get(name) or self.own.get(suffix)
        if own is None and suffix == "gz":
            own = partial(self._packed, name[:-3])
        found = own or _BY_SUFFIX.get(suffix)
        if found is None and suffix.lower() in _IMAGES:
            found = partial(encode_image, form=_FORMATS.get(suffix.lower(), suffix.upper()))
        if found is None:
            raise _refused(name, value, f"the suffix {suffix!r} has no encoding function")
        self._known[name] = found
        return found

    def _packed(self, name: str, value: Any) -> bytes:
        return gzip.compress(self(name, value), 6, mtime=0)


def _refused(name: str, value: Any, why: str) -> DataError:
    kind = type(value).__name__
    return DataError(
        f"cannot encode a value of type {kind} as the part {name!r}: {why}",
        kind="no-conversion",
        fix="Use bytes, a value that fits the suffix, or an encoding function (encode={'" + name + "': function}).",
    )


def encode_json(value: Any) -> bytes:
    """Return a value as compact JSON in UTF-8.

    NaN and Infinity are written as Python's `json` writes them; arrays become lists.

    Raises `TypeError` for values that JSON cannot represent.
    """
    try:
        data = orjson.dumps(value, option=_JSON)
        if b"u" not in data or b"null" not in data:  # searching for one byte first is ten times faster
            return data  # orjson writes NaN as null: without a null there was no NaN
    except TypeError:  # json below also takes large integers, keys that are not text, lone surrogates, ...
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_as_json).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_as_json).encode()


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "as_json"):
        return value.as_json()
    raise TypeError(f"JSON has no {type(value).__name__}")


def encode_image(value: Any, form: str) -> bytes:
    """Return an encoded image.

    Args:
        value: A Pillow image, an array ``[H, W]`` or ``[H, W, C]``, or a torch tensor ``[H, W]`` or ``[C, H, W]``.
            Arrays and tensors are uint8 in 0..255 or float in 0..1.
        form: Name of a Pillow format.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("encoding images needs Pillow, which is not installed", "media") from None
    image = value if isinstance(value, Image.Image) else Image.fromarray(_pixels(value))
    out = io.BytesIO()
    if form == "JPEG":
        converted(image, "RGB" if image.mode not in ("L", "RGB", "CMYK") else image.mode).save(
            out, form, quality=JPEG_QUALITY
        )
    else:
        image.save(out, "PPM" if form in ("PGM", "PBM") else "JPEG2000" if form == "JP2" else form)
    return out.getvalue()


def _pixels(value: Any) -> np.ndarray[Any, Any]:
    """Return pixels as uint8[H, W] or uint8[H, W, C]. Raises `ValueError` or `TypeError`."""
    tensor = type(value).__module__.partition(".")[0] == "torch"
    pixels = np.asarray(value.detach().cpu().numpy() if tensor else value)
    if tensor and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)) or not pixels.size:
        raise ValueError(
            f"invalid image shape {pixels.shape}: expected [H, W], [H, W, 3] or [H, W, 4] (tensors: [C, H, W])"
        )
    if pixels.dtype.kind == "f":
        if not (pixels.min() >= -0.001 and pixels.max() <= 1.001):
            raise ValueError(
                f"float pixels must be between 0 and 1: found {pixels.min():g} to {pixels.max():g}",
            )
        pixels = np.round(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise TypeError(f"pixels must be uint8 or float: found {pixels.dtype}")
    return np.ascontiguousarray(pixels)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("the value must be text")
    return value.encode()


def _integer(value: Any) -> bytes:
    if isinstance(value, str):
        return str(int(value)).encode()
    return str(value.__index__()).encode()


def _msgpack(value: Any) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(value, enc_hook=_as_json)


def _npz(value: Any) -> bytes:
    if not isinstance(value, Mapping):
        raise TypeError("the value must be a mapping of names to arrays")
    return npz.npz({name: _array(array) for name, array in value.items()})


def _array(value: Any) -> Any:
    """Return an array; tensors are detached and copied to the CPU."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _npy(value: Any) -> bytes:
    return npz.npy(_array(value))


def _ten(value: Any) -> bytes:
    return tenbin.encode([value] if isinstance(value, np.ndarray) else list(value))


def _pth(value: Any) -> bytes:
    """Encode tensors with the safe writer of `feedmill.formats.pth`."""
    try:
        module = import_module("feedmill.formats.pth")
    except ImportError:
        raise ConfigError(
            "this release of Feedmill does not write .pth",
            kind="no-conversion",
            fix="Pass the bytes of torch.save, or store the tensor as .npy.",
        ) from None
    data: bytes = module.dump(value)
    return data


def _pickle(value: Any) -> bytes:  # noqa: ARG001
    raise TypeError("pickles are not supported, because reading a pickle runs code")


_BY_SUFFIX: dict[str, Encode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _integer),
    **dict.fromkeys(("json", "jsn"), encode_json),
    **dict.fromkeys(("mp", "msgpack", "msg"), _msgpack),
    **dict.fromkeys(("ten", "tb"), _ten),
    **dict.fromkeys(("pickle", "pkl", "pyd"), _pickle),
    "cbor": cbor.encode,
    "npy": _npy,
    "npz": _npz,
    "pth": _pth,
    "pt": _pth,
}
