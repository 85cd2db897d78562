"""Clips and single frames at equal distances over a whole file."""

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
    """Clips of one duration, their starts at equal distances, the first at the beginning and the last at the end.

    With a duration of 0 they are single frames, half a frame away from either end. Where audio and video are asked for,
    the shorter of the two is what is divided.

    Args:
        av_decoder: the file.
        clip_duration_seconds: how long each clip is; those of a file that is shorter hold all of it.
        num_clips: how many.
        request_video, request_audio: what is wanted; at least one of them.
        video_out_frame_size: width and height to scale frames to.

    Raises:
        ConfigError: nothing is asked for.
        DataError: the file lacks what is asked for, or its duration is unknown, or it is damaged.
    """
    if not request_video and not request_audio:
        raise ConfigError("neither video nor audio is asked for", fix="Set request_video or request_audio.")
    if clip_duration_seconds < 0 or num_clips < 0:
        raise ConfigError(f"there are no {num_clips} clips of {clip_duration_seconds} s", fix="Use 0 or more.")
    found = av_decoder.get_metadata(
        get_video=request_video, get_video_frame_count=False, get_video_frame_size=False, get_audio=request_audio
    )
    durations = [found.video_duration] * request_video + [found.audio_duration] * request_audio
    known = [duration for duration in durations if duration is not None]
    if len(known) < len(durations):
        missing = "video" if request_video and found.video_duration is None else "audio"
        raise DataError(
            f"it has no {missing}, or none whose duration is known",
            file=av_decoder.file,
            offset=av_decoder.offset,
            record=av_decoder.name,
            kind=f"no-{missing}",
            fix="Leave the sample out, or ask for what it has.",
        )
    total, first = min(known), 0.0
    last = total - clip_duration_seconds
    if clip_duration_seconds == 0:
        half = 0.5 / found.video_fps if found.video_fps else 0.0
        first, last = half, total - half
    origin = av_decoder.video_start if request_video else av_decoder.audio_start
    starts = (np.linspace(first, max(first, last), num_clips) + origin).tolist()
    clips = [(start, start + clip_duration_seconds) for start in starts]
    return av_decoder.get_clips(
        clips if request_video else None, clips if request_audio else None, video_out_frame_size=video_out_frame_size
    )


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Frames at equal distances over the whole video: ``uint8[num_frames, 3, H, W]``.

    Args:
        return_timestamps: give (frames, the time of each in seconds).

    Raises:
        DataError: there is no video, or it is damaged.
    """
    data = get_clips_uniform(av_decoder, 0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size)
    if av_decoder.arrays == "torch":
        import torch

        frames: Any = torch.cat(data.video_clips) if data.video_clips else torch.zeros((0, 3, 0, 0), dtype=torch.uint8)
    else:
        frames = np.concatenate(data.video_clips) if data.video_clips else np.zeros((0, 3, 0, 0), np.uint8)
    return (frames, [start for start, _ in data.video_timestamps]) if return_timestamps else frames
