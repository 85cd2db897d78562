"""Decoded audio and video."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AVData:
    """Clips of a video, of its audio, or of both; arrays are numpy's or torch's, as the decoder was configured.

    Attributes:
        video_clips: uint8 ``[frames, 3, H, W]`` each.
        video_timestamps: start of the first and end of the last frame of each clip, in seconds.
        audio_clips: ``[channels, samples]`` each, in the file's own type.
        audio_timestamps: start of the first and end of the last sample of each clip, in seconds.
    """

    video_clips: list[Any] = field(default_factory=list)
    video_timestamps: list[tuple[float, float]] = field(default_factory=list)
    audio_clips: list[Any] = field(default_factory=list)
    audio_timestamps: list[tuple[float, float]] = field(default_factory=list)
