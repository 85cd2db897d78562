"""Decode parts by the last suffix of their names.

Suffixes of images, audio and video are case-insensitive, all others are case-sensitive. Data never runs code: pickles
stay bytes unless trusted, and arrays are read without object types. Audio and video become a handle that decodes
on request (`feedmill.samples.avdecoder`), or the options of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, did_you_mean, suggestion
from feedmill.formats.energon.media import AMBIGUOUS_EXTENSIONS, AV_EXTENSIONS
from feedmill.formats.objects import decode_json
from feedmill.formats.orientation import Orientation, check_orientation
from feedmill.formats.sample import Decode
from feedmill.samples.images import (
    IMAGE_SUFFIXES,
    Buffer,
    PictureRoom,
    check_spec,
    decode_image,
    decode_images,
    form_pictures,
)

ENERGON_AV_SUFFIXES = frozenset({"avi", "flac", "flv", "mkv", "mov", "mp3", "mp4", "wav", "webm"})
AV_SPECS = ("AVDecoder", "numpy", "torch", "pyav", "bytes")
PICKLE_SUFFIXES = frozenset({"pickle", "pkl", "pyd"})


class Decoder:
    """Decoder of parts: (part name, bytes) -> value. It holds only settings, so it pickles and is thread-safe.

    Args:
        image: the image spec, see `feedmill.samples.images`; ``rgb8`` gives ``uint8[H, W, 3]``.
        av: result of audio and video: ``AVDecoder``, a handle that decodes clips on request (torch tensors if the
            image spec is one of torch, numpy arrays otherwise); ``numpy`` or ``torch``, an `AVData` of everything;
            ``pyav``, an open container of PyAV; ``bytes``.
        video_decode_audio: whether ``numpy`` and ``torch`` include the audio of a video.
        guess_content: whether to detect images, audio and video by content, and by name only if that fails.
        trust: whether ``.pyd``, ``.pickle`` and ``.pkl`` parts are unpickled, which runs code that the data names.
        tensors: what ``.pth`` parts become, ``numpy`` or ``torch``, see `feedmill.formats.pth`; trust changes nothing.
        orientation: ``apply`` turns images and frames upright, as EXIF, XMP or the display matrix of a video says;
            ``stored`` gives pixels as they are stored. Boxes and masks refer to one or the other.

    Raises (when called):
        DataError: the bytes do not match the suffix.
        MissingExtra: a package for this kind of part is not installed.

    >>> Decoder()("json", b'{"caption": "a cat"}')
    {'caption': 'a cat'}
    """

    __slots__ = ("av", "guess_content", "image", "orientation", "tensors", "trust", "video_decode_audio")

    av_suffixes: ClassVar[frozenset[str]] = AV_EXTENSIONS

    def __init__(
        self,
        image: str = "rgb8",
        av: str = "AVDecoder",
        trust: bool = False,
        video_decode_audio: bool = False,
        guess_content: bool = False,
        tensors: str = "numpy",
        orientation: Orientation = "apply",
    ) -> None:
        if av not in AV_SPECS:
            raise ConfigError(
                f"audio and video cannot be decoded as {av!r}{did_you_mean(av, list(AV_SPECS))}",
                fix=f"Use one of {', '.join(AV_SPECS)}.",
                kind="bad-option",
            )
        self.image = check_spec(image)
        self.av = av
        self.trust = trust
        self.video_decode_audio = video_decode_audio
        self.guess_content = guess_content
        if tensors not in ("numpy", "torch"):
            raise ConfigError(f"unknown tensor type {tensors!r}", fix="Use 'numpy' or 'torch'.")
        self.tensors = tensors
        check_orientation(orientation)
        self.orientation = orientation

    def _settings(self) -> tuple[Any, ...]:
        media = self.image, self.av, self.video_decode_audio, self.guess_content, self.orientation
        return type(self), *media, self.trust, self.tensors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decoder) and self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash(self._settings())

    def __repr__(self) -> str:
        audio = f", video_decode_audio={self.video_decode_audio}" if self.av in ("numpy", "torch") else ""
        guess = ", guess_content=True" if self.guess_content else ""
        more = "" if self.tensors == "numpy" else f", tensors={self.tensors!r}"
        more += "" if self.orientation == "apply" else f", orientation={self.orientation!r}"
        return f"{type(self).__name__}(image={self.image!r}, av={self.av!r}, trust={self.trust}{audio}{guess}{more})"

    def __call__(self, name: str, data: bytes) -> Any:
        if name.startswith("__"):
            return data
        suffix = name.rpartition(".")[2]
        if suffix == "pth":
            return _pth()(data, to=self.tensors)
        try:
            if suffix == "gz":
                from feedmill.storage.codec import gunzip

                data = gunzip(data)
                suffix = name[:-3].rpartition(".")[2]
            return self._value(name, suffix, data)
        except FeedmillError:
            raise
        except Exception as error:  # codecs raise OSError, SyntaxError, struct.error, MemoryError, ... for bad bytes
            raise _undecodable(name, suffix, data, error) from error

    def together(self, name: str, parts: Sequence[Buffer]) -> Any:
        """Return one part of several samples as a stacked array or tensor.

        Images of one size are decoded directly into it. Returns None for other values and for invalid images: decoding
        parts one by one gives a more specific error.
        """
        suffix = name.rpartition(".")[2].lower()
        if name.startswith("__") or suffix not in IMAGE_SUFFIXES or suffix in _BY_SUFFIX or not self._is_ours:
            return None
        return decode_images(parts, self.image, orient=self.orientation == "apply")

    def pictures(self, pixels: npt.NDArray[np.uint8]) -> Any:
        """Return pictures that are pixels already, uint8[..., H, W, 3], in the form of the image spec."""
        return form_pictures(pixels, self.image)

    def room(self, count: tuple[int, int], shape: tuple[int, ...]) -> PictureRoom | None:
        """Return room for pictures of one shape, ``[*count, ...]``; None for image specs that are not stacked."""
        return PictureRoom.of(count, shape, self.image)

    def each(self, name: str, parts: Sequence[Buffer]) -> list[Any]:
        """Return the values of one part of several samples, equal to separate calls. Raises as a call does."""
        plain = self._is_ours and not self.guess_content and not name.startswith("__")
        decode = _BY_SUFFIX.get(name.rpartition(".")[2]) if plain else None
        if decode is not None:
            with suppress(Exception):  # a separate call gives a more specific error
                return [decode(bytes(part)) for part in parts]
        return [self(name, bytes(part)) for part in parts]

    @property
    def _is_ours(self) -> bool:
        """Return whether no subclass overrides ``__call__``."""
        return type(self).__call__ is Decoder.__call__

    def _value(self, name: str, suffix: str, data: bytes) -> Any:
        kind = _kind_of_header(data) if self.guess_content else None
        if kind is None:
            decode = _BY_SUFFIX.get(suffix)
            if decode is not None:
                return decode(data)
            if suffix == "pth":  # a .pth.gz
                return _pth()(data, to=self.tensors)
            lowered = suffix.lower()
            if lowered in IMAGE_SUFFIXES:
                kind = "image"
            elif lowered in self.av_suffixes and (lowered not in AMBIGUOUS_EXTENSIONS or _is_transport_stream(data)):
                kind = "av"
        if kind == "image":
            return decode_image(data, self.image, orient=self.orientation == "apply")
        if kind == "av":
            return self._av(name, data)
        if self.trust and suffix in PICKLE_SUFFIXES:
            return _unpickle(data)
        return data

    def _av(self, name: str, data: bytes) -> Any:
        if self.av == "bytes":
            return data
        if self.av == "pyav":
            from feedmill.formats.avfile import open_av

            return open_av(data)
        from feedmill.samples.avdecoder import AVDecoder

        in_torch = self.av == "torch" or (self.av == "AVDecoder" and self.image.startswith("torch"))
        decoder = AVDecoder(data, name=name, arrays="torch" if in_torch else "numpy", orientation=self.orientation)
        return decoder if self.av == "AVDecoder" else decoder.get_frames(self.video_decode_audio)


class SampleDecoder(Decoder):
    """`Decoder` with Energon's option names and defaults: tensors, lazy audio and video.

    Args:
        image_decode: the image spec.
        av_decode: ``AVDecoder``, ``torch`` or ``pyav``; also ``numpy`` and ``bytes``.
        video_decode_audio: whether ``torch`` includes the audio of a video.
        guess_content: whether to detect images, audio and video by content.
        trust: whether pickles are unpickled, which runs code that the data names.
        orientation: as in `Decoder`; by default pixels are given as they are stored, as Energon gives them.
    """

    __slots__ = ()

    av_suffixes = ENERGON_AV_SUFFIXES

    def __init__(
        self,
        *,
        image_decode: str = "torchrgb",
        av_decode: str = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        trust: bool = False,
        orientation: Orientation = "stored",
    ) -> None:
        options: dict[str, Any] = {"tensors": "torch", "orientation": orientation}
        super().__init__(image_decode, av_decode, trust, video_decode_audio, guess_content, **options)

    def _av(self, name: str, data: bytes) -> Any:
        if self.av != "AVDecoder":
            return super()._av(name, data)
        from feedmill.samples.avdecoder import TorchAVDecoder

        return TorchAVDecoder(data, name=name, orientation=self.orientation)  # independent of the type of images

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "decode" in cls.__dict__ and "__call__" not in cls.__dict__:
            cls.__call__ = _call_decode  # type: ignore[method-assign, assignment]

    def config(self) -> dict[str, Any]:
        """Return the options under Energon's names, as plain data."""
        return {
            "image_decode": self.image,
            "av_decode": self.av,
            "video_decode_audio": self.video_decode_audio,
            "guess_content": self.guess_content,
        }

    def decode(self, fname: str, raw: bytes) -> Any:
        """Return the value of one file by its name. A subclass may override this method or ``__call__``."""
        return Decoder.__call__(self, fname, raw)


