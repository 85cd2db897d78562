"""Durations, counts and sizes of audio and video, as Energon stores them.

Duration and frame rate are the header's where it has them. Frames are counted in the container's index where it has one
of every frame (MP4, QuickTime), else by walking through the packets; audio samples are counted by decoding them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.errors import MissingExtra
from feedmill.samples.avfile import AvSource, as_file, check_whole, ffmpeg_error, is_indexed, open_av

Metadata = dict[str, Any]


def av_metadata(source: AvSource) -> Metadata:
    """All metadata of the first video and the first audio stream. Where PyAV is not installed, soundfile reads audio.

    Raises:
        ValueError: there is neither, or the file is truncated.
        MissingExtra: neither PyAV nor soundfile is installed.
        Exception: whatever the codec raises for bytes that are no media file.
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
            raise ValueError(f"cut short: {found['audio_num_samples']} of {samples} samples")
    if not found:
        raise ValueError("it has neither a video nor an audio stream")
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
    """Metadata of an open container, in stored order, what is not known left out.

    Args:
        source: what the container was opened from; it is opened again where it cannot be seeked in.
        video, audio: whether to look at the video, at the audio.
        video_duration, audio_duration: whether to find it out where the header does not say it.
        video_frames, video_size, audio_samples: whether to count frames, to decode one, to decode all audio.
        first_frame: gives a frame of the video, where the container is being read by somebody.
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
            # Seeking fails on short files of some formats (FLAC): begin again. Elsewhere the seek stays, because
            # after it some containers skip the encoder's padding, which the stored counts then do too.
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
    """Packets with a time, and the end of the last one."""
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
        # The header alone would not tell that the file is truncated.
        samples = sum(len(block) for block in file.blocks(1 << 16))
        if samples != file.frames:
            raise ValueError(f"cut short: {samples} of {file.frames} samples")
        return {
            "audio_duration": samples * (1.0 / file.samplerate),
            "audio_channels": file.channels,
            "audio_sample_rate": file.samplerate,
            "audio_num_samples": samples,
        }
