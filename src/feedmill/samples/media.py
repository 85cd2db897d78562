"""Size, format and duration of media files, as `prepare` stores them beside the index.

Which files count is decided by a `MediaFilter`: by extension, by header (the first bytes, then the extension), or by
glob patterns. `probe` gives what Energon stores: for images Pillow's format and mode, for audio and video PyAV's
durations and counts. Headers of JPEG, PNG, GIF, BMP, TIFF and plain WebP are parsed here, without decoding, where the
file's end is in place; all else, and every doubt, goes to Pillow. A file that is not whole is a `DataError`, for the
caller to report.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Any, BinaryIO, Literal, Self

from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.samples.avfile import reason
from feedmill.samples.avmetadata import av_metadata
from feedmill.samples.imageheader import Header, image_header

Kind = Literal["image", "av"]

IMAGE_EXTENSIONS = frozenset(("bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp"))
AV_EXTENSIONS = frozenset(("aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm"))

_KINDS: dict[str, Kind] = {**dict.fromkeys(IMAGE_EXTENSIONS, "image"), **dict.fromkeys(AV_EXTENSIONS, "av")}

HEAD_LENGTH = 64
"""How many first bytes `kind_of_header` looks at."""

_MAGIC: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\xff\xd8\xff", "image"),
    (0, b"\x89PNG\r\n\x1a\n", "image"),
    (0, b"GIF87a", "image"),
    (0, b"GIF89a", "image"),
    (8, b"WEBP", "image"),
    (0, b"II*\0", "image"),
    (0, b"MM\0*", "image"),
    (0, b"\0\0\1\0", "image"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image"),
    (0, b"\xff\x4f\xff\x51", "image"),
    (4, b"ftypavif", "image"),
    (8, b"WAVE", "av"),
    (8, b"AVI ", "av"),
    (4, b"ftyp", "av"),
    (4, b"moov", "av"),
    (0, b"\x1a\x45\xdf\xa3", "av"),
    (0, b"OggS", "av"),
    (0, b"fLaC", "av"),
    (0, b"ID3", "av"),
    (0, b"FLV\1", "av"),
    (0, b"\xff\xfb", "av"),
    (0, b"\xff\xf3", "av"),
    (0, b"\xff\xf2", "av"),
    (0, b"\xff\xf1", "av"),
    (0, b"\xff\xf9", "av"),
)
_BMP_HEADER_LENGTHS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})


@dataclass(frozen=True, slots=True)
class MediaFilter:
    """Which files are media.

    Attributes:
        strategy: ``EXTENSION``, ``HEADER`` or ``GLOB``.
        patterns: for ``GLOB``, `fnmatch` patterns; ``*`` matches slashes too, the part behind the last
            slash is tried as well, and case does not matter.
    """

    strategy: Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, glob: str | None = None, header: bool = False, extension: bool = False) -> Self:
        """From the command line's three options, of which exactly one must be given; `glob` is a comma list."""
        if sum((glob is not None, header, extension)) != 1:
            raise ConfigError(
                "expected exactly one way to find media files",
                fix="Give one of --media-by-extension, --media-by-header and --media-by-glob.",
            )
        if glob is None:
            return cls("HEADER" if header else "EXTENSION")
        patterns = tuple(pattern.strip() for pattern in glob.split(",") if pattern.strip())
        if not patterns:
            raise ConfigError(f"no pattern in {glob!r}", fix="Give patterns such as '*.jpg,*.png'.")
        return cls("GLOB", patterns)

    @classmethod
    def of_row(cls, strategy: str, patterns: str | None) -> Self:
        """From strategy and patterns as the index stores them. Raises `ConfigError` for an unknown strategy."""
        if strategy not in ("EXTENSION", "HEADER", "GLOB"):
            raise ConfigError(f"there is no media filter {strategy!r}", fix="Use EXTENSION, HEADER or GLOB.")
        return cls(strategy, tuple(p for p in (patterns or "").split(",") if p))  # type: ignore[arg-type]

    @property
    def row(self) -> tuple[str, str]:
        """Strategy and patterns as the index stores them."""
        return self.strategy, ",".join(self.patterns)

    def may_hold(self, name: str) -> bool:
        """Return whether a file of this name can be media, before its content is read."""
        if self.strategy == "HEADER":
            return True
        if self.strategy == "EXTENSION":
            return kind_of_name(name) is not None
        return bool(_matcher(self.patterns)(name))

    def part_may_hold(self, part: str) -> bool:
        """Whether a file whose name ends in a dot and `part` can be media; `may_hold` says it of the whole name."""
        return self.strategy != "EXTENSION" or kind_of_name(f"x.{part}") is not None

    def kind(self, name: str, head: bytes) -> Kind | None:
        """Return what kind of media a file is, or None; `head` is its first `HEAD_LENGTH` bytes, or more."""
        if self.strategy == "EXTENSION":
            return kind_of_name(name)
        return (kind_of_header(head) or kind_of_name(name)) if self.may_hold(name) else None


