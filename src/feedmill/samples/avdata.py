"""Container of decoded audio and video clips."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