def _call_decode(decoder: SampleDecoder, name: str, data: bytes) -> Any:
    return decoder.decode(name, data)


def _kind_of_header(data: bytes) -> str | None:
    from feedmill.samples.media import kind_of_header

    return kind_of_header(data)


def _is_transport_stream(data: bytes) -> bool:
    from feedmill.samples.media import is_transport_stream

    return is_transport_stream(data)


def _undecodable(name: str, suffix: str, data: bytes, error: BaseException) -> DataError:
    if not data:
        what = f"the part {name!r} is empty"
    else:
        from feedmill.formats.avfile import reason

        why = f"{reason(error)} (it begins with {data[:16]!r})"
        what = f"the part {name!r} cannot be decoded as {suffix or 'bytes'}: {why}"
    return DataError(
        what,
        kind="bad-part",
        fix="Fix or drop this sample, or, if the suffix is wrong, read the bytes with sample.raw(...).",
    )


def _msgpack(data: bytes) -> Any:
    import msgspec

    return msgspec.msgpack.decode(data)


def _tenbin(data: bytes) -> Any:
    from feedmill.samples.tenbin import decode

    return decode(data)


def _npy(data: bytes) -> Any:
    from feedmill.formats.npz.arrays import read_npy

    return read_npy(data)


def _npz(data: bytes) -> Any:
    from feedmill.formats.npz.arrays import read_npz

    return read_npz(data)


