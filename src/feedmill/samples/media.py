"""Probe size, format and duration of media files, as `prepare` stores them beside the index.

A `MediaFilter` selects the files: by extension, by header (the first bytes, then the extension), or by glob patterns.
`probe` returns what Energon stores: for images Pillow's format and mode, for audio and video PyAV's durations and
counts. Headers of complete JPEG, PNG, GIF, BMP, TIFF and plain WebP files are parsed without decoding; Pillow reads all
other images and uncertain cases. A truncated file raises a `DataError`, which the caller reports.
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
from feedmill.formats.avfile import reason
from feedmill.formats.energon.media import AMBIGUOUS_EXTENSIONS, AV_EXTENSIONS, IMAGE_EXTENSIONS
from feedmill.samples.avmetadata import av_metadata
from feedmill.samples.imageheader import Header, header_and_orientation, stated_orientation

Kind = Literal["image", "av"]

_KINDS: dict[str, Kind] = {**dict.fromkeys(IMAGE_EXTENSIONS, "image"), **dict.fromkeys(AV_EXTENSIONS, "av")}

HEAD_LENGTH = 256
"""Number of leading bytes that `kind_of_header` reads."""

_ADDRESS = re.compile(r" <[\w.]+ object at 0x[0-9a-fA-F]+>")
"""How Pillow calls a file in memory; it means nothing to the reader of a message."""
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
    (0, b"\0\0\1\xba", "av"),
    (0, b"\0\0\1\xb3", "av"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "av"),
    (0, b"\xff\xfb", "av"),
    (0, b"\xff\xf3", "av"),
    (0, b"\xff\xf2", "av"),
    (0, b"\xff\xf1", "av"),
    (0, b"\xff\xf9", "av"),
)
_NAMES = ("width", "height", "format", "mode")
_BMP_HEADER_LENGTHS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})


@dataclass(frozen=True, slots=True)
class MediaFilter:
    """Filter that decides which files are media.

    Attributes:
        strategy: ``EXTENSION``, ``HEADER`` or ``GLOB``.
        patterns: `fnmatch` patterns for ``GLOB``. ``*`` also matches slashes, a pattern may match the whole name or the
            part after the last slash, and case is ignored.
    """

    strategy: Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, glob: str | None = None, header: bool = False, extension: bool = False) -> Self:
        """Return a filter for the three command-line options, of which exactly one must be given.

        Args:
            glob: Patterns separated by commas.
            header: Select by header.
            extension: Select by extension.
        """
        if sum((glob is not None, header, extension)) != 1:
            raise ConfigError(
                "exactly one media filter is required",
                fix="Use one of --media-by-extension, --media-by-header and --media-by-glob.",
            )
        if glob is None:
            return cls("HEADER" if header else "EXTENSION")
        patterns = tuple(pattern.strip() for pattern in glob.split(",") if pattern.strip())
        if not patterns:
            raise ConfigError(f"{glob!r} contains no pattern", fix="Use patterns such as '*.jpg,*.png'.")
        return cls("GLOB", patterns)

    @classmethod
    def of_row(cls, strategy: str, patterns: str | None) -> Self:
        """Return a filter from its row in the index. Raises `ConfigError` for an unknown strategy."""
        if strategy not in ("EXTENSION", "HEADER", "GLOB"):
            raise ConfigError(f"unknown media filter {strategy!r}", fix="Use EXTENSION, HEADER or GLOB.")
        return cls(strategy, tuple(p for p in (patterns or "").split(",") if p))  # type: ignore[arg-type]

    @property
    def row(self) -> tuple[str, str]:
        """Strategy and patterns as the index stores them."""
        return self.strategy, ",".join(self.patterns)

    def may_hold(self, name: str) -> bool:
        """Return whether a file of this name can be media, without reading its content."""
        if self.strategy == "HEADER":
            return True
        if self.strategy == "EXTENSION":
            return kind_of_name(name) is not None
        return bool(_matcher(self.patterns)(name))

    def part_may_hold(self, part: str) -> bool:
        """Return whether a file whose name ends in ``.part`` can be media; `may_hold` decides by the whole name."""
        return self.strategy != "EXTENSION" or kind_of_name(f"x.{part}") is not None

    def kind(self, name: str, head: bytes) -> Kind | None:
        """Return the kind of media of a file, or None if it is not media.

        Args:
            name: Name of the file.
            head: Its first `HEAD_LENGTH` bytes, or more.
        """
        by_extension = self.strategy == "EXTENSION"
        if not by_extension and not self.may_hold(name):
            return None
        kind = None if by_extension else kind_of_header(head)
        if kind is None:
            extension = _extension(name)  # once: of small images, much of the time is for their names
            kind = _KINDS.get(extension)
            if kind and extension in AMBIGUOUS_EXTENSIONS and not is_transport_stream(head):
                return None
        return kind


def kind_by(filters: Sequence[MediaFilter], name: str, head: bytes) -> Kind | None:
    """Return the kind given by the first filter that selects the file; None if none does."""
    for one in filters:
        kind = one.kind(name, head)
        if kind is not None:
            return kind
    return None


def kind_of_name(name: str) -> Kind | None:
    """Return the kind of media for a file name's extension, ignoring case; None if it is unknown."""
    return _KINDS.get(_extension(name))


