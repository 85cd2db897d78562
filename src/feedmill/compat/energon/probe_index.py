"""Energon's index of the frames of a video, made from its packets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

__all__ = ["AVProbeIndex", "AVProbeIndexEntry"]


class AVProbeIndexEntry(NamedTuple):
    """A frame: its time in ticks, and whether decoding can begin at it."""

    timestamp: int
    is_keyframe: bool


class AVProbeIndex:
    """The frames of a video in the order of its packets. `AVDecoder` needs no such index.

    Args:
        container: an open container of PyAV. It is positioned at its beginning afterwards.
        stream_idx: number of the video stream.
    """

    def __init__(self, container: Any, stream_idx: int = 0) -> None:
        packets = [packet for packet in container.demux(video=stream_idx) if packet.pts is not None]
        self._frames = [AVProbeIndexEntry(packet.pts, packet.is_keyframe) for packet in packets]
        self._numbers = {
            is_limited: sorted(
                (frame.timestamp, number)
                for number, frame in enumerate(self._frames)
                if frame.is_keyframe or not is_limited
            )
            for is_limited in (True, False)
        }
        container.seek(0)

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> AVProbeIndexEntry:
        return self._frames[index]

    def search_timestamp(self, timestamp: int, *, backward: bool = True, any_frame: bool = False) -> int:
        """Return the number of the key frame at or before a time; -1 if there is none.

        Args:
            timestamp: time in ticks.
            backward: False for the one at or after the time. Before the first one, the first one is returned.
            any_frame: any frame instead of a key frame.
        """
        frames = self._numbers[not any_frame]
        if backward:
            place = max(bisect_right(frames, timestamp, key=lambda frame: frame[0]) - 1, 0)
        else:
            place = bisect_left(frames, timestamp, key=lambda frame: frame[0])
        return frames[place][1] if place < len(frames) else -1
