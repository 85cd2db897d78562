"""Read video frames by time, seeking by key frames.

A clip holds the frames that are on the screen from its start to its end, both included: from the last frame that begins
at or before the start to the last one that begins at or before the end. So every clip has at least one frame: a clip
after the end of the video has the last frame, a clip before its beginning the first. Times are the frames' timestamps
(``pts``), so a clip does not depend on a constant frame rate, on the container, or on earlier reads.

The reader keeps decoding if the next clip is near, and seeks if a key frame lies in between. If a container seeks past
the target or not at all, the reader detects it from the time of the first frame and seeks further back. Frames before
the start of a clip that no other frame refers to are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.samples.avfile import ffmpeg_error

Pixels = npt.NDArray[np.uint8]

_TOLERANCE = Fraction(1, 1_000_000)
"""Seconds by which a time may precede a frame and still select it, since times are often rounded decimals."""
_FAR = 1.0
"""Distance in seconds beyond which the reader seeks if the key frames in between are unknown."""


def to_ticks(seconds: float, time_base: Fraction) -> int | None:
    """Return the tick at or before a time; None for infinity."""
    if seconds == float("inf"):
        return None
    return int((Fraction(seconds) + _TOLERANCE) / time_base // 1)


class VideoReader:
    """Reader of the first video stream of a container.

    Args:
        open_container: Opens the file at its beginning.
    """

    def __init__(self, open_container: Callable[[], Any]) -> None:
        self._open = open_container
        self.container: Any = None
        self.stream: Any
        self._shown: Any = None
        self._ahead: Any = None
        self._skip_before: int | None = None
        self._rewind()
        self.time_base: Fraction = self.stream.time_base

    @property
    def origin(self) -> int:
        """The tick at which the video begins, as given by the header."""
        return int(self.stream.start_time or 0)

    def close(self) -> None:
        """Close the container."""
        self.container.close()

    def first(self) -> Any:
        """Return the first frame. Raises the errors of `frames`."""
        return next(self.frames(self.origin, self.origin))

    def frames(self, start: int, end: int | None) -> Iterator[Any]:
        """Yield the frames on the screen from tick `start` to tick `end` (None: to the last).

        Raises:
            DataError: The video has no frames, or its frames have no timestamps.
            Exception: Whatever the codec raises.
        """
        for careful in (False, True):
            if careful or not self._near(start):
                self._seek(start)
            shown, ahead = self._reach(start, skip=not careful)
            # A frame's stated duration may be wrong: then a frame skipped as past should have been on the screen.
            if shown is None or self._skipped_to <= shown.pts:
                break
        if shown is not None:
            yield shown
        elif ahead is None:
            raise _no_frames("the video has no frames")
        while ahead is not None and (end is None or ahead.pts <= end or shown is None):
            shown = self._shown = ahead
            ahead = self._ahead = None
            yield shown
            ahead = self._ahead = self._next()

    def _reach(self, start: int, *, skip: bool) -> tuple[Any, Any]:
        """Return the frame on the screen at `start` (None before the first), and the next one (None at the end)."""
        self._skip_before = start if skip else None
        shown, ahead = self._shown, self._ahead
        if ahead is None or ahead.pts <= start:
            shown = ahead or shown
            while (ahead := self._next()) is not None and ahead.pts <= start:
                shown = ahead
        self._skip_before = None
        self._shown, self._ahead = shown, ahead
        return shown, ahead

    def _near(self, start: int) -> bool:
        """Return whether to continue decoding rather than to seek."""
        if self._fresh:
            return self._reaches(self.origin, start)
        return self._shown is not None and self._shown.pts <= start and self._reaches(self._last, start)

    def _reaches(self, now: int, start: int) -> bool:
        entries = self.stream.index_entries
        if len(entries) > 1:
            place = entries.search_timestamp(start)
            return bool(place < 0 or entries[place].timestamp <= now)
        return float((start - now) * self.time_base) <= _FAR

    def _seek(self, start: int) -> None:
        """Seek to a key frame at or before `start`."""
        second = max(int(1 / self.time_base), 1)
        for back in (0, second, 4 * second, 16 * second):
            target = max(start - back, self.origin)
            try:
                self.container.seek(target, stream=self.stream, backward=True)
            except ffmpeg_error():
                break  # this container does not support seeking
            self._begin()
            self._ahead = self._next()
            if self._ahead is not None and self._ahead.pts <= start:
                return
            if target == self.origin:
                break
        self._rewind()

    def _rewind(self) -> None:
        """Return to the beginning by reopening the file, since not every container can seek there."""
        if self.container is not None:
            self.container.close()
        self.container = self._open()
        if not self.container.streams.video:
            self.container.close()
            raise _no_frames("the file has no video stream")
        self.stream = self.container.streams.video[0]
        self._begin()
        self._fresh = True

    def _begin(self) -> None:
        self._frames = self._decoded()
        self._shown = self._ahead = None
        self._fresh = False
        self._last: int = -(1 << 62)
        self._skipped_to: int = self._last
        self._skip_before = None
        self._skipping(False)

    def _next(self) -> Any:
        frame = next(self._frames, None)
        if frame is not None:
            self._fresh = False
            if frame.pts is None:
                raise _no_frames("the video's frames have no timestamps")
            self._last = frame.pts
        return frame

    def _decoded(self) -> Iterator[Any]:
        for packet in self.container.demux(self.stream):
            past = self._is_past(packet)
            if past != self._skips:
                self._skipping(past)
            if past:
                self._skipped_to = max(self._skipped_to, packet.pts)
            yield from packet.decode()

    def _is_past(self, packet: Any) -> bool:
        """Return whether the packet's frame ends, by its stated duration, before the clip begins."""
        if self._skip_before is None or packet.pts is None or not packet.duration:
            return False
        return bool(packet.pts + packet.duration <= self._skip_before)

    def _skipping(self, on: bool) -> None:
        self._skips = on
        self.stream.codec_context.skip_frame = "NONREF" if on else "DEFAULT"


