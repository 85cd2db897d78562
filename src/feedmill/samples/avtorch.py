"""Energon's defaults for audio and video: tensors, and no clips after the end of a file."""

from __future__ import annotations

import logging
from typing import Any, Literal

from feedmill.formats.avfile import AvSource
from feedmill.formats.orientation import Orientation
from feedmill.samples.avdecoder import Arrays, AVDecoder, Ranges, over_rate

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
