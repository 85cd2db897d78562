"""Cut the frames of an episode out of a video file without encoding them again, with PyAV (`feedmill[media]`).

Packets are copied. This gives the same frames only if the episode begins with a key frame, and no frame of it depends
on one after it; other files are rejected.
"""

from __future__ import annotations

import io
from contextlib import closing
from typing import Any

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.avfile import pyav
from feedmill.formats.avvideo import CONTAINERS
from feedmill.storage import Store
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.reasons import copy_again

_FORMATS = {"mp4": "mp4", "m4v": "mp4", "mov": "mov", "mkv": "matroska", "webm": "webm"}
_LOOK_AHEAD = 64
"""Packets after the episode that are searched for frames of it."""
_COPY = copy_again("the video", "leave the episode out")


def cut_video(store: Store, path: str, begin: float, frames: int, fps: float, *, last: bool) -> bytes:
    """Return a video file with the frames of an episode; the file itself if it has exactly these.

    Args:
        begin: time of the first frame in seconds.
        frames: number of frames; fps: frames per second.
        last: whether nothing may follow in the file.

    Raises:
        DataError: the file cannot be read, lacks frames, or cannot be cut without decoding it.
        NotFound: the file is missing.
        MissingExtra: PyAV is not installed.
    """
    av = pyav()
    where = store.locate(path)
    if not store.exists(path):
        raise DataError("it is missing", file=where, kind="missing-shard", fix="Download it again.")
    try:
        with (
            closing(held_copy(store, path)) as held,
            av.open(str(held.path), options={"format_whitelist": CONTAINERS}) as source,
        ):
            found = _cut(av, source, path, begin, frames, fps, last)
    except FeedmillError as error:
        error.file = error.file or where
        raise
    except (av.FFmpegError, OSError, ValueError) as error:
        raise DataError(f"it cannot be read ({str(error)[:120]})", file=where, kind="bad-media", fix=_COPY) from None
    return store.read(path) if found is None else found


def count_frames(data: bytes) -> int:
    """Decode a video file in full, and return its number of frames. Raises `DataError`, `MissingExtra`."""
    av = pyav()
    try:
        with av.open(io.BytesIO(data), options={"format_whitelist": CONTAINERS}) as source:
            return sum(1 for _ in source.decode(video=0))
    except (av.FFmpegError, OSError, ValueError, IndexError) as error:
        raise DataError(f"it does not decode ({str(error)[:120]})", kind="bad-media", fix=_COPY) from None


def _cut(av: Any, source: Any, path: str, begin: float, frames: int, fps: float, last: bool) -> bytes | None:
    """Return the cut file; None if the file has only the frames of the episode."""
    if not source.streams.video:
        raise DataError("it contains no video", kind="bad-media", fix=_COPY)
    stream = source.streams.video[0]
    tolerance = 0.5 / fps
    end = begin + frames / fps - tolerance
    if begin:
        source.seek(int((begin + tolerance) / stream.time_base), stream=stream, backward=True)
    before = 0
    key = float("inf")  # time of the first key frame after the episode
    wanted: list[Any] = []
    after: list[Any] = []
    for packet in source.demux(stream):
        if packet.pts is None or not packet.size:
            continue
        time = float(packet.pts * stream.time_base)
        if not wanted and time < begin - tolerance:
            before += 1
        elif not wanted and not packet.is_keyframe:
            raise _not_alone("it does not begin with a key frame")
        elif time < begin - tolerance:
            raise _not_alone("its first key frame is decoded before frames of the episode before")
        elif time >= end:
            after.append(packet)
            if time > key or len(after) >= _LOOK_AHEAD:
                break  # what is shown before a key frame follows it directly
            key = min(key, time) if packet.is_keyframe else key
        elif after:
            raise _not_alone("its last frames depend on the next episode")
        elif packet.is_corrupt:
            raise DataError("a frame of it is damaged", kind="bad-media", fix=_COPY)
        else:
            wanted.append(packet)
    if len(wanted) != frames or (last and after):
        raise DataError(
            f"it has {'fewer' if len(wanted) < frames else 'more'} frames than the table",
            kind="wrong-count",
            fix=_COPY,
        )
    if not begin and not before and not after:
        return None
    if len(source.streams) > 1:
        raise _not_alone("it has other streams")
    return _copied(av, stream, wanted, path)


def _not_alone(why: str) -> DataError:
    return DataError(
        f"it cannot be cut without encoding it again ({why})",
        kind="bad-media",
        fix="Use 'feedmill compat vla windows' or 'feedmill convert', which decode its frames.",
    )


def _copied(av: Any, stream: Any, packets: list[Any], path: str) -> bytes:
    """Return packets as a file whose times begin at 0."""
    form = _FORMATS.get(path.rpartition(".")[2].lower())
    if form is None:
        raise _not_alone("files of this kind are not written")
    first = packets[0].pts
    out = io.BytesIO()
    with av.open(out, "w", format=form, container_options={"fflags": "+bitexact"}) as target:
        copy = target.add_stream_from_template(stream, opaque=True)  # AV1 may have a decoder only
        for packet in packets:
            packet.pts -= first
            packet.dts = packet.pts if packet.dts is None else packet.dts - first
            packet.stream = copy
            target.mux(packet)
    return out.getvalue()
