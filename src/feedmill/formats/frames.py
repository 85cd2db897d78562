"""Read frames of video files by time, decoded with PyAV (`feedmill[media]`).

A few decoders per thread stay open at their position, see `feedmill.formats.avvideo`. Times are seconds of the stream's
own clock.
"""

from __future__ import annotations

import errno
import io
import threading
from collections import OrderedDict
from fractions import Fraction
from functools import partial

import numpy as np

from feedmill.errors import DataError, FeedmillError, MissingExtra
from feedmill.formats.avfile import ffmpeg_error, open_av, reason
from feedmill.formats.avvideo import Converter, Pixels, VideoReader
from feedmill.storage import Store
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.cache.files import HeldFile
from feedmill.storage.os_errors import storage_error
from feedmill.storage.reasons import copy_again, damaged

OPEN_VIDEOS = 8
"""Number of decoders that a thread keeps open."""
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"
"""Allowed containers. Excludes playlists, for which FFmpeg would open other files."""
_OF_THE_SYSTEM = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Frames:
    """The videos of one dataset. Safe to use from several threads.

    Args:
        tolerance: maximum distance in seconds of a frame from the requested time.
    """

    def __init__(self, store: Store, tolerance: float) -> None:
        self.store, self.tolerance = store, tolerance
        self._here = threading.local()

    def at(self, path: str, time: float, form: str | None = None) -> Pixels:
        """Return the frame nearest to a time, upright: uint8[H, W, 3], or uint16[H, W, 1] of gray of 9 to 16 bits.

        Args:
            form: convert to this pixel format of FFmpeg first.

        Raises:
            DataError: there is no frame within the tolerance, or the file cannot be decoded.
            MissingExtra: PyAV is not installed.
        """
        try:
            return self._video(path).at(time, self.tolerance, form)
        except FeedmillError:
            self._forget(path)
            raise
        except (ffmpeg_error(), OSError, ValueError) as error:
            self._forget(path)
            raise unplayable(error, self.store.locate(path), f"at {time:.4f} s") from None

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
        self._file, self._where = file, where
        try:
            self._reader = VideoReader(partial(open_av, str(file.path), containers=CONTAINERS))
        except FeedmillError as error:
            error.file = where
            raise
        self._converter = Converter()

    def close(self) -> None:
        self._reader.close()
        self._file.close()

    def at(self, time: float, tolerance: float, form: str | None = None) -> Pixels:
        base = self._reader.time_base
        frame = self._reader.nearest(round(Fraction(time) / base), int(Fraction(tolerance) / base))
        if frame is None:
            raise DataError(
                f"the video has no frame within {tolerance:g} s of {time:.4f} s",
                file=self._where,
                kind="missing-frame",
                fix="It is shorter than its episode, or was truncated. " + copy_again("the video"),
            )
        return self._converter.one(frame if form is None else frame.reformat(format=form))


def unplayable(error: Exception, where: str, at: str) -> FeedmillError:
    """Return the error for a video that FFmpeg does not read: by what it lacks, by the system, or as damaged."""
    name = type(error).__name__
    if name in ("DecoderNotFoundError", "DemuxerNotFoundError", "PatchWelcomeError"):
        return DataError(
            f"the video cannot be decoded {at}: this FFmpeg does not support it ({reason(error)})",
            file=where,
            kind="unsupported",
            fix="Encode it again, for example as H.264 in MP4.",
        )
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        return storage_error(error, where)
    what = f"the video cannot be decoded {at} ({str(error)[:120]})"
    return damaged(what, file=where, kind="bad-video")


def as_png(pixels: Pixels) -> bytes:
    """Return a frame as PNG; of one channel as gray of 16 bits, rounded. Raises `MissingExtra` without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("video frames as PNG require Pillow", "media") from None
    out = io.BytesIO()
    if pixels.shape[2] == 1:
        pixels = np.rint(pixels[:, :, 0]).clip(0, 65535).astype(np.uint16)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
