"""Read video frames by time.

A clip holds the frames that are on the screen from its start to its end, both included: from the last frame that begins
at or before the start to the last one that begins at or before the end. So every clip has at least one frame: a clip
after the end of the video has the last frame, a clip before its beginning the first. Times are the frames' timestamps
(``pts``), so a clip does not depend on a constant frame rate, on the container, or on earlier reads.

Files with a table (`formats.mp4`) are read without a container, and no more bytes than the frames need: clips by its
`ClipReader`, the single frames of a dataset by `Frames`. `VideoReader` reads the other files, such as Matroska and TS:
it keeps decoding if the next clip is near, and seeks if a key frame lies in between. Containers seek by the time of
decoding, and may seek past the target or not at all; a key frame may be decoded before frames that are shown before it,
which refer to the group before (open groups; findings/pyav_seek_open_groups.sh). So decoding begins at the first key
frame after a seek, frames that are shown before it are dropped, and if it is shown after the target, the reader seeks
further back. Frames before the start of a clip that no other frame refers to are not decoded.
"""

from __future__ import annotations

import copy
import errno
import io
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError, MissingExtra
from feedmill.formats.avfile import ffmpeg_error, is_indexed, open_av, reason
from feedmill.formats.mp4.clips import Span
from feedmill.formats.mp4.decoder import SKIPPING, Decoder, Run, runs_of
from feedmill.formats.mp4.sidecar import kept_table
from feedmill.formats.mp4.table import NoTable, Outside, Setup, Table
from feedmill.formats.orientation import orientation_of, turned, upright
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store
from feedmill.storage.base import Entry, storage_error
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.cache.folder import HeldFile
from feedmill.storage.reasons import copy_again, damaged

Pixels = npt.NDArray[Any]

