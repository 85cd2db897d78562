"""Size, format and duration of media files, as `prepare` stores them beside the index.

Which files count is decided by a `MediaFilter`: by extension, by header (the first bytes, then the extension), or by
glob patterns. `probe` gives what Energon stores: for images Pillow's format and mode, for audio and video PyAV's
durations and counts. Headers of JPEG, PNG and plain WebP are parsed here, without decoding, where the file's end is
in place; all else, and every doubt, goes to Pillow. A file that is not whole is a `DataError`, for the caller to
report.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.samples.imageheader import image_header

Kind = Literal["image", "av"]

IMAGE_EXTENSIONS = frozenset(("bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp"))
AV_EXTENSIONS = frozenset(("aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm"))

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
        patterns: for ``GLOB``, `fnmatch` patterns; ``*`` matches slashes too, and case does not matter.
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

    @property
    def row(self) -> tuple[str, str]:
        """Strategy and patterns as the index stores them."""
        return self.strategy, ",".join(self.patterns)

    def may_hold(self, name: str) -> bool:
        """Whether a file of this name can be media, before its content is read."""
        if self.strategy == "HEADER":
            return True
        if self.strategy == "EXTENSION":
            return kind_of_name(name) is not None
        lowered = name.lower()
        return any(fnmatchcase(name, pattern) or fnmatchcase(lowered, pattern.lower()) for pattern in self.patterns)

    def kind(self, name: str, head: bytes) -> Kind | None:
        """What kind of media a file is, or None; `head` is its first `HEAD_LENGTH` bytes, or more."""
        if not self.may_hold(name):
            return None
        return kind_of_name(name) if self.strategy == "EXTENSION" else kind_of_header(head) or kind_of_name(name)


def kind_of_name(name: str) -> Kind | None:
    """The kind that a file name's extension tells, in any case."""
    suffix = PurePosixPath(name).suffix[1:].lower()
    return "image" if suffix in IMAGE_EXTENSIONS else "av" if suffix in AV_EXTENSIONS else None


def kind_of_header(head: bytes) -> Kind | None:
    """The kind that a file's first bytes tell."""
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset) and (offset != 8 or head[:4] == b"RIFF"):
            return kind
    # Two letters alone would take any text that begins with BM for a picture.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADER_LENGTHS:
        return "image"
    return None


def probe(name: str, data: bytes, kind: Kind | None = None) -> tuple[Kind, dict[str, Any]]:
    """Kind and metadata of one media file.

    Images have ``width``, ``height`` (pixels), ``format``, ``mode``. Audio and video have those of ``video_duration``
    (s), ``video_num_frames``, ``video_fps``, ``video_width``, ``video_height``, ``audio_duration`` (s),
    ``audio_channels``, ``audio_sample_rate`` (Hz), ``audio_num_samples`` that apply, in this order.

    Args:
        name: the file's name, for the error and, where the header tells nothing, the kind.
        data: the whole file.
        kind: from `MediaFilter.kind`; found from header and name if None.

    Raises:
        DataError: the file is no media file, or is damaged; `record` is the name.
        MissingExtra: Pillow, or for audio and video PyAV (or soundfile), is not installed.
    """
    kind = kind or kind_of_header(data) or kind_of_name(name)
    if kind is None:
        raise _broken(name, "neither its first bytes nor its extension are those of a media file")
    try:
        return kind, image_metadata(data) if kind == "image" else av_metadata(data)
    except MissingExtra:
        raise
    except Exception as error:  # every codec has errors of its own
        if not data:
            raise _broken(name, "the file is empty") from None
        raise _broken(name, f"{error or type(error).__name__} (it begins with {data[:12]!r})") from error


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """The metadata as the index stores it: compact JSON."""
    return json.dumps(metadata, separators=(",", ":"))


def image_metadata(data: bytes) -> dict[str, Any]:
    """Width, height, and Pillow's format and mode."""
    found = image_header(data)
    if found is None:
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtra("metadata of this image needs Pillow", extra="media") from None
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            found = (image.width, image.height, image.format or "UNKNOWN", image.mode)
    return dict(zip(("width", "height", "format", "mode"), found, strict=True))


def av_metadata(data: bytes) -> dict[str, Any]:
    """Durations, counts and sizes of the first video and the first audio stream.

    Counting audio samples means decoding them. Where PyAV is not installed, soundfile reads audio.
    """
    try:
        import av
    except ImportError:
        return _soundfile_metadata(data)
    with av.open(io.BytesIO(data)) as container:
        found = _video(container) if container.streams.video else {}
        if container.streams.audio:
            try:
                container.seek(0)
                audio = _audio(container)
            except av.error.FFmpegError:
                # Seeking fails on short files of some formats (FLAC): begin anew. Elsewhere the seek stays, because
                # after it some containers leave out the encoder's padding, which the stored counts then do too.
                with av.open(io.BytesIO(data)) as again:
                    audio = _audio(again)
            found |= audio
    if not found:
        raise ValueError("it has neither a video nor an audio stream")
    return {key: value for key, value in found.items() if value is not None}


def _video(container: Any) -> dict[str, Any]:
    stream = container.streams.video[0]
    frames, end = 0, None
    for packet in container.demux(stream):
        if packet.pts is not None:
            frames += 1
            end = packet.pts + packet.duration if packet.duration is not None else None
    seconds = _seconds(end if stream.duration is None else stream.duration, stream)
    fps = float(stream.average_rate) if stream.average_rate is not None else frames / seconds if seconds else None
    container.seek(0)
    shown = next(container.decode(video=0), stream)
    return {
        "video_duration": seconds,
        "video_num_frames": frames,
        "video_fps": fps,
        "video_width": shown.width,
        "video_height": shown.height,
    }


def _audio(container: Any) -> dict[str, Any]:
    stream = container.streams.audio[0]
    samples, end = 0, None
    for frame in container.decode(audio=0):
        samples += frame.samples
        if frame.pts is not None:
            end = frame.pts + frame.duration if frame.duration is not None else None
    return {
        "audio_duration": _seconds(stream.duration if end is None else end, stream),
        "audio_channels": stream.channels,
        "audio_sample_rate": stream.sample_rate,
        "audio_num_samples": samples,
    }


def _seconds(ticks: int | None, stream: Any) -> float | None:
    if ticks is None or stream.time_base is None:
        return None
    return float((ticks - (stream.start_time or 0)) * float(stream.time_base))


def _soundfile_metadata(data: bytes) -> dict[str, Any]:
    try:
        import soundfile
    except (ImportError, OSError):
        raise MissingExtra("metadata of audio and video needs PyAV", extra="media") from None
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        # The header alone would not tell that the file is cut short.
        samples = sum(len(block) for block in file.blocks(1 << 16))
        if samples != file.frames:
            raise ValueError(f"cut short: {samples} of {file.frames} samples")
        return {
            "audio_duration": samples * (1.0 / file.samplerate),
            "audio_channels": file.channels,
            "audio_sample_rate": file.samplerate,
            "audio_num_samples": samples,
        }


def _broken(name: str, what: str) -> DataError:
    return DataError(
        f"no media metadata: {what}",
        record=name,
        kind="bad-media",
        fix="Replace the file, or leave it out; the others are not affected.",
    )
