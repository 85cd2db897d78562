"""Read frames of video files by time, decoded with PyAV (`feedmill[media]`).

A few decoders per thread stay open at their position: following frames are decoded from there, others from the previous
key frame. Times are seconds of the stream's own clock.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError, MissingExtra
from feedmill.storage import Store
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.cache.files import HeldFile

OPEN_VIDEOS = 8
"""Number of decoders that a thread keeps open."""
_AHEAD = 2.0  # seconds: a frame at most this far ahead is reached without seeking
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"
"""Allowed containers. Excludes playlists, for which FFmpeg would open other files."""

Pixels = npt.NDArray[np.uint8]


class Frames:
    """The videos of one dataset. Safe to use from several threads.

    Args:
        tolerance: maximum distance in seconds of a frame from the requested time.
    """

    def __init__(self, store: Store, tolerance: float) -> None:
        self.store, self.tolerance = store, tolerance
        self._here = threading.local()

    def at(self, path: str, time: float) -> Pixels:
        """Return the frame nearest to a time, uint8[H, W, 3].

        Raises:
            DataError: there is no frame within the tolerance, or the file cannot be decoded.
            MissingExtra: PyAV is not installed.
        """
        av = load_av()
        try:
            return self._video(path).at(time, self.tolerance)
        except FeedmillError:
            self._forget(path)
            raise
        except (av.FFmpegError, OSError, ValueError) as error:
            self._forget(path)
            raise DataError(
                f"the video cannot be decoded at {time:.4f} s ({str(error)[:120]})",
                file=self.store.locate(path),
                kind="bad-video",
                fix="Copy it again.",
            ) from None

    def _video(self, path: str) -> _Video:
        known: OrderedDict[str, _Video] = self._here.__dict__.setdefault("videos", OrderedDict())
        if path in known:
            known.move_to_end(path)
            return known[path]
        video = _Video(held_copy(self.store, path), self.store.locate(path))
        known[path] = video
        while len(known) > OPEN_VIDEOS:
            known.popitem(last=False)[1].close()
        return video

    def _forget(self, path: str) -> None:
        video = self._here.__dict__.get("videos", {}).pop(path, None)
        if video is not None:
            video.close()


class _Video:
    def __init__(self, file: HeldFile, where: str) -> None:
        av = load_av()
        self._file = file
        self._container = av.open(str(file.path), options={"format_whitelist": CONTAINERS})
        self._where = where
        if not self._container.streams.video:
            raise DataError("the file contains no video", file=where, kind="bad-video", fix="Copy it again.")
        self._stream = self._container.streams.video[0]
        self._stream.thread_type = "AUTO"
        self._decoding: Iterator[Any] | None = None
        self._last: tuple[float, Any] | None = None  # the last decoded frame, which may be requested again
        self._before: tuple[float, Any] | None = None

    def close(self) -> None:
        self._container.close()
        self._file.close()

    def at(self, time: float, tolerance: float) -> Pixels:
        last = self._last
        if self._decoding is None or last is None or not last[0] - tolerance <= time <= last[0] + _AHEAD:
            self._seek(time)
        for when, frame in self._frames():
            if when >= time - tolerance:
                before = self._before
                if before is not None and abs(before[0] - time) < abs(when - time):
                    when, frame = before
                if abs(when - time) <= tolerance:
                    pixels: Pixels = frame.to_ndarray(format="rgb24")
                    return pixels
                break
        raise DataError(
            f"the video has no frame within {tolerance:g} s of {time:.4f} s",
            file=self._where,
            kind="missing-frame",
            fix="The video is shorter than its episode, or was truncated: copy it again.",
        )

    def _seek(self, time: float) -> None:
        base = self._stream.time_base
        self._container.seek(max(0, int(time / base)), stream=self._stream, backward=True)
        self._decoding, self._last, self._before = self._container.decode(self._stream), None, None

    def _frames(self) -> Iterator[tuple[float, Any]]:
        if self._last is not None:
            yield self._last
        assert self._decoding is not None
        for frame in self._decoding:
            if frame.pts is None:
                continue
            self._before, self._last = self._last, (float(frame.pts * self._stream.time_base), frame)
            yield self._last


def as_png(pixels: Pixels) -> bytes:
    """Return a frame as PNG. Raises `MissingExtra` without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("video frames as PNG require Pillow", "media") from None
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def load_av() -> Any:
    try:
        import av
    except ImportError:
        raise MissingExtra("videos require PyAV", "media") from None
    return av
