"""Compute durations, counts and sizes of audio and video.

A duration is the time from the appearance of the first frame (or sample) to the end of the last one, whatever the time
of the first: a stream may begin at any time. It comes from the times of the packets, since headers state other things:
the end instead of the duration, or the sum of the frames' durations without gaps.

What an index stores is Energon's: the header's duration less the time of the first frame, where the header has one. It
differs where the first frame is not at 0, and where the header is wrong; then the index has the right value beside it
(`corrections`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.errors import MissingExtra
from feedmill.formats.avfile import AvSource, as_file, check_whole, ffmpeg_error, is_indexed, open_av
from feedmill.formats.avvideo import VideoReader, last_packets, span_of
from feedmill.formats.mp4.clips import ClipReader, Span
from feedmill.formats.orientation import orientation_of, turned

Metadata = dict[str, Any]

_ESTIMATED = ("aac", "mp3", "ac3", "eac3", "amr")
"""Containers without a duration, for which FFmpeg may state one that it estimates from the bit rate."""
_PADDED = ("ogg",)
"""Containers of which FFmpeg's duration has the samples that decoders leave out."""
_CLOSE = 0.1
"""Seconds by which the duration of an MP3 differs from its packets' where its header counts what encoders add."""


def av_metadata(source: AvSource) -> tuple[Metadata, Metadata]:
    """Return all metadata of the first video and the first audio stream as Energon stores them, and corrections.

    Without PyAV, soundfile reads audio. Corrections are right durations where the stored ones are more than a frame
    away, and the orientation of a video that must be turned. No stored duration is zero or negative.

    Raises:
        ValueError: The file has neither stream, or it is truncated.
        MissingExtra: Neither PyAV nor soundfile is installed.
        Exception: Whatever the codec raises for bytes that are not a media file.
    """
    try:
        container = open_av(source)
    except MissingExtra:
        return _soundfile_metadata(source), {}
    found: Metadata = {}
    right: Metadata = {}
    with container:
        check_whole(source, container)
        if container.streams.video:
            found, right = _stored_video(source, container)
        if container.streams.audio:
            about = _seeking(source, container, _stored_audio)
            duration = about["audio_duration"]
            if duration is not None and duration <= 0:
                about["audio_duration"] = _seeking(source, container, audio_duration)
            found |= about
        samples = container.streams.audio[0].duration if container.format.name == "flac" else None
        if samples is not None and found["audio_num_samples"] < samples:
            raise ValueError(f"the audio is truncated: expected {samples} samples, found {found['audio_num_samples']}")
    if not found:
        raise ValueError("the file has neither a video nor an audio stream")
    return {key: value for key, value in found.items() if value is not None}, right


def _stored_video(source: AvSource, container: Any) -> tuple[Metadata, Metadata]:
    """Return what Energon stores of a video, and corrections."""
    stream = container.streams.video[0]
    ticks, frames = stream.duration, None
    if is_indexed(container, stream):
        frames = stream.frames
    if ticks is None or frames is None:
        frames, end = _walk(container, stream)
        ticks = end if ticks is None else ticks
    seconds = None if ticks is None else float((ticks - (stream.start_time or 0)) * float(stream.time_base))
    rate = stream.average_rate
    fps = float(rate) if rate is not None else frames / seconds if frames and seconds else None
    container.seek(0)
    shown = next(container.decode(video=0), None)
    size = stream if shown is None else shown
    right: Metadata = {}
    if shown is not None and shown.pts is not None:
        with open_av(source) as again:
            span = span_of(again, shown.pts, count=False)
        measured = float((span.end - span.first) * stream.time_base)
        if measured > 0 and (seconds is None or seconds <= 0):
            seconds = measured
        elif seconds is not None and abs(measured - seconds) > 1.5 / (fps or 25):
            right["video_duration"] = measured
        right |= {"orientation": turn} if (turn := orientation_of(shown)) != 1 else {}
    return {
        "video_duration": seconds,
        "video_num_frames": frames,
        "video_fps": fps,
        "video_width": size.width,
        "video_height": size.height,
    }, right


