"""Extract clips and single frames at equal distances over a whole file."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.samples.avdata import AVData
from feedmill.samples.avdecoder import AVDecoder


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
    found = av_decoder.get_metadata(
        get_video=request_video, get_video_frame_count=False, get_video_frame_size=False, get_audio=request_audio
    )
    durations = [found.video_duration] * request_video + [found.audio_duration] * request_audio
    known = [duration for duration in durations if duration is not None]
    if len(known) < len(durations):
        missing = "video" if request_video and found.video_duration is None else "audio"
        raise DataError(
            f"the file has no {missing} stream with a known duration",
            file=av_decoder.file,
            offset=av_decoder.offset,
            record=av_decoder.name,
            kind=f"no-{missing}",
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
            kind="no-media",
            fix="Request one of them.",
        )
    if clip_duration_seconds == 0:
        half = 0.5 / found.video_fps if found.video_fps else 0.0
        begins_for, ends_for = av_decoder._edges() if request_video else (0.0, 0.0)
        first, last = first + min(half, begins_for / 2 or half), last - min(half, ends_for / 2 or half)
    starts = np.linspace(first, max(first, last), num_clips).tolist()
    clips = [(start, start + clip_duration_seconds) for start in starts] if request_video else None
    sounds: list[tuple[float, float]] | None = None
    if request_audio:
        rate = found.audio_sample_rate or av_decoder.get_audio_samples_per_second()
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
