"""Decode audio and video lazily.

A sample's ``mp4``, ``wav``, ... part becomes an `AVDecoder`: a handle that holds the bytes (or a path, or a file) and
decodes clips. The file is opened by the first call that needs it and reused by later calls.

Read audio samples by time.

A clip holds the samples ``[round(start * rate), round(end * rate))`` of the file, as far as they exist. It equals the
same slice of the whole file decoded from its beginning. To get there, decoding starts early enough for codecs that
carry state from frame to frame, and coarse container timestamps (Matroska counts milliseconds) are snapped to the grid
of the codec's frames.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra
from feedmill.formats.avfile import AvSource, as_file, check_whole, ffmpeg_error, is_cover, open_av, reason, size_of
from feedmill.formats.avvideo import Converter, VideoReader, ranges_in_ticks
from feedmill.formats.mp4.clips import ClipReader, Missing, Span
from feedmill.formats.mp4.table import NoTable, Outside
from feedmill.formats.orientation import Orientation, check_orientation
from feedmill.samples.avmetadata import audio_metadata, video_metadata
from feedmill.samples.mediafacts import AVMetadata


@dataclass(slots=True)
class AVData:
    """Clips of a video, of its audio, or of both, as NumPy arrays or torch tensors (set by the decoder's `arrays`).

    Attributes:
        video_clips: One ``uint8[frames, 3, H, W]`` array per clip.
        video_timestamps: Start of the first and end of the last frame of each clip, in seconds.
        audio_clips: One ``[channels, samples]`` array per clip, in the file's own type.
        audio_timestamps: Start of the first and end of the last sample of each clip, in seconds.
    """

    video_clips: list[Any] = field(default_factory=list)
    video_timestamps: list[tuple[float, float]] = field(default_factory=list)
    audio_clips: list[Any] = field(default_factory=list)
    audio_timestamps: list[tuple[float, float]] = field(default_factory=list)


Arrays = Literal["numpy", "torch"]
Ranges = Sequence[tuple[float, float]]


class AVDecoder:
    """Lazy decoder of one audio or video file.

    Ranges of clips are (start, end). A video clip holds the frames on the screen from start to end, both included, so
    it has at least one frame. An audio clip holds the samples from start up to, but not including, end. Methods return
    one clip for each range, in the order given; ranges may overlap and come in any order. An infinite end means the end
    of the file.

    Pickling keeps the bytes (once) or the path, never open files. A lock serializes calls from several threads.

    Args:
        stream: The file: bytes, a path, or a seekable binary file.
        suppress_warnings: Accepted for compatibility with Energon; has an effect in `TorchAVDecoder` only.
        name: Name of the file in error messages.
        arrays: Type of the clips: ``numpy`` arrays or ``torch`` tensors.
        threads: Threads of the video decoder; 0 means one per core. The result does not depend on it.
        orientation: ``apply`` turns frames upright as the video's display matrix says, ``stored`` gives them as stored.
    """

    _settings = ("source", "name", "arrays", "threads", "orientation", "file", "offset")
    __slots__ = (*_settings, "_audio", "_frame_ticks", "_known_span", "_lock", "_video")

    def __init__(
        self,
        stream: AvSource,
        suppress_warnings: bool = False,  # noqa: ARG002
        *,
        name: str | None = None,
        arrays: Arrays = "numpy",
        threads: int = 1,
        orientation: Orientation = "apply",
    ) -> None:
        check_orientation(orientation)
        self.orientation = orientation
        if isinstance(stream, io.BytesIO):
            stream = stream.getvalue()
        elif isinstance(stream, os.PathLike):
            stream = os.fspath(stream)
        self.source, self.name, self.arrays, self.threads = stream, name, arrays, threads
        self.file: str | None = stream if isinstance(stream, str) else None
        self.offset: int | None = None
        self._start()

    def _start(self) -> None:
        self._video: VideoReader | ClipReader | None = None
        self._audio: AudioReader | None = None
        self._frame_ticks: npt.NDArray[np.int64] | None = None
        self._known_span: Span | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"AVDecoder({self.name or self.file or type(self.source).__name__}, {size_of(self.source):,} bytes)"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._start()

    def came_from(self, file: str, offset: int | None, record: str) -> None:
        """Set the file, byte offset and sample part that errors name."""
        self.file, self.offset, self.name = file, offset, record

    @property
    def stream(self) -> Any:
        """Return the file, positioned at its beginning."""
        return open(self.source, "rb") if isinstance(self.source, str) else as_file(self.source)

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        for reader in (self._video, self._audio):
            if reader is not None:
                reader.close()
        self._video = self._audio = None

    # Clips

    def get_video(self) -> AVData:
        """Return all frames as one clip."""
        clips, times = self.get_video_clips([(0, float("inf"))])
        return AVData(clips, times)

    def get_audio(self) -> AVData:
        """Return all audio samples as one clip."""
        clips, times = self.get_audio_clips([(0, float("inf"))])
        return AVData([], [], clips, times)

    def get_video_with_audio(self) -> AVData:
        """Return all frames and all audio, each as one clip."""
        return self.get_clips([(0, float("inf"))], [(0, float("inf"))])

    def get_clips(
        self,
        video_clip_ranges: Ranges | None = None,
        audio_clip_ranges: Ranges | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return video and audio clips; see `get_video_clips` and `get_audio_clips`. None returns no such clips."""
        data = AVData()
        if video_clip_ranges is not None:
            found = self.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
            data.video_clips, data.video_timestamps = found
        if audio_clip_ranges is not None:
            data.audio_clips, data.audio_timestamps = self.get_audio_clips(audio_clip_ranges, audio_unit)
        return data

    def get_video_clips(
        self,
        video_clip_ranges: Ranges,
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[Any], list[tuple[float, float]]]:
        """Return video clips and their times.

        Args:
            video_clip_ranges: (start, end), both included.
            video_unit: ``seconds`` on the file's own clock, or ``frames`` by number from 0.
            video_out_frame_size: Width and height to scale to.

        Returns:
            The clips ``uint8[frames, 3, H, W]``, and for each the start of its first and the end of its last frame, in
            seconds. Gray of 9 to 16 bits keeps its values: ``uint16[frames, 1, H, W]``.

        Raises:
            ConfigError: A range is invalid.
            DataError: There is no video, or it is damaged. The error names the sample and the file.
            MissingExtra: PyAV is not installed.
        """
        _check(video_clip_ranges, video_unit, ("seconds", "frames"))
        with self._decoding():
            found: tuple[list[Any], list[tuple[float, float]]] = self._by_table(
                lambda: self._video_clips(video_clip_ranges, video_unit, video_out_frame_size)
            )
            return found

    def _video_clips(
        self, wanted: Ranges, unit: str, size: tuple[int, int] | None
    ) -> tuple[list[Any], list[tuple[float, float]]]:
        reader = self._video_reader()
        ranges = self._ticks_of_frames(wanted) if unit == "frames" else ranges_in_ticks(wanted, reader.time_base)
        converter, clips = Converter(size, orient=self.orientation == "apply"), {}
        for number in sorted(range(len(ranges)), key=lambda i: ranges[i][0]):
            pixels, begin, end = converter.pixels(reader.frames(*ranges[number]), reader.orientation)
            times = float(begin * reader.time_base), float(end * reader.time_base)
            clips[number] = self._array(pixels, (0, 3, 1, 2)), times
        return [clips[i][0] for i in range(len(ranges))], [clips[i][1] for i in range(len(ranges))]

    def get_audio_clips(
        self, audio_clip_ranges: Ranges, audio_unit: Literal["samples", "seconds"] = "seconds"
    ) -> tuple[list[Any], list[tuple[float, float]]]:
        """Return audio clips and their times.

        Args:
            audio_clip_ranges: (start, end), the end not included.
            audio_unit: ``seconds`` on the file's own clock, or ``samples`` by number on it (an MP3 may begin at 1105).

        Returns:
            The clips ``[channels, samples]`` in the file's own type, and the start and end of each in seconds.

        Raises:
            ConfigError: A range is invalid.
            DataError: There is no audio, or it is damaged. The error names the sample and the file.
            MissingExtra: PyAV is not installed.
        """
        _check(audio_clip_ranges, audio_unit, ("seconds", "samples"))
        with self._decoding():
            reader = self._audio_reader()
            clips, times = [], []
            for start, end in audio_clip_ranges:
                if audio_unit == "samples":
                    start, end = over_rate(start, reader.rate), over_rate(end, reader.rate)
                samples, begin, stop = reader.clip(start, end)
                clips.append(self._array(samples, None))
                times.append((begin, stop))
            return clips, times

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return all frames of a video, or all samples of an audio file. A cover picture does not count as a video.

        Args:
            video_decode_audio: Return the audio of a video as well.
        """
        with self._decoding(), self._opened() as container:
            pictures = all(is_cover(stream) for stream in container.streams.video)
            music = pictures and len(container.streams.audio) > 0
        if music:
            return self.get_audio()
        return self.get_video_with_audio() if video_decode_audio and self.has_audio_stream() else self.get_video()

    # Metadata

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Return the requested durations, counts and sizes, as far as the file has them.

        A duration is the time from the first frame or sample to the end of the last one. Sizes are those of the
        frames that clips have. Counting samples decodes all audio. Counting frames reads the whole file if it has no
        index of every frame.

        Raises:
            DataError: The file is damaged. The error names the sample and the file.
            MissingExtra: PyAV is not installed.
        """
        found: dict[str, Any] = {}
        with self._decoding():
            if get_video and self._has_video():
                span = self._span(count=get_video_frame_count) if get_video_duration or get_video_frame_count else None
                shown = self._first_or_stream() if get_video_frame_size else None
                found = video_metadata(span, shown, self._video_reader(), orient=self.orientation == "apply")
            if get_audio:
                with self._opened() as container:
                    if container.streams.audio:
                        wanted = {"duration": get_audio_duration, "samples": get_audio_num_samples}
                        found |= audio_metadata(self.source, container, **wanted)
        return AVMetadata(**{name: value for name, value in found.items() if value is not None})

    def get_video_fps(self) -> float:
        """Return the frames per second. Raises `DataError` if there is no video."""
        return float(self._wanted("video_fps", get_video_duration=False, get_audio=False))

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return the duration of the video in seconds, and optionally the number of frames."""
        metadata = self.get_metadata(get_video_frame_count=get_frame_count, get_video_frame_size=False, get_audio=False)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Return the duration of the audio in seconds."""
        return self.get_metadata(get_video=False).audio_duration

    def get_audio_samples_per_second(self) -> int:
        """Return the audio samples per second. Raises `DataError` if there is no audio."""
        return int(self._wanted("audio_sample_rate", get_video=False, get_audio_duration=False))

    def has_video_stream(self) -> bool:
        """Return whether the file has a video stream."""
        with self._decoding():
            return self._has_video()

    def has_audio_stream(self) -> bool:
        """Return whether the file has an audio stream."""
        with self._decoding(), self._opened() as container:
            return len(container.streams.audio) > 0

    @property
    def video_start(self) -> float:
        """Return the time at which the video's first frame appears, in seconds, which is not always 0."""
        with self._decoding():
            return float(self._timed().first * self._video_reader().time_base)

    def _edges(self) -> tuple[float, float]:
        """Return how long the first and the last frame are shown, in seconds."""
        with self._decoding():
            span, reader = self._timed(), self._video_reader()
            return float((self._first_or_stream().duration or 0) * reader.time_base), float(
                (span.end - span.last) * reader.time_base
            )

    @property
    def audio_start(self) -> float:
        """Return the time at which the audio begins, in seconds, which is not 0 in a recording of a running stream."""
        with self._decoding():
            reader = self._audio_reader()
            return reader.origin / reader.rate

    def _wanted(self, name: str, **chosen: bool) -> Any:
        metadata = self.get_metadata(get_video_frame_count=False, get_video_frame_size=False, **chosen)
        value = getattr(metadata, name)
        if value is None:
            raise self._located(
                DataError(f"it has no {name.replace('_', ' ')}", kind="bad-media", fix="Skip the sample.")
            )
        return value

    def check(self) -> None:
        """Decode the whole file and discard the result. Raises `DataError`, with sample and file, if it is corrupt."""
        with self._decoding(), self._opened() as container:
            wanted = [*container.streams.video[:1], *container.streams.audio[:1]]
            if not wanted:
                raise DataError("the file has neither video nor audio", kind="bad-media", fix="Skip the sample.")
            for packet in container.demux(wanted):
                packet.decode()

    # Internals

    def _open(self) -> Any:
        container = open_av(self.source, self.threads)
        try:
            check_whole(self.source, container)
        except BaseException:
            container.close()
            raise
        return container

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        container = self._open()
        try:
            yield container
        finally:
            container.close()

    def _by_table(self, read: Callable[[], Any]) -> Any:
        """Return what is read by the table of the file; through a container if that fails, which says what is wrong."""
        reader = self._video_reader()
        if isinstance(reader, ClipReader):
            with contextlib.suppress(Missing, ffmpeg_error(), ValueError):
                return read()
            reader.close()
            self._video = VideoReader(self._open)
            self._frame_ticks = self._known_span = None
        return read()

    def _first_or_stream(self) -> Any:
        """Return the first frame of the video, or its stream if frames have no times: covers, raw H.264."""
        try:
            return self._by_table(lambda: self._video_reader().first())
        except DataError as error:
            if error.kind != "no-times" or isinstance(reader := self._video_reader(), ClipReader):
                raise
            return reader.stream

    def _span(self, *, count: bool) -> Span | None:
        """Return when the frames of the video are shown, found once; None if they have no times."""
        if self._known_span is None or (count and self._known_span.frames is None):
            try:
                self._known_span = self._video_reader().span(count=count)
            except DataError as error:
                if error.kind != "no-times":
                    raise
        return self._known_span

    def _timed(self) -> Span:
        """Return when the frames of the video are shown. Raises `DataError` if they have no times."""
        span = self._span(count=False)
        if span is None:
            self._video_reader().first()  # raises
        assert span is not None
        return span

    def _has_video(self) -> bool:
        try:
            self._video_reader()
        except DataError as error:
            if error.kind != "no-video":
                raise
            return False
        return True

    def _video_reader(self) -> VideoReader | ClipReader:
        if self._video is None:
            file = self.stream
            try:
                self._video = ClipReader(file, size_of(self.source), self.threads)
            except NoTable as error:
                file.close()
                if isinstance(error, Outside):
                    raise ValueError(str(error)) from None
                self._video = VideoReader(self._open)
        return self._video

    def _audio_reader(self) -> AudioReader:
        if self._audio is None:
            self._audio = AudioReader(self._open)
        return self._audio

    def _ticks_of_frames(self, ranges: Ranges) -> list[tuple[int, int | None]]:
        if self._frame_ticks is None:
            self._frame_ticks = self._video_reader().ticks()
        ticks = self._frame_ticks

        def tick(number: float) -> int:
            return int(ticks[min(max(int(number), 0), len(ticks) - 1)])

        return [(tick(start), None if end == float("inf") else tick(end)) for start, end in ranges]

    def _array(self, array: npt.NDArray[Any], axes: tuple[int, ...] | None) -> Any:
        """Return the array as the requested type with its axes in this order, without a copy."""
        if self.arrays == "numpy":
            return array if axes is None else array.transpose(axes)
        try:
            import torch
        except ImportError:
            raise MissingExtra("clips as torch tensors need torch", extra="torch") from None
        return torch.from_numpy(array) if axes is None else torch.from_numpy(array).permute(axes)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Admit one thread at a time, and add sample and file to any error raised by the codec."""
        with self._lock:
            try:
                yield
            except FeedmillError as error:
                self.close()
                raise self._located(error) from error.__cause__
            except Exception as error:  # PyAV raises its own errors and passes on those of other libraries
                self.close()
                what = f"the audio or video cannot be decoded: {reason(error)}"
                fix = "Replace the file or skip the sample."
                raise self._located(DataError(what, kind="bad-media", fix=fix)) from error

    def _located(self, error: FeedmillError) -> FeedmillError:
        if error.file is None:
            error.file, error.offset = self.file, self.offset
        if error.record is None and self.name != error.file:
            error.record = self.name
        return error


def over_rate(number: float, rate: int) -> Any:
    """Return the time of a sample by its number, in seconds; infinity stays infinity."""
    return number if number == float("inf") else Fraction(number) / rate


def _check(ranges: Ranges, unit: str, units: tuple[str, ...]) -> None:
    if unit not in units:
        raise ConfigError(f"unknown unit {unit!r}", fix=f"Use {' or '.join(units)}.")
    for start, end in ranges:
        if not start <= end or start == float("inf"):
            raise ConfigError(
                f"invalid clip range ({start}, {end}): start must be finite and not greater than end",
                fix="Pass each range as (start, end).",
            )


_log = logging.getLogger("feedmill.samples")


class TorchAVDecoder(AVDecoder):
    """`AVDecoder` with the defaults of Energon's class of this name: tensors, and no clips after the end of the file.

    A range that begins at the end or after it has no clip, so that there may be fewer clips than ranges. The number of
    such ranges is logged, unless `suppress_warnings` is set.

    Args:
        stream, suppress_warnings, name, arrays, threads: as in `AVDecoder`.
        orientation: as in `AVDecoder`; by default frames are given as they are stored, as Energon gives them.
    """

    __slots__ = ("suppress_warnings",)

    def __init__(
        self,
        stream: AvSource,
        suppress_warnings: bool = False,
        *,
        name: str | None = None,
        arrays: Arrays = "torch",
        threads: int = 1,
        orientation: Orientation = "stored",
    ) -> None:
        super().__init__(stream, name=name, arrays=arrays, threads=threads, orientation=orientation)
        self.suppress_warnings = suppress_warnings

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "suppress_warnings": self.suppress_warnings}

    def get_video_clips(
        self,
        video_clip_ranges: Ranges,
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[Any], list[tuple[float, float]]]:
        """Return the clips of the ranges that begin before the end; see `AVDecoder.get_video_clips`."""
        clips, times = super().get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
        if video_unit == "frames":
            count = 0 if self._frame_ticks is None else len(self._frame_ticks)
            after = [start >= count for start, _ in video_clip_ranges]
        else:  # the last frame is the clip of a range after the end; it may have no stated duration
            starts = [start for start, _ in video_clip_ranges]
            after = [start >= end > begin for start, (begin, end) in zip(starts, times, strict=True)]
        return self._without(after, clips, times)

    def get_audio_clips(
        self, audio_clip_ranges: Ranges, audio_unit: Literal["samples", "seconds"] = "seconds"
    ) -> tuple[list[Any], list[tuple[float, float]]]:
        """Return the clips of the ranges that begin before the end; see `AVDecoder.get_audio_clips`."""
        clips, times = super().get_audio_clips(audio_clip_ranges, audio_unit)
        rate = self._audio_reader().rate if audio_unit == "samples" else 1
        after = [
            not clip.shape[1] and end > start and begin <= float(over_rate(start, rate))
            for clip, (start, end), (begin, _) in zip(clips, audio_clip_ranges, times, strict=True)
        ]
        return self._without(after, clips, times)

    def _without(
        self, after: list[bool], clips: list[Any], times: list[tuple[float, float]]
    ) -> tuple[list[Any], list[tuple[float, float]]]:
        """Return the clips and times of the ranges that are not after the end, and log the number of the others."""
        if any(after) and not self.suppress_warnings:
            _log.warning(
                "%d of %d ranges begin after the end of %s: they have no clip",
                sum(after),
                len(after),
                self.name or self.file or "the file",
            )
        kept = [number for number, is_after in enumerate(after) if not is_after]
        return [clips[number] for number in kept], [times[number] for number in kept]


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Return clips of one duration whose starts are equally spaced.

    The first clip starts when the first frame or sample appears, and the last one ends when the last one disappears.
    With a duration of 0 the clips are single frames, the outermost ones half a frame away from either end. All clips of
    audio have as many samples, so that they can be stacked. If both audio and video are requested, the clips cover the
    time in which there are both.

    Args:
        av_decoder: The file.
        clip_duration_seconds: Duration of each clip. If the file is shorter, each clip holds all of it.
        num_clips: Number of clips.
        request_video, request_audio: The streams to return; at least one of them.
        video_out_frame_size: Width and height to scale frames to.

    Raises:
        ConfigError: Neither video nor audio is requested, or a number is negative.
        DataError: The file lacks a requested stream, the stream's duration is unknown, or the file is damaged.
    """
    if not request_video and not request_audio:
        raise ConfigError("neither video nor audio is requested", fix="Set request_video or request_audio.")
    if clip_duration_seconds < 0 or num_clips < 0:
        raise ConfigError(
            f"num_clips and clip_duration_seconds must not be negative: found {num_clips} and {clip_duration_seconds}",
            fix="Use 0 or more.",
        )
    metadata = av_decoder.get_metadata(
        get_video=request_video, get_video_frame_count=False, get_video_frame_size=False, get_audio=request_audio
    )
    durations = [metadata.video_duration] * request_video + [metadata.audio_duration] * request_audio
    known = [duration for duration in durations if duration is not None]
    if len(known) < len(durations):
        missing = "video" if request_video and metadata.video_duration is None else "audio"
        raise DataError(
            f"the file has no {missing} stream with a known duration",
            file=av_decoder.file,
            offset=av_decoder.offset,
            record=av_decoder.name,
            kind="bad-media",
            fix="Skip the sample, or request only the streams it has.",
        )
    begins = [av_decoder.video_start] if request_video else []
    begins += [av_decoder.audio_start] if request_audio else []
    first = max(begins)
    last = min(begin + duration for begin, duration in zip(begins, known, strict=True)) - clip_duration_seconds
    if last + clip_duration_seconds <= first:
        raise DataError(
            "audio and video of the file are not at the same time",
            file=av_decoder.file,
            offset=av_decoder.offset,
            record=av_decoder.name,
            kind="bad-media",
            fix="Request one of them.",
        )
    if clip_duration_seconds == 0:
        half = 0.5 / metadata.video_fps if metadata.video_fps else 0.0
        begins_for, ends_for = av_decoder._edges() if request_video else (0.0, 0.0)
        first, last = first + min(half, begins_for / 2 or half), last - min(half, ends_for / 2 or half)
    starts = np.linspace(first, max(first, last), num_clips).tolist()
    clips = [(start, start + clip_duration_seconds) for start in starts] if request_video else None
    sounds: list[tuple[float, float]] | None = None
    if request_audio:
        rate = metadata.audio_sample_rate or av_decoder.get_audio_samples_per_second()
        count = _whole(clip_duration_seconds * rate)
        sounds = [(first, first + count) for first in (_whole(start * rate) for start in starts)]
    # The methods of the base class return a clip for each range, also if the stated duration is too long.
    data = AVData()
    if clips is not None:
        data.video_clips, data.video_timestamps = AVDecoder.get_video_clips(
            av_decoder, clips, "seconds", video_out_frame_size
        )
    if sounds is not None:
        data.audio_clips, data.audio_timestamps = AVDecoder.get_audio_clips(av_decoder, sounds, "samples")
    return data


def _whole(number: float) -> int:
    """Return a number of samples rounded down, but for the error of floats."""
    return int(round(number, 6))


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Return frames at equal distances over the whole video: ``uint8[num_frames, 3, H, W]``.

    Args:
        return_timestamps: Return (frames, the time of each frame in seconds).

    Raises:
        DataError: There is no video, or it is damaged.
    """
    data = get_clips_uniform(av_decoder, 0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size)
    if av_decoder.arrays == "torch":
        import torch

        frames: Any = torch.cat(data.video_clips) if data.video_clips else torch.zeros((0, 3, 0, 0), dtype=torch.uint8)
    else:
        frames = np.concatenate(data.video_clips) if data.video_clips else np.zeros((0, 3, 0, 0), np.uint8)
    return (frames, [start for start, _ in data.video_timestamps]) if return_timestamps else frames


_PREROLL = Fraction(3, 10)
"""Seconds decoded before a clip: MP3 depends on up to ten earlier frames, Opus needs 80 ms."""

Samples = npt.NDArray[Any]


class AudioReader:
    """Reader of the first audio stream of a container.

    Args:
        open_container: Opens the file at its beginning.
    """

    def __init__(self, open_container: Callable[[], Any]) -> None:
        self._open = open_container
        self.container: Any = None
        self._grid: tuple[int, int] | None = None
        self.stream: Any
        self._rewind()
        self.rate: int = self.stream.sample_rate
        if not self.rate:
            raise _no_audio("the audio has no sample rate")

    def close(self) -> None:
        """Close the container."""
        self.container.close()

    def clip(self, start: float, end: float) -> tuple[Samples, float, float]:
        """Return one clip with its start and end times.

        Args:
            start, end: Seconds; `end` may be infinite.

        Returns:
            The samples ``[channels, n]`` in the file's own type, the time of the first sample, and the time at which
            the last one ends (both in seconds).
        """
        first = max(_sample(start, self.rate), 0)
        last = None if end == float("inf") else max(_sample(end, self.rate), first)
        for again in (False, True):
            if again:
                self._rewind()
            else:
                self._seek(first)
            blocks = self._blocks(last)
            found = next(blocks, None)
            if found is None or found[0] <= max(first - int(_PREROLL * self.rate) // 2, self.origin) or again:
                break  # otherwise the seek went past the target
        held: list[Samples] = []
        at = base = found[0] if found is not None else first
        while found is not None:
            held.append(found[1])
            at += found[1].shape[1]
            found = next(blocks, None)
        joined = np.concatenate(held, axis=1) if held else self._nothing()
        low = min(max(first - base, 0), joined.shape[1])
        high = joined.shape[1] if last is None else min(max(last - base, low), joined.shape[1])
        return np.ascontiguousarray(joined[:, low:high]), (base + low) / self.rate, (base + high) / self.rate

    @property
    def origin(self) -> int:
        """The number of the first sample, as given by the header."""
        return _sample((self.stream.start_time or 0) * self.stream.time_base, self.rate)

    def _blocks(self, last: int | None) -> Iterator[tuple[int, Samples]]:
        """Decode frames from the current position up to the sample `last`: number of the first sample, and samples."""
        at: int | None = None
        self._fresh = False
        for frame in self.container.decode(self.stream):
            if at is None:
                at = self._sample_number(frame)
            if last is not None and at >= last:
                return
            samples = _array(frame)
            yield at, samples
            at += samples.shape[1]

    def _sample_number(self, frame: Any) -> int:
        """Return the number of a frame's first sample, corrected if the container's timestamps are coarser."""
        if frame.pts is None:
            return self.origin
        number = _sample(frame.pts * frame.time_base, self.rate)
        slack = int(frame.time_base * self.rate) + 1
        if slack < 2:
            return number
        if self._grid is None:
            self._grid = self._find_grid()
        begin, size = self._grid
        end = number + int(frame.samples)  # after a seek some decoders drop the beginning of the first frame
        nearest = round((end - begin) / size) * size + begin
        return number + (nearest - end if abs(nearest - end) <= slack else 0)

    def _find_grid(self) -> tuple[int, int]:
        """Return the number of a frame's first sample, and samples per frame. The first frame may be shorter."""
        with self._open() as container:
            first, *others = list(islice(container.decode(audio=0), 3)) or [None]
        if first is None or first.pts is None or len({frame.samples for frame in others}) != 1:
            return 0, 1
        return _sample(first.pts * first.time_base, self.rate) + first.samples, others[0].samples

    def _seek(self, first: int) -> None:
        """Seek far enough before a sample.

        Near the beginning the file is reopened instead, since a seek skips the codec's priming samples.
        """
        target = Fraction(first, self.rate) - _PREROLL
        if target <= self.origin / Fraction(self.rate):
            if not self._fresh:
                self._rewind()
            return
        try:
            self.container.seek(int(target / self.stream.time_base), stream=self.stream, backward=True)
            self._fresh = False
        except ffmpeg_error():
            self._rewind()  # short files of some formats (FLAC) do not support seeking

    def _rewind(self) -> None:
        if self.container is not None:
            self.container.close()
        self.container = self._open()
        self._fresh = True
        if not self.container.streams.audio:
            self.container.close()
            raise _no_audio("the file has no audio stream")
        self.stream = self.container.streams.audio[0]

    def _nothing(self) -> Samples:
        kinds = {"u8": np.uint8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "dbl": np.float64}
        kind = kinds.get(self.stream.format.name.removesuffix("p"), np.float32)
        return np.zeros((self.stream.channels, 0), kind)


def _array(frame: Any) -> Samples:
    samples: Samples = frame.to_ndarray()
    if frame.format.is_planar:
        return samples
    return samples.reshape(frame.samples, frame.layout.nb_channels).T


def _sample(seconds: float | Fraction, rate: int) -> int:
    """Return the number of the sample nearest to a time; halves round up."""
    return int((Fraction(seconds) * rate + Fraction(1, 2)) // 1)


def _no_audio(what: str) -> DataError:
    return DataError(what, kind="bad-media", fix="Replace the file or skip the sample.")
