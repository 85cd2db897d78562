"""Compute durations, counts and sizes of audio and video as Energon stores them.

Duration and frame rate come from the header if it has them. Frames are counted from the container's index if it lists
every frame (MP4, QuickTime), otherwise by reading all packets. Audio samples are counted by decoding them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.errors import MissingExtra
from feedmill.formats.avfile import AvSource, as_file, check_whole, ffmpeg_error, is_indexed, open_av

Metadata = dict[str, Any]


def av_metadata(source: AvSource) -> Metadata:
    """Return all metadata of the first video and the first audio stream. Without PyAV, soundfile reads audio.

    Raises:
        ValueError: The file has neither stream, or it is truncated.
        MissingExtra: Neither PyAV nor soundfile is installed.
        Exception: Whatever the codec raises for bytes that are not a media file.
    """
    try:
        container = open_av(source)
    except MissingExtra:
        return _soundfile_metadata(source)
    with container:
        check_whole(source, container)
        found = stream_metadata(source, container, audio_samples=True)
        samples = container.streams.audio[0].duration if container.format.name == "flac" else None
        if samples is not None and found["audio_num_samples"] < samples:
            raise ValueError(f"the audio is truncated: expected {samples} samples, found {found['audio_num_samples']}")
    if not found:
        raise ValueError("the file has neither a video nor an audio stream")
    return found


def stream_metadata(
    source: AvSource,
    container: Any,
    *,
    video: bool = True,
    video_duration: bool = True,
    video_frames: bool = True,
    video_size: bool = True,
    audio: bool = True,
    audio_duration: bool = True,
    audio_samples: bool = False,
    first_frame: Callable[[], Any] | None = None,
) -> Metadata:
    """Return the metadata of an open container in stored order, without values that are unknown.

    Args:
        source: What the container was opened from; it is reopened if the container does not support seeking.
        video, audio: Whether to read the video stream and the audio stream.
        video_duration, audio_duration: Whether to measure the duration if the header does not give it.
        video_frames: Whether to count the frames.
        video_size: Whether to read width and height, which decodes one frame.
        audio_samples: Whether to count the audio samples, which decodes all audio.
        first_frame: Returns a frame of the video; given if a reader is using the container.
    """
    found: Metadata = {}
    if video and container.streams.video:
        found |= _video(container, video_duration, video_frames, video_size, first_frame)
    if audio and container.streams.audio:
        try:
            if audio_samples or (audio_duration and container.streams.audio[0].duration is None):
                container.seek(0)
            found |= _audio(container, audio_duration, audio_samples)
        except ffmpeg_error():
            # Short files of some formats (FLAC) do not support seeking: reopen instead. Other formats must seek,
            # because some containers then skip the encoder's padding, and the stored counts exclude it.
            with open_av(source) as again:
                found |= _audio(again, audio_duration, audio_samples)
    return {key: value for key, value in found.items() if value is not None}


def _video(
    container: Any,
    want_duration: bool,
    want_frames: bool,
    want_size: bool,
    first_frame: Callable[[], Any] | None,
) -> Metadata:
    stream = container.streams.video[0]
    ticks, frames = stream.duration, None
    if is_indexed(container, stream):
        frames = stream.frames
    if (want_duration and ticks is None) or (want_frames and frames is None):
        frames, end = _walk(container, stream)
        ticks = end if ticks is None else ticks
    seconds = _seconds(ticks, stream)
    fps = (
        float(stream.average_rate)
        if stream.average_rate is not None
        else frames / seconds
        if frames and seconds
        else None
    )
    found = {"video_duration": seconds, "video_num_frames": frames if want_frames else None, "video_fps": fps}
    if want_size:
        if first_frame is None:
            container.seek(0)
        shown = next(container.decode(video=0), stream) if first_frame is None else first_frame()
        found |= {"video_width": shown.width, "video_height": shown.height}
    return found


def _walk(container: Any, stream: Any) -> tuple[int, int | None]:
    """Return the number of packets with a timestamp, and the end of the last one."""
    count, end = 0, None
    for packet in container.demux(stream):
        if packet.pts is not None:
            count += 1
            end = packet.pts + packet.duration if packet.duration is not None else None
    return count, end


def _audio(container: Any, want_duration: bool, want_samples: bool) -> Metadata:
    stream = container.streams.audio[0]
    ticks, samples, end = stream.duration, None, None
    if want_samples:
        samples = 0
        for frame in container.decode(audio=0):
            samples += frame.samples
            if frame.pts is not None:
                end = frame.pts + frame.duration if frame.duration is not None else None
        ticks = ticks if end is None else end
    elif want_duration and ticks is None:
        ticks = _walk(container, stream)[1]
    return {
        "audio_duration": _seconds(ticks, stream),
        "audio_channels": stream.channels,
        "audio_sample_rate": stream.sample_rate,
        "audio_num_samples": samples,
    }


def _seconds(ticks: int | None, stream: Any) -> float | None:
    if ticks is None or stream.time_base is None:
        return None
    return float((ticks - (stream.start_time or 0)) * float(stream.time_base))


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