def _extension(name: str) -> str:
    dot = name.rfind(".")
    # A name whose only dot is its first character has no extension.
    return name[dot + 1 :].lower() if dot > name.rfind("/") + 1 else ""


def kind_of_header(head: bytes) -> Kind | None:
    """Return the kind of media for a file's first bytes; None if they are unknown."""
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset) and (offset != 8 or head[:4] == b"RIFF"):
            return kind
    # The two letters alone would classify any text that begins with BM as an image.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADER_LENGTHS:
        return "image"
    return "av" if is_transport_stream(head) else None


def is_transport_stream(head: bytes) -> bool:
    """Return whether a file begins with two packets of an MPEG transport stream, as its first 200 bytes show."""
    return any(head[at : at + 1] == head[at + size : at + size + 1] == b"G" for at, size in ((0, 188), (4, 192)))


def probe(name: str, data: bytes | BinaryIO, kind: Kind | None = None) -> tuple[Kind, dict[str, Any]]:
    """Return kind and metadata of one media file.

    Metadata of images are ``width``, ``height`` (pixels), ``format`` and ``mode``. Metadata of audio and video are, as
    far as they apply and in this order, ``video_duration`` (s), ``video_num_frames``, ``video_fps``, ``video_width``,
    ``video_height``, ``audio_duration`` (s), ``audio_channels``, ``audio_sample_rate`` (Hz) and ``audio_num_samples``.

    Args:
        name: Name of the file. It is used in errors, and decides the kind if the header does not.
        data: The whole file. Audio and video may also be a seekable file if `kind` is given.
        kind: Kind from `MediaFilter.kind`; None detects it from header and name.

    Raises:
        DataError: The file is not a media file, or is damaged; `record` is the name.
        MissingExtra: Pillow is not installed, or PyAV (or soundfile) for audio and video.
    """
    kind, metadata, _ = _probed(name, data, kind)
    return kind, metadata


def _probed(name: str, data: bytes | BinaryIO, kind: Kind | None) -> tuple[Kind, dict[str, Any], dict[str, Any]]:
    """Return what `probe` returns, and corrections; see `feedmill.formats.energon.media`."""
    kind = kind or (kind_of_header(data) if isinstance(data, bytes) else None) or kind_of_name(name)
    if kind is None:
        raise _broken(name, "neither the first bytes nor the extension are those of a media file")
    try:
        return kind, *(_image(data) if kind == "image" and isinstance(data, bytes) else av_metadata(data))
    except MissingExtra:
        raise
    except Exception as error:  # each codec raises its own error classes
        head = _head(data)
        if not head:
            raise _broken(name, "the file is empty") from None
        raise _broken(name, f"{_ADDRESS.sub('', reason(error))} (the file begins with {head!r})") from error


def probe_json(name: str, data: bytes | BinaryIO, kind: Kind | None = None) -> tuple[Kind, str, str]:
    """Return kind and metadata like `probe`, with the metadata as the index stores it, and corrections or nothing."""
    if kind == "image" and isinstance(data, bytes) and (found := header_and_orientation(data)) is not None:
        header, orientation = found
        return kind, _image_json(header), _corrections(orientation)
    kind, metadata, corrections = _probed(name, data, kind)
    return kind, metadata_json(metadata), metadata_json(corrections) if corrections else ""


@lru_cache(8)
def _corrections(orientation: int) -> str:
    return "" if orientation == 1 else metadata_json({"orientation": orientation})


def _head(data: bytes | BinaryIO) -> bytes:
    if isinstance(data, bytes):
        return data[:12]
    data.seek(0)
    return data.read(12)


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Return the metadata as the index stores it: compact JSON."""
    return json.dumps(metadata, separators=(",", ":"))


def _image(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return width, height, and Pillow's format and mode; and the orientation, if the image is still to be turned."""
    header, left = header_and_orientation(data) or _pillows(data)
    return dict(zip(_NAMES, header, strict=True)), {} if left == 1 else {"orientation": left}


def _pillows(data: bytes) -> tuple[Header, int]:
    """Return the metadata of a loaded image, and the orientation that it is left with: Pillow turns TIFF files."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("metadata of this image needs Pillow", extra="media") from None
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        header = image.width, image.height, image.format or "UNKNOWN", image.mode
        return header, stated_orientation(image)


@lru_cache(65_536)
def _image_json(header: Header) -> str:
    return metadata_json(dict(zip(_NAMES, header, strict=True)))


@lru_cache(64)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return a predicate: a name, or the part after its last slash, matches a pattern exactly or in lower case."""
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
        fix="Replace or remove the file; other files are not affected.",
    )