_TOLERANCE = Fraction(1, 1_000_000)
"""Seconds by which a time may precede a frame and still select it, since times are often rounded decimals."""
_NEVER = -(1 << 62)
_TAIL = 3.0
"""Seconds at the end of a file in which its last frame is looked for."""
_FAR = 1.0
"""Distance in seconds beyond which the reader seeks if the key frames in between are unknown."""
OPEN_VIDEOS = 8
"""Number of decoders that a thread keeps open."""
TABLE_BYTES = 96 << 20
"""Bytes of tables that a dataset keeps, 64 for each frame."""
RUN_BYTES = 256 << 20
"""Bytes of packets that are held to decode frames in one go; a container streams longer groups."""
TABLES_AT_ONCE = 16
"""Number of tables that are read from a remote store at once."""
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"
"""Allowed containers. Excludes playlists, for which FFmpeg would open other files."""
_ENCODE = "Encode it again, for example as H.264 in MP4."
_OF_THE_SYSTEM = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


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

    orientation: int | None = None
    """That of the frames, if it is not their own."""

    def __init__(self, open_container: Callable[[], Any]) -> None:
        self._open = open_container
        self.container: Any = None
        self.stream: Any
        self._shown: Any = None
        self._ahead: Any = None
        self._skip_before: int | None = None
        self._whole = False
        self._rewind()
        self.time_base: Fraction = self.stream.time_base

    def close(self) -> None:
        """Close the container."""
        self.container.close()

    @property
    def stated(self) -> tuple[Fraction | None, int | None]:
        """Return the frames per second and the duration in ticks that the file states."""
        return self.stream.average_rate, self.stream.duration

    def ticks(self) -> npt.NDArray[np.int64]:
        """Return the tick at which each frame begins, int64[n], in display order. Reads the whole file."""
        container = self._open()
        try:
            packets = container.demux(container.streams.video[0])
            ticks = np.fromiter((p.pts for p in packets if p.pts is not None and not p.is_discard), np.int64)
        finally:
            container.close()
        return np.sort(ticks[ticks >= self.first().pts])  # those before it do not decode

    def span(self, *, count: bool) -> Span:
        """Return when the frames are shown, see `span_of`. Raises the errors of `frames`."""
        first = self.first().pts
        container = self._open()
        try:
            return span_of(container, first, count=count)
        finally:
            container.close()

    def first(self) -> Any:
        """Return the first frame. Raises the errors of `frames`."""
        if not self._whole or self._shown is not None:
            self._rewind()
        try:
            self._ahead = self._ahead or self._next()
        except BaseException:
            self._whole = False  # the next call begins again
            raise
        if self._ahead is None:
            raise _no_frames("the video has no frames")
        return self._ahead

    def nearest(self, tick: int, tolerance: int) -> Any:
        """Return the frame whose begin is nearest to a tick; None if none is within the tolerance (in ticks).

        Raises the errors of `frames`.
        """
        near = (f for f in self.frames(tick - tolerance, tick + tolerance) if abs(f.pts - tick) <= tolerance)
        return min(near, key=lambda frame: abs(frame.pts - tick), default=None)

    def frames(self, start: int, end: int | None) -> Iterator[Any]:
        """Yield the frames on the screen from tick `start` to tick `end` (None: to the last).

        Raises:
            DataError: The video has no frames, or its frames have no timestamps.
            Exception: Whatever the codec raises.
        """
        for careful in (False, True):
            if careful:
                self._rewind()  # a decoder that has left out frames is not used again
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
        if self._shown is None:
            return self._whole and self._reaches(int(self.stream.start_time or 0), start)
        return bool(self._shown.pts <= start) and self._reaches(self._last, start)

    def _reaches(self, now: int, start: int) -> bool:
        entries = self.stream.index_entries
        if len(entries) > 1:
            place = entries.search_timestamp(start)
            return bool(place <= max(entries.search_timestamp(now, any_frame=True), 0))
        return float((start - now) * self.time_base) <= _FAR

    def _seek(self, start: int) -> None:
        """Seek to a key frame that is shown at or before `start`."""
        origin = int(self.stream.start_time or 0)
        second = max(int(1 / self.time_base), 1)
        targets = [start - back for back in (16 * second, 4 * second, second, 0)]
        while targets and (target := targets.pop()) > origin:
            try:
                self.container.seek(target, stream=self.stream, backward=True)
            except ffmpeg_error():
                break  # this container does not support seeking
            self._begin()
            self._ahead = self._next()
            # What does not begin with the key frame itself begins where the encoder refreshes bit by bit.
            if self._ahead is not None and self._ahead.pts <= start and self._ahead.pts == self._key.pts:
                return
            if target == start and self._key is not None and self._key.dts is not None:
                targets.append(min(self._key.dts, start) - 1)  # the key frame before this one
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
        if self.stream.codec_context is None:
            self.container.close()
            raise DataError(
                "the video cannot be decoded: this FFmpeg does not know its codec", kind="unsupported", fix=_ENCODE
            )
        self._skips = False
        # AVI has no times: FFmpeg gives frames those of their packets, which are not in the order of the frames.
        self._counts = self.container.format.name == "avi" and self.stream.codec_context.name in SKIPPING
        self._begin(whole=True)

    def _begin(self, *, whole: bool = False) -> None:
        """Begin to decode where the container is; `whole`: at its beginning, with a new decoder."""
        self._whole = whole
        self._frames = self._decoded()
        self._shown = self._ahead = None
        self._key: Any = None
        self._last: int = _NEVER
        self._skipped_to: int = self._last
        self._skip_before = None
        self._skipping(False)

    def _next(self) -> Any:
        """Return the next frame, without those that lack the frames which they refer to; None after the last."""
        for frame in self._frames:
            if frame.pts is None:
                raise _no_frames("the video's frames have no timestamps", "no-times")
            if self._key is not None and (frame.pts < self._key.pts or (frame.is_corrupt and self._last == _NEVER)):
                continue
            if self._counts and self._last != _NEVER:
                frame.pts = self._last + (frame.duration or 1)
            self._last = frame.pts
            return frame
        return None

    def _decoded(self) -> Iterator[Any]:
        whole = self._whole
        for packet in self.container.demux(self.stream):
            if self._key is None and not whole and packet.size:
                if not packet.is_keyframe or packet.pts is None:
                    continue
                self._key = packet
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
        if self._counts or self.stream.codec_context.name not in SKIPPING:
            return False
        return bool(packet.pts + packet.duration <= self._skip_before)

    def _skipping(self, on: bool) -> None:
        if on != self._skips:
            self._skips = on
            self.stream.codec_context.skip_frame = "NONREF" if on else "DEFAULT"