def video_metadata(span: Span | None, shown: Any, reader: VideoReader | ClipReader, *, orient: bool) -> Metadata:
    """Return the metadata of a video; see `AVMetadata`.

    Args:
        span: When its frames are shown; None if that was not asked for, or frames have no times.
        shown: Its first frame, or the stream; None if the size was not asked for.
        orient: Whether the size is that of the upright frames.
    """
    found: Metadata = {}
    average, ticks = reader.stated
    rate = None if average is None else float(average)
    if span is not None:
        seconds = float((span.end - span.first) * reader.time_base)
        found = {"video_duration": seconds if seconds > 0 else None, "video_num_frames": span.frames}
        stated = None if ticks is None else float(ticks * reader.time_base)
        wrong = rate is None or (stated is not None and abs(stated - seconds) > 1.5 / rate)
        if wrong and span.frames and seconds > 0:  # the header's rate is that of its duration
            rate = span.frames / seconds
    found["video_fps"] = rate
    if shown is not None:
        turn = reader.orientation or (orientation_of(shown) if hasattr(shown, "pts") else 1)
        size = (shown.height, shown.width) if orient and turned(turn) else (shown.width, shown.height)
        found |= {"video_width": size[0], "video_height": size[1], "orientation": None if orient or turn == 1 else turn}
    return found


def audio_metadata(source: AvSource, container: Any, *, duration: bool, samples: bool) -> Metadata:
    """Return the metadata of the first audio stream of an open container.

    Args:
        source: What the container was opened from; it is reopened if the container does not support seeking.
        duration: Whether to measure the duration if the header does not give it.
        samples: Whether to count the samples, which decodes all audio.
    """
    stream = container.streams.audio[0]
    known = stream.duration is not None and container.format.name not in (*_ESTIMATED, *_PADDED)
    return {
        "audio_duration": _seeking(source, container, audio_duration) if duration or known else None,
        "audio_channels": stream.channels,
        "audio_sample_rate": stream.sample_rate,
        "audio_num_samples": _seeking(source, container, _stored_audio)["audio_num_samples"] if samples else None,
    }


def audio_duration(container: Any) -> float | None:
    """Return the duration of the first audio stream in seconds, without decoding it; None if nothing states it."""
    stream = container.streams.audio[0]
    stated = None if stream.duration is None else float(stream.duration * stream.time_base)
    estimated = container.format.name in _ESTIMATED
    if stated is not None and not estimated and container.format.name not in _PADDED:
        return stated if stated > 0 else None
    packets = last_packets(container, stream, seek=not estimated) or last_packets(container, stream, seek=False)
    if not packets:
        return stated
    first = packets[0][0] if estimated and stream.start_time is None else stream.start_time or 0
    measured = float((max(begin + duration for begin, duration in packets) - first) * stream.time_base)
    close = container.format.name == "mp3" and stated is not None and abs(stated - measured) < _CLOSE
    return stated if close else measured if measured > 0 else None


def _stored_audio(container: Any) -> Metadata:
    """Return what Energon stores of the first audio stream: its samples are decoded and counted."""
    stream = container.streams.audio[0]
    samples, end = 0, None
    for frame in container.decode(audio=0):
        samples += frame.samples
        if frame.pts is not None:
            end = frame.pts + frame.duration if frame.duration is not None else None
    ticks = stream.duration if end is None else end
    known = ticks is not None and stream.time_base is not None
    return {
        "audio_duration": float((ticks - (stream.start_time or 0)) * float(stream.time_base)) if known else None,
        "audio_channels": stream.channels,
        "audio_sample_rate": stream.sample_rate,
        "audio_num_samples": samples,
    }


def _seeking(source: AvSource, container: Any, read: Callable[[Any], Any]) -> Any:
    """Return what is read from the beginning of a container.

    Short files of some formats (FLAC) do not support seeking: they are reopened instead. Other formats must seek,
    because some containers then skip the encoder's padding, and the stored counts exclude it.
    """
    try:
        container.seek(0)
        return read(container)
    except ffmpeg_error():
        with open_av(source) as again:
            return read(again)


def _walk(container: Any, stream: Any) -> tuple[int, int | None]:
    """Return the number of packets with a timestamp, and the end of the last one."""
    count, end = 0, None
    for packet in container.demux(stream):
        if packet.pts is not None:
            count += 1
            end = packet.pts + packet.duration if packet.duration is not None else None
    return count, end


def _soundfile_metadata(source: AvSource) -> Metadata:
    try:
        import soundfile
    except (ImportError, OSError):
        raise MissingExtra("metadata of audio and video needs PyAV", extra="media") from None
    with soundfile.SoundFile(as_file(source)) as file:
        # The header alone does not show that the file is truncated.
        samples = sum(len(block) for block in file.blocks(1 << 16))
        if samples != file.frames:
            raise ValueError(f"the audio is truncated: expected {file.frames} samples, found {samples}")
        return {
            "audio_duration": samples * (1.0 / file.samplerate),
            "audio_channels": file.channels,
            "audio_sample_rate": file.samplerate,
            "audio_num_samples": samples,
        }
