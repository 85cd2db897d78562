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
                fix="Give one of: by extension, by header, or by glob.",
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

    Counting audio samples means decoding them. Where PyAV is absent or cannot read the file, soundfile reads audio.
    """
    try:
        import av
    except ImportError:
        return _soundfile_metadata(data, MissingExtra("metadata of audio and video needs PyAV", extra="media"))
    try:
        with av.open(io.BytesIO(data)) as container:
            has_video, has_audio = bool(container.streams.video), bool(container.streams.audio)
        # Each part opens the container anew: seeking back is what fails on short files of some formats.
        found = (_video(av, data) if has_video else {}) | (_audio(av, data) if has_audio else {})
    except (av.error.FFmpegError, ValueError) as error:
        return _soundfile_metadata(data, error)
    if not found:
        raise ValueError("it has neither a video nor an audio stream")
    return {key: value for key, value in found.items() if value is not None}


def _video(av: Any, data: bytes) -> dict[str, Any]:
    frames, end = 0, None
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        duration, start, base, rate = stream.duration, stream.start_time, stream.time_base, stream.average_rate
        size = (stream.width, stream.height)
        for packet in container.demux(stream):
            if packet.pts is not None:
                frames += 1
                end = packet.pts + packet.duration if packet.duration is not None else end
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(video=0):
            size = (frame.width, frame.height)
            break
    seconds = _seconds(end if duration is None else duration, start, base)
    fps = float(rate) if rate is not None else frames / seconds if seconds else None
    return {
        "video_duration": seconds,
        "video_num_frames": frames,
        "video_fps": fps,
        "video_width": size[0],
        "video_height": size[1],
    }


def _audio(av: Any, data: bytes) -> dict[str, Any]:
    samples, end = 0, None
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        duration, start, base = stream.duration, stream.start_time, stream.time_base
        channels, rate = stream.channels, stream.sample_rate
        for frame in container.decode(stream):
            samples += frame.samples
            if frame.pts is not None and frame.duration is not None:
                end = frame.pts + frame.duration
    return {
        "audio_duration": _seconds(duration if end is None else end, start, base),
        "audio_channels": channels,
        "audio_sample_rate": rate,
        "audio_num_samples": samples,
    }


def _seconds(ticks: int | None, start: int | None, base: Any) -> float | None:
    return None if ticks is None or base is None else (ticks - (start or 0)) * float(base)


def _soundfile_metadata(data: bytes, problem: Exception) -> dict[str, Any]:
    """What soundfile says of an audio file; raises `problem` where it cannot say anything either."""
    try:
        import soundfile

        info = soundfile.info(io.BytesIO(data))
    except (ImportError, OSError, RuntimeError):
        raise problem from None
    return {
        "audio_duration": info.frames * (1.0 / info.samplerate),
        "audio_channels": info.channels,
        "audio_sample_rate": info.samplerate,
        "audio_num_samples": info.frames,
    }


def _broken(name: str, what: str) -> DataError:
    return DataError(
        f"no media metadata: {what}",
        record=name,
        kind="bad-media",
        fix="Replace the file, or leave it out; the others are not affected.",
    )