def _cbor(data: bytes) -> Any:
    from feedmill.samples.cbor import decode

    return decode(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _unpickle(data: bytes) -> Any:
    import pickle

    return pickle.loads(data)  # noqa: S301 - only where the user said trust=True  # nosec B301


_BY_SUFFIX: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), decode_json),
    **dict.fromkeys(("mp", "msgpack", "msg"), _msgpack),
    **dict.fromkeys(("ten", "tb"), _tenbin),
    "npy": _npy,
    "npz": _npz,
    "cbor": _cbor,
}


@cache
def codec_of(name: str) -> str:
    """Return what decodes a part of this name, "" if nothing does: equal bytes with one codec are one value.

    >>> codec_of("a.jpg") == codec_of("png"), codec_of("caption.txt"), codec_of("raw"), codec_of("x.json.gz")
    (True, 'txt', '', 'json.gz')
    """
    suffix = "" if name.startswith("__") else name.rpartition(".")[2]
    if suffix == "gz":
        return codec_of(name[:-3]) + ".gz"
    if suffix in _BY_SUFFIX:
        return next(first for first, decode in _BY_SUFFIX.items() if decode is _BY_SUFFIX[suffix])
    lowered = suffix.lower()
    known = ((lowered in IMAGE_SUFFIXES, "image"), (lowered in AV_EXTENSIONS, "av"), (suffix == "pth", "pth"))
    return next((codec for found, codec in known if found), "pickle" if suffix in PICKLE_SUFFIXES else "")


@cache
def _pth() -> Callable[..., Any]:
    """Return the loader of ``.pth`` parts, imported on first use: the import takes longer than that of this module."""
    from feedmill.formats import pth

    return pth.load


def decoder_of(given: Decode | Mapping[str, Any] | str | None, *, trust: bool = False) -> Decode | None:
    """Return a decoder of what `feedmill.open` and recipes take: a decoder, an image spec, ``bytes``, or options.

    Raises:
        ConfigError: it is none of these, or an option is unknown.
    """
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        return Decoder(image=given, trust=trust)
    if isinstance(given, Mapping):
        known = [name for name in signature(Decoder).parameters if name != "trust"]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigError(
                f"a decoder has no option {unknown[0]!r}",
                kind="bad-option",
                fix=suggestion(str(unknown[0]), known, f"It has {', '.join(known)}."),
            )
        return Decoder(trust=trust, **given)
    if not callable(given):
        raise ConfigError(
            f"a {type(given).__name__} is not a decoder",
            kind="bad-option",
            fix="Give a feedmill.samples.Decoder, a function (name, bytes) -> value, an image spec, or None for bytes.",
        )
    return given