def kind_by(filters: Sequence[MediaFilter], name: str, head: bytes) -> Kind | None:
    """Return the kind that the first filter gives which takes the file; None if none does."""
    for one in filters:
        kind = one.kind(name, head)
        if kind is not None:
            return kind
    return None


def kind_of_name(name: str) -> Kind | None:
    """Return the kind that a file name's extension tells, in any case."""
    dot = name.rfind(".")
    # What begins with its only dot has no extension.
    return _KINDS.get(name[dot + 1 :].lower()) if dot > name.rfind("/") + 1 else None


def kind_of_header(head: bytes) -> Kind | None:
    """Return the kind that a file's first bytes tell."""
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset) and (offset != 8 or head[:4] == b"RIFF"):
            return kind
    # Two letters alone would take any text that begins with BM for a picture.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADER_LENGTHS:
        return "image"
    return None


def probe(name: str, data: bytes | BinaryIO, kind: Kind | None = None) -> tuple[Kind, dict[str, Any]]:
    """Kind and metadata of one media file.

    Images have ``width``, ``height`` (pixels), ``format``, ``mode``. Audio and video have those of ``video_duration``
    (s), ``video_num_frames``, ``video_fps``, ``video_width``, ``video_height``, ``audio_duration`` (s),
    ``audio_channels``, ``audio_sample_rate`` (Hz), ``audio_num_samples`` that apply, in this order.

    Args:
        name: the file's name, for the error and, where the header tells nothing, the kind.
        data: the whole file; of audio and video it may be a seekable file too, where `kind` is given.
        kind: from `MediaFilter.kind`; found from header and name if None.

    Raises:
        DataError: the file is no media file, or is damaged; `record` is the name.
        MissingExtra: Pillow, or for audio and video PyAV (or soundfile), is not installed.
    """
    kind = kind or (kind_of_header(data) if isinstance(data, bytes) else None) or kind_of_name(name)
    if kind is None:
        raise _broken(name, "neither its first bytes nor its extension are those of a media file")
    try:
        return kind, image_metadata(data) if kind == "image" and isinstance(data, bytes) else av_metadata(data)
    except MissingExtra:
        raise
    except Exception as error:  # every codec has errors of its own
        head = _head(data)
        if not head:
            raise _broken(name, "the file is empty") from None
        raise _broken(name, f"{reason(error)} (it begins with {head!r})") from error


def probe_json(name: str, data: bytes | BinaryIO, kind: Kind | None = None) -> tuple[Kind, str]:
    """As `probe`, with the metadata as the index stores it."""
    if kind == "image" and isinstance(data, bytes) and (header := image_header(data)) is not None:
        return kind, _image_json(header)
    kind, metadata = probe(name, data, kind)
    return kind, metadata_json(metadata)


def _head(data: bytes | BinaryIO) -> bytes:
    if isinstance(data, bytes):
        return data[:12]
    data.seek(0)
    return data.read(12)


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Return the metadata as the index stores it: compact JSON."""
    return json.dumps(metadata, separators=(",", ":"))


def image_metadata(data: bytes) -> dict[str, Any]:
    """Width, height, and Pillow's format and mode."""
    return dict(zip(("width", "height", "format", "mode"), image_header(data) or _pillows(data), strict=True))


def _pillows(data: bytes) -> Header:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("metadata of this image needs Pillow", extra="media") from None
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image.width, image.height, image.format or "UNKNOWN", image.mode


@lru_cache(65_536)
def _image_json(header: Header) -> str:
    return metadata_json(dict(zip(("width", "height", "format", "mode"), header, strict=True)))


@lru_cache(64)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return whether a name, or what follows its last slash, matches one of the patterns as it is or in lower case."""
    exact = re.compile("|".join(map(translate, patterns))).match
    lowered = re.compile("|".join(translate(pattern.lower()) for pattern in patterns)).match

    def matches(name: str) -> object:
        return exact(name) or lowered(name.lower()) or ("/" in name and matches(name.rpartition("/")[2]))

    return matches


def _broken(name: str, what: str) -> DataError:
    return DataError(
        f"no media metadata: {what}",
        record=name,
        kind="bad-media",
        fix="Replace the file, or leave it out; the others are not affected.",
    )