class Converter:
    """Converter of frames to pixels, with one scaler for all frames: ``uint8[n, H, W, 3]``, in RGB.

    Gray frames of 9 to 16 bits are data, such as depth, and not for the eye: they keep their values,
    ``uint16[n, H, W, 1]``. Colors of more than 8 bits are converted to 8.

    Args:
        size: Width and height of the result; None uses the size of the first frame.
        orient: Whether to turn frames as the display matrix of the first one says.
    """

    def __init__(self, size: tuple[int, int] | None = None, *, orient: bool = True) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self.size, self.orient = size, orient
        self._reformatter = VideoReformatter()
        one = int(av.__version__.partition(".")[0]) < 17  # before, PyAV had one thread; LeRobot asks for 15
        self._threads: dict[str, int] = {} if one else {"threads": 1}

    def pixels(self, frames: Iterator[Any], turn: int | None = None) -> tuple[Pixels, int, int]:
        """Return the pixels of the frames, the tick at which the first begins, and the tick at which the last ends.

        Args:
            turn: their orientation, if frames do not have it: it belongs to the container.

        Raises:
            DataError: The frames have values that neither 8 bits of a color nor 16 bits of gray can hold.
        """
        out: Pixels = np.empty((0, 0, 0, 3), np.uint8)
        count, begin, end, orientation, form = 0, 0, 0, 1, "rgb24"
        for frame in frames:
            if not count:
                begin, form = frame.pts, pixel_format(frame)
                orientation = (turn or orientation_of(frame)) if self.orient else 1
                width, height = self.size or (frame.width, frame.height)
                if self.size and turned(orientation):
                    width, height = height, width
                channels, dtype = (3, np.uint8) if form == "rgb24" else (1, np.uint16)
                out = np.empty((0, height, width, channels), dtype)
            if count == len(out):
                grown = np.empty((max(32, 2 * count) if count else 1, *out.shape[1:]), out.dtype)  # mostly one
                grown[:count] = out
                out = grown
            self._into(out[count], frame, form)
            end = frame.pts + (frame.duration or 0)
            count += 1
        # Copy if half of the buffer or more is unused, so that the result does not keep it alive.
        out = out[:count] if count > len(out) // 2 else out[:count].copy()
        return upright(out, orientation), begin, end

    def one(self, frame: Any, turn: int | None = None) -> Pixels:
        """Return the pixels of a frame, ``[H, W, C]``. Arguments and errors as those of `pixels`."""
        pixels: Pixels = self.pixels(iter((frame,)), turn)[0][0]
        return pixels

    def _into(self, out: Pixels, frame: Any, form: str) -> None:
        height, width, channels = out.shape
        scaled: dict[str, Any] = {"interpolation": "BILINEAR", **self._threads}
        picture: Any = self._reformatter.reformat(frame, width, height, form, **scaled)
        plane: Any = picture.planes[0]
        rows = np.frombuffer(plane, out.dtype).reshape(-1, plane.line_size // out.itemsize)
        out[:] = rows[:height, : channels * width].reshape(out.shape)


def pixel_format(frame: Any) -> str:
    """Return FFmpeg's name of the format that a frame is given in: ``rgb24``, or its own for gray of 9 to 16 bits.

    Raises:
        DataError: The frame is gray of more than 16 bits, or in floats.
    """
    parts = frame.format.components
    if len(parts) != 1 or parts[0].bits <= 8 or frame.format.has_palette:
        return "rgb24"
    if parts[0].bits > 16 or "f" in frame.format.name:
        raise DataError(
            f"the video's frames are {frame.format.name}: expected gray of at most 16 bits",
            kind="unsupported",
            fix="Encode it again, for example as gray12le or gray16le, or skip the sample.",
        )
    return str(frame.format.name.removesuffix("be").removesuffix("le")) + "le"


def span_of(container: Any, first: int, *, count: bool) -> Span:
    """Return when the frames of a newly opened video are shown, by its packets, which are not decoded.

    Args:
        first: Tick of the first frame that decodes: files cut out of a stream begin with others.
        count: Count the frames, which reads the whole file.
    """
    stream = container.streams.video[0]
    shown = last_packets(container, stream, seek=not count) or last_packets(container, stream, seek=False)
    ticks = sorted(pts for pts, _ in shown)
    frames = sum(tick >= first for tick in ticks) if count else None
    last, duration = max(shown, default=(first, 0))
    last = max(last, first)
    if duration <= 0:  # unknown: as long as the frame before it, or the average
        rate = stream.average_rate
        duration = ticks[-1] - ticks[-2] if len(ticks) > 1 else int(1 / rate / stream.time_base) if rate else 0
    return Span(first, last, last + duration, frames)


def last_packets(container: Any, stream: Any, *, seek: bool) -> list[tuple[int, int]]:
    """Return tick and duration of the packets that are shown: of all, or of those near the end if it seeks there.

    Those are the packets from the last key frame at least. There are none if the container seeks past its end.
    """
    try:
        if seek:
            entries = stream.index_entries
            total = stream.duration or (container.duration or 0) / 1_000_000 / stream.time_base
            last = entries[len(entries) - 1].timestamp if is_indexed(container, stream) else None
            back = int(_TAIL / stream.time_base)
            target = last if last is not None else int(stream.start_time or 0) + int(total) - back
            container.seek(target, stream=stream, backward=True)
        else:
            container.seek(0)
    except ffmpeg_error():
        pass  # this container does not support seeking, and is at its beginning
    packets = (packet for packet in container.demux(stream) if packet.pts is not None and not packet.is_discard)
    return [(packet.pts, packet.duration or 0) for packet in packets]


def ranges_in_ticks(ranges: Sequence[tuple[float, float]], time_base: Fraction) -> list[tuple[int, int | None]]:
    """Convert ranges in seconds to ranges in ticks."""
    return [(to_ticks(start, time_base) or 0, to_ticks(end, time_base)) for start, end in ranges]


def _no_frames(what: str, kind: str = "no-video") -> DataError:
    return DataError(what, kind=kind, fix="Replace the file or skip the sample.")


class FrameRequest(NamedTuple):
    """A frame of a video.

    Attributes:
        path: of the file in the store.
        time: of the frame in seconds of the stream's own clock.
        form: convert to this pixel format of FFmpeg first.
    """

    path: str
    time: float
    form: str | None = None


class Frames:
    """The videos of one dataset. Safe to use from several threads.

    Files with a table (`formats.mp4`) are read by the ranges that wanted frames need, others through a container.

    Args:
        tolerance: maximum distance in seconds of a frame from the requested time.
    """

    def __init__(self, store: Store, tolerance: float) -> None:
        self.store, self.tolerance = store, tolerance
        self._here = threading.local()
        self._tables: OrderedDict[str, Table | None] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Frames, (self.store, self.tolerance)

    def at(self, path: str, time: float, form: str | None = None) -> Pixels:
        """Return the frame nearest to a time, upright: uint8[H, W, 3], or uint16[H, W, 1] of gray of 9 to 16 bits.

        Args:
            form: convert to this pixel format of FFmpeg first.

        Raises:
            DataError: there is no frame within the tolerance, or the file cannot be decoded.
            MissingExtra: PyAV is not installed.
        """
        return self.request([FrameRequest(path, time, form)]).take(0)

    def request(self, requests: Sequence[FrameRequest]) -> FrameBatch:
        """Return frames that are decoded as they are taken, each group of pictures once."""
        return FrameBatch(self, requests)

    def extents(
        self, paths: Sequence[str], file: npt.NDArray[np.int64], times: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ranges of bytes that will be read for frames.

        There are none for files without a table or that cannot be read, and for frames that are not there.

        Args:
            file: int64[m], the number of each frame's file in `paths`.
            times: float64[m], its time in seconds.

        Returns: the number of the frame, begin and end of each range, int64[k].
        """
        parts = [(np.zeros(0, np.int64),) * 3]
        numbers = np.unique(file).tolist()
        for number, table in zip(numbers, self.tables([paths[number] for number in numbers]), strict=True):
            if isinstance(table, Table):
                rows = np.flatnonzero(file == number)
                ticks = np.nan_to_num(np.rint(times[rows] * float(1 / table.time_base)), nan=_NEVER)
                frames, near = self._nearest(table, ticks.clip(_NEVER, -_NEVER).astype(np.int64))
                which, begins, ends = table.extents(frames[near])
                parts.append((rows[near][which], begins, ends))
        which, begins, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        return which, begins, ends

    def find(self, table: Table, time: float) -> int | None:
        """Return the number of the frame nearest to a time in seconds; None if it is further than the tolerance."""
        if not isfinite(time):
            return None
        tick = min(max(round(Fraction(time) / table.time_base), _NEVER), -_NEVER)
        frames, near = self._nearest(table, np.asarray([tick], np.int64))
        return int(frames[0]) if near[0] else None

    def _nearest(
        self, table: Table, ticks: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the numbers of the frames nearest to ticks, int64[m], and whether each is within the tolerance."""
        frames = table.nearest(ticks)
        return frames, np.abs(table.pts[frames] - ticks) <= int(Fraction(self.tolerance) / table.time_base)

    def tables(self, paths: Sequence[str]) -> list[Table | FeedmillError | None]:
        """Return the tables of several files, or why `table` fails; those of remote files are read side by side."""
        if self.store.is_local or len(paths) < 2:
            return [self._table_or_error(path, None) for path in paths]
        with self._lock:
            new = [path for path in paths if path not in self._tables]
        try:
            entries = dict(zip(new, self.store.entries(new), strict=True)) if len(new) > 1 else {}
        except FeedmillError as error:
            return [error] * len(paths)
        read = [partial(self._table_or_error, path, entries.get(path)) for path in paths]
        return list(ordered_map(lambda one: one(), read, workers=TABLES_AT_ONCE, in_flight=TABLES_AT_ONCE))

    def _table_or_error(self, path: str, entry: Entry | None) -> Table | FeedmillError | None:
        try:
            return self.table(path, entry)
        except FeedmillError as error:
            return error

    def table(self, path: str, entry: Entry | None = None) -> Table | None:
        """Return the table of a file; None if a container has to read it.

        Args:
            entry: the file's, if it is known.

        Raises:
            NotFound, StorageError: the file cannot be read.
            DataError: it is cut short.
        """
        with self._lock:
            if path in self._tables:
                self._tables.move_to_end(path)
                return self._tables[path]
        found: Table | None
        try:
            found = kept_table(self.store, path, entry or self.store.entries([path])[0] or self.store.stat(path))
        except Outside as error:
            raise damaged(
                f"the video cannot be read: {error}", file=self.store.locate(path), kind="bad-media"
            ) from None
        except NoTable:
            found = None
        with self._lock:
            if path not in self._tables:
                self._tables[path] = found
                self._bytes += 0 if found is None else found.nbytes
            while self._bytes > TABLE_BYTES and len(self._tables) > 1:
                dropped = self._tables.popitem(last=False)[1]
                self._bytes -= 0 if dropped is None else dropped.nbytes
        return found

    def decode(
        self,
        path: str,
        table: Table,
        run: Run,
        form: str | None,
        packets: Sequence[bytes] | None = None,
    ) -> dict[int, Pixels]:
        """Return the pixels of the wanted frames of a run, by their numbers; those that do not come whole are missing.

        Args:
            form: pixel format, as in `at`.
            packets: the packets of the run, if they were read before.

        Raises:
            FeedmillError: the bytes cannot be read.
        """
        known: OrderedDict[Setup, tuple[Decoder, Converter]] = self._here.__dict__.setdefault("decoders", OrderedDict())
        setup, out = table.setup, {}
        try:
            decoder, converter = known.pop(setup) if setup in known else (Decoder(setup), Converter())
            if packets is None:
                packets = self.store.read_ranges(path, *table.ranges(run.packets))
            for number, frame in decoder.frames(run, packets):
                out[number] = converter.one(frame if form is None else frame.reformat(format=form), table.orientation)
        except (ffmpeg_error(), ValueError):
            return out  # of damaged packets: the container says which
        if decoder.is_reusable:
            known[setup] = decoder, converter
            while len(known) > OPEN_VIDEOS:
                known.popitem(last=False)
        return out

    def at_through_container(self, request: FrameRequest) -> Pixels:
        """Return a frame as `at` does, without a table."""
        path, time, form = request
        try:
            pixels = self._video(path).at(time, self.tolerance, form) if isfinite(time) else None
            if pixels is None:
                raise self.no_frame(request)
            return pixels
        except FeedmillError:
            self._forget(path)
            raise
        except OverflowError:  # further than FFmpeg can count
            self._forget(path)
            raise self.no_frame(request) from None
        except (ffmpeg_error(), OSError, ValueError) as error:
            self._forget(path)
            raise unplayable(error, self.store.locate(path), f"at {time:.4f} s") from None

    def no_frame(self, request: FrameRequest) -> DataError:
        """Return the error for a time without a frame."""
        return DataError(
            f"the video has no frame within {self.tolerance:g} s of {request.time:.4f} s",
            file=self.store.locate(request.path),
            kind="bad-media",
            fix="The video begins late, is shorter than its episode, or was truncated. " + copy_again("the video"),
        )

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


class FrameBatch:
    """Frames asked for together: what one needs is decoded once, when the first of them is taken. Thread-safe.

    Frames of the same group that were decoded on the way are kept until they are taken, or the batch is dropped. From a
    remote store, the packets of all are read at once.
    """

    def __init__(self, frames: Frames, requests: Sequence[FrameRequest]) -> None:
        self._frames, self._requests = frames, requests
        self._lock = threading.Lock()
        self._runs: dict[int, _RunRequests | FeedmillError | None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameBatch, (self._frames, self._requests)

    def take(self, number: int) -> Pixels:
        """Return the frame of a request by its number. Raises as `Frames.at`."""
        request = self._requests[number]
        with self._lock:
            if self._runs is None:
                self._runs = self._planned()
        if number not in self._runs:
            raise self._frames.no_frame(request)
        run = self._runs[number]
        if isinstance(run, FeedmillError):
            raise copy.copy(run)
        if run is None:
            return self._frames.at_through_container(request)
        with run.lock:
            if number in run.pending:
                self._decode(request.path, run, number)
            if number in run.ready:
                return run.take(number)
        return self._frames.at_through_container(request) if number in run.missing else self._frames.at(*request)

    def _planned(self) -> dict[int, _RunRequests | FeedmillError | None]:
        """Return request -> its run, or None if a container has to read it, or why its file cannot be read.

        There is none if its frame is far from its time.
        """
        asked: dict[tuple[str, str | None], list[int]] = {}
        for number, request in enumerate(self._requests):
            asked.setdefault((request.path, request.form), []).append(number)
        paths = list({path: None for path, _ in asked})
        tables = dict(zip(paths, self._frames.tables(paths), strict=True))
        plan: dict[int, _RunRequests | FeedmillError | None] = {}
        remote: list[tuple[str, _RunRequests]] = []
        for (path, _), of in asked.items():
            if not isinstance(table := tables[path], Table):
                plan.update(dict.fromkeys(of, table))
                continue
            wanted: dict[int, list[int]] = {}
            for number in of:
                if (frame := self._frames.find(table, self._requests[number].time)) is not None:
                    wanted.setdefault(frame, []).append(number)
            for run in runs_of(table, list(wanted)):
                requests = _RunRequests(table, run, {number: frame for frame in run.wanted for number in wanted[frame]})
                if table.nbytes_of(run.packets) > RUN_BYTES:
                    plan.update(dict.fromkeys(requests.pending))
                    continue
                plan.update(dict.fromkeys(requests.pending, requests))
                remote.append((path, requests))
        if not self._frames.store.is_local:
            ranges = [(path, *requests.table.ranges(requests.run.packets)) for path, requests in remote]
            for (_, requests), packets in zip(remote, self._frames.store.read_many(ranges), strict=True):
                requests.packets = packets
        return plan

    def _decode(self, path: str, asked: _RunRequests, number: int) -> None:
        """Decode what is pending of a run; frames that do not come, once more from the group before."""
        pending, run, table = asked.pending, asked.run, asked.table
        form = self._requests[number].form
        found = self._frames.decode(path, table, run, form, asked.packets)
        if pending[number] not in found and (begin := table.earlier(run.packets.start)) is not None:
            more = Run(range(begin, run.packets.stop), run.wanted)
            found = self._frames.decode(path, table, more, form) | found
        asked.missing = {of for of, frame in pending.items() if frame not in found}
        asked.found, asked.left = found, Counter(pending.values())
        asked.ready = {of: frame for of, frame in pending.items() if frame in found}
        asked.pending, asked.packets = {}, None


class _RunRequests:
    """Requests whose frames are decoded together.

    Attributes:
        pending: request -> number of its frame, until they are decoded.
        packets: the packets of the run, if they were read before.
        ready: request -> number of its frame, until it is taken.
        found: number -> frame, until all requests took it.
        left: number -> requests that have not taken the frame.
        missing: requests whose frames did not come.
    """

    def __init__(self, table: Table, run: Run, pending: dict[int, int]) -> None:
        self.table, self.run, self.pending = table, run, pending
        self.lock = threading.Lock()
        self.packets: Sequence[bytes] | None = None
        self.ready: dict[int, int] = {}
        self.found: dict[int, Pixels] = {}
        self.left: Counter[int] = Counter()
        self.missing: set[int] = set()

    def take(self, number: int) -> Pixels:
        """Return the frame of a request that is ready; no two requests get the same array."""
        frame = self.ready.pop(number)
        self.left[frame] -= 1
        return self.found[frame].copy() if self.left[frame] else self.found.pop(frame)


class _Video:
    def __init__(self, file: HeldFile, where: str) -> None:
        self._file = file
        try:
            self._reader = VideoReader(partial(open_av, str(file.path), containers=CONTAINERS))
        except FeedmillError as error:
            error.file = where
            raise
        self._converter = Converter()

    def close(self) -> None:
        self._reader.close()
        self._file.close()

    def at(self, time: float, tolerance: float, form: str | None = None) -> Pixels | None:
        base = self._reader.time_base
        frame = self._reader.nearest(round(Fraction(time) / base), int(Fraction(tolerance) / base))
        if frame is None:
            return None
        return self._converter.one(frame if form is None else frame.reformat(format=form))


def unplayable(error: Exception, where: str, at: str) -> FeedmillError:
    """Return the error for a video that FFmpeg does not read: by what it lacks, by the system, or as damaged."""
    name = type(error).__name__
    if name in ("DecoderNotFoundError", "DemuxerNotFoundError", "PatchWelcomeError"):
        return DataError(
            f"the video cannot be decoded {at}: this FFmpeg does not support it ({reason(error)})",
            file=where,
            kind="unsupported",
            fix=_ENCODE,
        )
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        return storage_error(error, where)
    what = f"the video cannot be decoded {at} ({str(error)[:120]})"
    return damaged(what, file=where, kind="bad-media")


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