class Converter:
    """Converter of frames to pixels ``uint8[n, H, W, 3]``, with one scaler for all frames.

    Args:
        size: Width and height of the result; None uses the size of the first frame.
    """

    def __init__(self, size: tuple[int, int] | None = None) -> None:
        from av.video.reformatter import VideoReformatter

        self.size = size
        self._reformatter = VideoReformatter()

    def pixels(self, frames: Iterator[Any]) -> tuple[Pixels, int, int]:
        """Return the pixels of the frames, the tick at which the first begins, and the tick at which the last ends."""
        out = np.empty((0, 0, 0, 3), np.uint8)
        count, begin, end = 0, 0, 0
        for frame in frames:
            width, height = self.size or (out.shape[2] or frame.width, out.shape[1] or frame.height)
            if count == len(out):
                grown = np.empty((max(32, 2 * count), height, width, 3), np.uint8)
                grown[:count] = out[:count] if count else 0
                out = grown
            self._into(out[count], frame, width, height)
            begin = frame.pts if not count else begin
            end = frame.pts + (frame.duration or 0)
            count += 1
        # Copy if half of the buffer or more is unused, so that the result does not keep it alive.
        return (out[:count] if count > len(out) // 2 else out[:count].copy()), begin, end

    def _into(self, out: Pixels, frame: Any, width: int, height: int) -> None:
        picture: Any = self._reformatter.reformat(frame, width, height, "rgb24", interpolation="BILINEAR", threads=1)
        plane: Any = picture.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        out[:] = rows[:height, : 3 * width].reshape(height, width, 3)


def times_of_frames(container: Any) -> npt.NDArray[np.int64]:
    """Return the tick at which each frame of the first video stream begins: int64[n], in display order.

    Reads the container's packets without decoding them.
    """
    stream = container.streams.video[0]
    ticks = np.fromiter((p.pts for p in container.demux(stream) if p.pts is not None), np.int64)
    return np.sort(ticks)


def ranges_in_ticks(ranges: Sequence[tuple[float, float]], time_base: Fraction) -> list[tuple[int, int | None]]:
    """Convert ranges in seconds to ranges in ticks."""
    return [(to_ticks(start, time_base) or 0, to_ticks(end, time_base)) for start, end in ranges]


def _no_frames(what: str) -> DataError:
    return DataError(what, kind="no-video", fix="Replace the file or skip the sample.")
