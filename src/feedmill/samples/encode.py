"""A value as the bytes of a part, from the last suffix of the part's name: the other direction of `decode`.

Bytes are stored as they are, whatever the suffix. Nothing is pickled: objects that only a pickle could hold are
refused. The same value gives the same bytes (gzip without a time, archives with a fixed date); images are the same
where the same release of Pillow writes them.
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
from feedmill.samples import tenbin
from feedmill.samples.images import converted

Encode = Callable[[Any], bytes]
"""value -> bytes. Pure; called from several threads at once."""

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
    """(part name, value) -> bytes. Holds settings only, so it pickles and is safe to call from many threads.

    Args:
        own: suffix -> function, asked before the known ones; for whole part names too (``"detail.json"``).

    Raises (when called):
        DataError: ``not-encodable``, the value is not what the suffix stands for, or no function is known for it.
        MissingExtra: a package that this kind of part needs is not installed.

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
            raise _refused(name, value, f"the function for it gave {type(data).__name__}, not bytes")
        return data

    def _find(self, name: str, value: Any) -> Encode:
        """Return the function for a part, remembered."""
        suffix = name.rpartition(".")[2]
        own = self.own.get(name) or self.own.get(suffix)
        if own is None and suffix == "gz":
            own = partial(self._packed, name[:-3])
        found = own or _BY_SUFFIX.get(suffix)
        if found is None and suffix.lower() in _IMAGES:
            found = partial(encode_image, form=_FORMATS.get(suffix.lower(), suffix.upper()))
        if found is None:
            raise _refused(name, value, f"nothing is known about the suffix {suffix!r}")
        self._known[name] = found
        return found

    def _packed(self, name: str, value: Any) -> bytes:
        return gzip.compress(self(name, value), 6, mtime=0)


def _refused(name: str, value: Any, why: str) -> DataError:
    kind = type(value).__name__
    return DataError(
        f"the part {name!r} cannot be made from a value of type {kind}: {why}",
        kind="not-encodable",
        fix="Give bytes, a value that fits the suffix, or a function for it (encode={'" + name + "': function}).",
    )


def encode_json(value: Any) -> bytes:
    """Compact JSON in UTF-8. NaN and Infinity are written as Python's `json` does; arrays become lists.

    Raises `TypeError` for what JSON cannot hold.
    """
    try:
        data = orjson.dumps(value, option=_JSON)
        if b"u" not in data or b"null" not in data:  # one character is found ten times faster
            return data  # orjson writes NaN as null: where there is none, there was none
    except TypeError:  # large integers, keys that are no text, lone surrogates, ...: or nothing for JSON at all
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"JSON has no {type(value).__name__}")


def encode_image(value: Any, form: str) -> bytes:
    """Return an image in a format of Pillow.

    Args:
        value: a Pillow image; an array ``[H, W]`` or ``[H, W, C]``; a torch tensor ``[H, W]`` or ``[C, H, W]``; as
            uint8 0..255 or float 0..1.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("writing images needs Pillow, which is not installed", "media") from None
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
    """uint8[H, W] or uint8[H, W, C]. Raises `ValueError`, `TypeError`."""
    tensor = type(value).__module__.partition(".")[0] == "torch"
    pixels = np.asarray(value.detach().cpu().numpy() if tensor else value)
    if tensor and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)) or not pixels.size:
        raise ValueError(
            f"an image has the shape [H, W], [H, W, 3] or [H, W, 4] (tensors [C, H, W]), not {pixels.shape}"
        )
    if pixels.dtype.kind == "f":
        if not (pixels.min() >= -0.001 and pixels.max() <= 1.001):
            raise ValueError(f"float images go from 0 to 1, these pixels from {pixels.min():g} to {pixels.max():g}")
        pixels = np.round(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise TypeError(f"pixels are uint8 or float, not {pixels.dtype}")
    return np.ascontiguousarray(pixels)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value.encode()


def _integer(value: Any) -> bytes:
    if isinstance(value, str):
        return str(int(value)).encode()
    return str(value.__index__()).encode()


def _msgpack(value: Any) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(value, enc_hook=_plain)


def _npz(value: Any) -> bytes:
    if not isinstance(value, Mapping):
        raise TypeError("expected a mapping of names to arrays")
    return npz.npz({name: _array(array) for name, array in value.items()})


def _array(value: Any) -> Any:
    """Return an array of numbers; tensors are taken from wherever they are."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _npy(value: Any) -> bytes:
    return npz.npy(_array(value))


def _ten(value: Any) -> bytes:
    return tenbin.encode([value] if isinstance(value, np.ndarray) else list(value))


def _pth(value: Any) -> bytes:
    """Tensors through the safe writer of `feedmill.formats.pth`."""
    try:
        module = import_module("feedmill.formats.pth")
    except ImportError:
        raise ConfigError(
            "this release of Feedmill does not write .pth",
            kind="not-encodable",
            fix="Give the bytes of torch.save, or store the tensor as .npy.",
        ) from None
    data: bytes = module.dump(value)
    return data


def _pickle(value: Any) -> bytes:  # noqa: ARG001
    raise TypeError("pickles are not written: reading one runs code")


_BY_SUFFIX: dict[str, Encode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _integer),
    **dict.fromkeys(("json", "jsn"), encode_json),
    **dict.fromkeys(("mp", "msgpack", "msg"), _msgpack),
    **dict.fromkeys(("ten", "tb"), _ten),
    **dict.fromkeys(("pickle", "pkl", "pyd"), _pickle),
    "npy": _npy,
    "npz": _npz,
    "pth": _pth,
    "pt": _pth,
}
