"""What a part's bytes mean, told by the last suffix of its name.

Suffixes of images are matched in any case, all others as written. Nothing in the data may run code: pickles stay bytes
unless trusted, arrays are read without object types. Audio and video stay bytes.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.samples import cbor, tenbin
from feedmill.samples.images import IMAGE_SUFFIXES, check_spec, decode_image

AV_SUFFIXES = frozenset({"avi", "flac", "flv", "mkv", "mov", "mp3", "mp4", "wav", "webm"})
PICKLE_SUFFIXES = frozenset({"pickle", "pkl", "pyd"})


class Decoder:
    """(part name, bytes) -> value. Holds settings only, so it pickles and is safe to call from many threads.

    Args:
        image: the image spec, see `feedmill.samples.images`; ``rgb8`` gives ``uint8[H, W, 3]``.
        av: what audio and video become; ``bytes`` leaves them undecoded.
        trust: whether ``.pyd``, ``.pickle`` and ``.pkl`` parts are unpickled, which runs code that the data names.

    Raises (when called):
        DataError: the bytes are not what the suffix promises.
        MissingExtra: a package that this kind of part needs is not installed.

    >>> Decoder()("json", b'{"caption": "a cat"}')
    {'caption': 'a cat'}
    """

    __slots__ = ("av", "image", "trust")

    def __init__(self, image: str = "rgb8", av: str = "bytes", trust: bool = False) -> None:
        if av != "bytes":
            raise ConfigError(f"audio and video cannot be decoded as {av!r}", fix="Use av='bytes'.")
        self.image = check_spec(image)
        self.av = av
        self.trust = trust

    def __repr__(self) -> str:
        return f"Decoder(image={self.image!r}, av={self.av!r}, trust={self.trust})"

    def __call__(self, name: str, data: bytes) -> Any:
        if name.startswith("__"):
            return data
        suffix = name.rpartition(".")[2]
        try:
            if suffix == "gz":
                data = gzip.decompress(data)
                suffix = name[:-3].rpartition(".")[2]
            return self._value(suffix, data)
        except FeedmillError:
            raise
        except Exception as error:  # codecs raise OSError, SyntaxError, struct.error, MemoryError, ... for bad bytes
            raise _undecodable(name, suffix, data, error) from error

    def _value(self, suffix: str, data: bytes) -> Any:
        decode = _BY_SUFFIX.get(suffix)
        if decode is not None:
            return decode(data)
        if suffix.lower() in IMAGE_SUFFIXES:
            return decode_image(data, self.image)
        if self.trust and suffix in PICKLE_SUFFIXES:
            return _unpickle(data)
        return data


def _undecodable(name: str, suffix: str, data: bytes, error: BaseException) -> DataError:
    if not data:
        what = f"the part {name!r} is empty"
    else:
        reason = str(error) or type(error).__name__
        what = f"the part {name!r} cannot be decoded as {suffix or 'bytes'}: {reason} (it begins with {data[:16]!r})"
    return DataError(
        what,
        kind="bad-part",
        fix="Mend or drop this sample, or, if the suffix is wrong, read the bytes with sample.raw(...).",
    )


def decode_json(data: bytes) -> Any:
    """JSON as Python's `json` module reads it, several times faster.

    msgspec reads all that the standard allows, with integers of any size exact; the rest that `json` takes (NaN,
    Infinity, lone surrogates, UTF-16) is left to `json` itself. Raises `ValueError` or `RecursionError`.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return json.loads(data)


def _msgpack(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _npy(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def _npz(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _unpickle(data: bytes) -> Any:
    import pickle

    return pickle.loads(data)  # noqa: S301 - only where the user said trust=True


_BY_SUFFIX: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), decode_json),
    **dict.fromkeys(("mp", "msgpack", "msg"), _msgpack),
    **dict.fromkeys(("ten", "tb"), tenbin.decode),
    "npy": _npy,
    "npz": _npz,
    "cbor": cbor.decode,
}
