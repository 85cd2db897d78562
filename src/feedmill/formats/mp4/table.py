"""The table of the frames of an MP4 or QuickTime file: when each is shown, where its bytes lie, which ones are keys.

It is read from the ``moov`` box alone (ISO/IEC 14496-12), or from the ``moof`` boxes of a fragmented file, so the bytes
of pictures are not touched. Times are those that FFmpeg gives frames: an edit list moves them and hides frames before
its begin, which still have to be decoded.

`NoTable` is raised for everything that is rare enough to be left to a container: other codecs, several descriptions or
edits, encryption, external files, and tables that contradict themselves or the size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.orientation import of_matrix

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CODECS = {
    b"avc1": ("h264", b"avcC"), b"avc3": ("h264", b"avcC"), b"hvc1": ("hevc", b"hvcC"), b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
}  # fmt: skip
"""Sample entry -> FFmpeg's name of the codec, and the box with its configuration."""
FIRST_READ = 128 << 10
"""Bytes at the beginning of a file that are read at once: LeRobot writes ``moov`` first, 7 to 15 bytes a frame."""
MOST_FRAGMENTS = 64
"""Fragments up to which a file has a table: each costs a request, and more are dearer than the whole file."""
MOST_BOXES = 1 << 12
"""Boxes of a file, and runs of its fragments, that are looked at: each may cost a request."""
MOST_BYTES = 1 << 28
"""Bytes up to which a ``moov`` or ``moof`` box is read, 64 for each of the most frames."""
MOST_FRAMES = 1 << 22
"""Frames up to which a file has a table, 64 bytes each: 39 hours at 30 frames a second."""
_ENTRY = 78 + 8
"""Bytes of a visual sample entry before the boxes in it."""
_IDENTITY = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
_FULL_RATE = 1 << 16
_NO_PICTURES = frozenset({b"tmcd", b"text", b"sbtl", b"subt", b"clcp", b"meta", b"hint"})
"""Handlers of tracks beside sound that FFmpeg does not take for video, as it does auxiliary pictures."""
_NO_PICTURE_ENTRIES = frozenset(
    {b"tmcd", b"text", b"tx3g", b"stpp", b"wvtt", b"c608", b"c708", b"mett", b"metx", b"mebx", b"urim", b"gpmd",
     b"camm", b"rtmd", b"djmd", b"mp4s", b"rtp "}
)  # fmt: skip
"""Their sample entries: with one of a codec of pictures, FFmpeg takes them for video with any handler."""

Read = Callable[[int, int], bytes]
"""Read bytes ``[begin, end)`` of the file."""


class NoTable(Exception):
    """Why a container has to read the file."""


class Outside(NoTable):
    """The file is cut short: a container would read what is left without a word."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a decoder has to know: two files with equal setups share one.

    Attributes:
        codec: FFmpeg's name.
        extradata: the configuration, such as parameter sets.
        size: width and height that the file states: H.264 without a crop of its own is cut to them.
        colors: primaries, transfer, matrix and full range (0, 1) that the file states; None if it states none.
    """

    codec: str
    extradata: bytes
    size: tuple[int, int]
    colors: tuple[int, int, int, int] | None


class Table:
    """The frames of the first video track, in the order of decoding.

    Args:
        pts: int64[n], ticks at which frames begin.
        offset, size: int64[n], the bytes of each frame's packet.
        key: bool[n], whether decoding may begin there.
        shown: bool[n]; False for frames that are only decoded for others.
        last: int64[n], ticks for which frames are shown.

    Attributes:
        begin: int64[n], number of the key frame from which on packets have to be decoded for each frame.
        keys: int64[k], numbers of the key frames.
        order: int64[m], numbers of the frames in the order in which they are shown.
        times: int64[m], ticks at which these begin.
        end: tick at which the last one ends.
    """

    def __init__(
        self, setup: Setup, time_base: Fraction, orientation: int,
        pts: Int64s, offset: Int64s, size: Int64s, key: Bools, shown: Bools, last: Int64s,
    ) -> None:  # fmt: skip
        self.setup, self.time_base, self.orientation = setup, time_base, orientation
        self.pts, self.offset, self.size = pts, offset, size
        self.keys: Int64s = np.flatnonzero(key)
        group = np.cumsum(key) - 1
        if not len(self.keys) or self.keys[0]:
            raise NoTable("the first frame is not a key frame")
        # Frames that are shown before their key frame may refer to the group before it (open groups).
        leads = (pts < pts[self.keys[group]]) & (group > 0)
        self.begin: Int64s = self.keys[group - leads]
        visible = np.flatnonzero(shown)
        if not len(visible):
            raise NoTable("no frame is shown")
        self.order: Int64s = visible
        if len(visible) < len(pts) or (pts[1:] < pts[:-1]).any():
            self.order = visible[np.argsort(pts[visible], kind="stable")]
        self.times: Int64s = pts[self.order]
        if (self.times[1:] == self.times[:-1]).any():
            raise NoTable("frames share a time")  # the decoder knows which of them is shown first
        steps = [int(last[self.order[-1]]), *np.diff(self.times[-2:]).tolist()]
        self.end = int(self.times[-1]) + next((step for step in steps if step > 0), 0)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the table takes at most: two of its eight arrays are made when asked for."""
        return 8 * self.pts.nbytes

    def nearest(self, ticks: Int64s) -> Int64s:
        """Return the numbers of the frames whose begins are nearest to ticks, int64[m]; of two, the earlier one."""
        after = np.minimum(np.searchsorted(self.times, ticks), len(self.times) - 1)
        before = np.maximum(after - 1, 0)
        closer = np.abs(self.times[before] - ticks) <= np.abs(self.times[after] - ticks)
        return np.asarray(self.order[np.where(closer, before, after)])

    def on_screen(self, start: int, end: int | None) -> range:
        """Return the places in `order` of the frames that are on the screen from one tick to another, both included.

        There is at least one: before the first frame the first. None as the end is that of the file.
        """
        first, last = (
            len(self.times) - 1 if tick is None else max(int(np.searchsorted(self.times, tick, "right")) - 1, 0)
            for tick in (start, end)
        )
        return range(first, max(first, last) + 1)

    def extents(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the ranges of bytes that frames need, by their numbers, int64[m].

        Returns: the place in `numbers`, the begin and the end of each range, int64[k]. Packets that follow one another
            are one range.
        """
        first = self.begin[numbers]
        pieces = self._piece[numbers] - self._piece[first] + 1
        which = np.repeat(np.arange(len(numbers)), pieces)
        piece = self._piece[first][which] + np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begins = np.maximum(self._starts[piece], first[which])
        last = np.minimum(self._starts[piece + 1] - 1, numbers[which])
        return which, self.offset[begins], self.offset[last] + self.size[last]

    @cached_property
    def _piece(self) -> Int64s:
        """Number of the run of packets without gaps that each packet belongs to, int64[n]."""
        return np.append(0, np.cumsum(self.offset[1:] != self.offset[:-1] + self.size[:-1]))

    @cached_property
    def _starts(self) -> Int64s:
        """First packet of each of these runs, and the number of packets."""
        return np.append(np.flatnonzero(np.diff(self._piece, prepend=-1)), len(self._piece))

    def ranges(self, numbers: range) -> tuple[list[int], list[int]]:
        """Return the offsets and the sizes of the packets of consecutive frames in bytes."""
        part = slice(numbers.start, numbers.stop)
        return self.offset[part].tolist(), self.size[part].tolist()

    def nbytes_of(self, numbers: range) -> int:
        """Return the bytes of the packets of consecutive frames."""
        return int(self.size[numbers.start : numbers.stop].sum())

    def earlier(self, number: int) -> int | None:
        """Return the number of the key frame before the one with this number; None if it is the first."""
        at = int(np.searchsorted(self.keys, number))
        return int(self.keys[at - 1]) if at else None


def read_table(read: Read, size: int) -> Table:
    """Return the table of a file.

    Args:
        size: of the file in bytes.

    Raises:
        NoTable: see the module.
    """
    try:
        moov, end = _find_moov(read, size)
        return _table(moov, read, size, end)
    except (IndexError, KeyError, OverflowError, RecursionError, ValueError, struct.error) as error:
        raise NoTable(f"malformed: {type(error).__name__}") from None


def _boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield type, begin of the body and end of each box."""
    while at + 8 <= end:
        length, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if length == 1:
            length, head = struct.unpack_from(">Q", data, at + 8)[0], 16
        elif length == 0:
            length = end - at
        if length < head or at + length > end:
            raise NoTable(f"a box does not fit: {kind!r}")
        yield kind, at + head, at + length
        at += length


def _top_boxes(read: Read, size: int, at: int, at_once: int) -> Iterator[tuple[bytes, int, int, int, bytes]]:
    """Yield type, begin, begin of the body and end of each box of a file, and what was read of the body.

    The end of a ``moov`` or ``mdat`` box may lie after that of the file.

    Args:
        at_once: bytes that are read for a head.
    """
    known, known_at = b"", 0
    for _ in range(MOST_BOXES):
        if at + 8 > size:
            return
        if not known_at <= at <= at + 16 <= known_at + len(known):
            known, known_at = read(at, min(at + at_once, size)), at
        length, kind = struct.unpack_from(">I4s", known, at - known_at)
        head = 8
        if length == 1:
            length, head = struct.unpack_from(">Q", known, at - known_at + 8)[0], 16
        elif length == 0:
            length = size - at
        if length < head or (at + length > size and kind not in (b"moov", b"mdat")):
            raise NoTable(f"a box does not fit: {kind!r}")
        yield kind, at, at + head, at + length, known[at - known_at + head : at - known_at + length]
        at += length
    raise NoTable("many boxes")


def _find_moov(read: Read, size: int) -> tuple[bytes, int]:
    """Return the body of the ``moov`` box, and the end of the box."""
    for kind, _, begin, end, body in _top_boxes(read, size, 0, FIRST_READ):
        if end > size:
            raise Outside(f"the file is truncated: expected {end} bytes, found {size}")
        if kind == b"moov":
            return _whole(read, begin, end, body), end
    raise NoTable("no moov box")


def _whole(read: Read, begin: int, end: int, known: bytes) -> bytes:
    """Return the body of a box of which the beginning is known."""
    if end - begin > MOST_BYTES:
        raise NoTable("a very long moov or moof box")
    rest = begin + len(known)
    return known + read(rest, end) if rest < end else known


def _table(moov: bytes, read: Read, size: int, end: int) -> Table:
    movie: dict[bytes, tuple[int, int]] = {}
    video: dict[bytes, tuple[int, int]] | None = None
    for kind, begin, stop in _boxes(moov, 0, len(moov)):
        if kind == b"trak" and video is None:
            track = dict(_nested(moov, begin, stop))
            handler = moov[track[b"hdlr"][0] + 8 :][:4]
            if handler == b"vide":
                video = track
            elif handler != b"soun":
                entry = moov[track[b"stsd"][0] + 12 :][:4]
                if handler not in _NO_PICTURES or entry not in _NO_PICTURE_ENTRIES:
                    raise NoTable("another track comes first, which may have pictures")
        elif kind != b"trak":
            movie[kind] = begin, stop
    if video is None:
        raise NoTable("no video track")
    header = movie[b"mvhd"][0]
    if moov[header + (48 if moov[header] else 36) :][:36] != _IDENTITY:
        raise NoTable("the movie has a display matrix")
    movie_scale = struct.unpack_from(">I", moov, header + (20 if moov[header] else 12))[0]
    number, orientation = _track_header(moov, video[b"tkhd"][0])
    media = video[b"mdhd"][0]
    scale = struct.unpack_from(">I", moov, media + (20 if moov[media] else 12))[0]
    if not scale or not movie_scale:
        raise NoTable("no time scale")
    setup = _setup(moov, *video[b"stsd"])
    if b"mvex" in movie:
        if any(name in video and moov[video[name][0] + 8 :][:4] != bytes(4) for name in (b"stsz", b"stz2")):
            raise NoTable("frames in the moov box and in fragments")
        pts, offset, sizes, key, last = _fragments(moov, movie[b"mvex"], number, read, size, end)
    else:
        pts, offset, sizes, key, last = _samples(moov, video, size)
    if not len(pts):
        raise NoTable("no frames")
    if (offset < 0).any() or (sizes <= 0).any():
        raise NoTable("a frame lies outside the file")
    if (last_byte := int((offset + sizes).max())) > size:
        raise Outside(f"the file is truncated, or its table is wrong: expected {last_byte} bytes, found {size}")
    pts, shown = _edited(pts, _edits(moov, video), scale, movie_scale, fragmented=b"mvex" in movie)
    return Table(setup, Fraction(1, scale), orientation, pts, offset, sizes, key, shown, last)


_INNER = frozenset({b"mdia", b"minf", b"stbl", b"edts", b"dinf"})


def _nested(moov: bytes, begin: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    for kind, at, stop in _boxes(moov, begin, end):
        if kind in _INNER:
            yield from _nested(moov, at, stop)
        elif kind != b"hdlr" or moov[at + 8 : at + 12] != b"url ":  # QuickTime has a handler of the data as well
            yield kind, (at, stop)


def _track_header(moov: bytes, at: int) -> tuple[int, int]:
    """Return a track's number and the orientation of its frames."""
    number = struct.unpack_from(">I", moov, at + (20 if moov[at] else 12))[0]
    matrix = moov[at + (52 if moov[at] else 40) :][:36]
    if matrix == _IDENTITY:
        return number, 1
    orientation = of_matrix(np.frombuffer(matrix, ">i4").astype(np.int32).tobytes())
    if orientation is None:
        raise NoTable("the frames are turned by an angle that pixels cannot be turned by")
    return number, orientation


def _setup(moov: bytes, at: int, end: int) -> Setup:
    if struct.unpack_from(">I", moov, at + 4)[0] != 1:
        raise NoTable("several descriptions of samples")
    length, kind = struct.unpack_from(">I4s", moov, at + 8)
    if kind not in CODECS or at + 8 + length > end:
        raise NoTable(f"codec {kind!r}")
    codec, name = CODECS[kind]
    found = {box: (begin, stop) for box, begin, stop in _boxes(moov, at + 8 + _ENTRY, at + 8 + length)}
    begin, stop = found[name]
    colors = None
    if b"colr" in found:
        color = moov[found[b"colr"][0] : found[b"colr"][1]]
        if color[:4] in (b"nclx", b"nclc"):
            numbers = struct.unpack_from(">HHH", color, 4)
            colors = (*numbers, color[10] >> 7 if color[:4] == b"nclx" else 0)
    size: tuple[int, int] = struct.unpack_from(">HH", moov, at + 40)
    return Setup(codec, bytes(moov[begin:stop]), size, colors)


def _column(moov: bytes, box: tuple[int, int], skip: int, columns: int = 1, dtype: str = ">u4") -> Int64s:
    """Return the rows of a box as int64[n, columns]; their number comes before them."""
    count = struct.unpack_from(">I", moov, box[0] + skip - 4)[0]
    width = np.dtype(dtype).itemsize * columns
    if box[0] + skip + count * width > box[1]:
        raise NoTable("a table does not fit its box")
    return np.frombuffer(moov, dtype, count * columns, box[0] + skip).astype(np.int64).reshape(count, columns)


def _runs(rows: Int64s, count: int) -> Int64s:
    """Return values given as rows of count and value, int64[count]."""
    if int(rows[:, 0].sum()) != count:
        raise NoTable("tables disagree about the number of frames")
    return np.repeat(rows[:, 1], rows[:, 0])


def _signed(values: Any) -> Int64s:
    return np.asarray(values).astype(np.uint32).astype(np.int32).astype(np.int64)


def _samples(
    moov: bytes, boxes: dict[bytes, tuple[int, int]], size: int
) -> tuple[Int64s, Int64s, Int64s, Bools, Int64s]:
    """Return times, places, sizes, keys and lengths of the frames in a file without fragments."""
    if b"senc" in boxes or b"saiz" in boxes:
        raise NoTable("encrypted")
    at = boxes[b"stsz"][0]
    fixed, count = struct.unpack_from(">II", moov, at + 4)
    if count * max(fixed, 1) > size or count > MOST_FRAMES:
        raise NoTable("the frames do not fit the file")
    sizes = np.full(count, fixed, np.int64) if fixed else _column(moov, boxes[b"stsz"], 12)[:, 0]
    step = _runs(_column(moov, boxes[b"stts"], 8, 2), count)
    if int(step.max(initial=0)) >= 1 << 31:
        raise NoTable("a frame lasts for a negative time")
    pts = np.cumsum(step) - step
    if b"ctts" in boxes:
        pts += _signed(_runs(_column(moov, boxes[b"ctts"], 8, 2), count))
    key = np.ones(count, np.bool_)
    if b"stss" in boxes:
        key[:] = False
        key[_column(moov, boxes[b"stss"], 8)[:, 0] - 1] = True
    wide = b"co64" in boxes
    chunk = _column(moov, boxes[b"co64" if wide else b"stco"], 8, 1, ">u8" if wide else ">u4")[:, 0]
    stsc = _column(moov, boxes[b"stsc"], 8, 3)
    if not len(stsc) or stsc[0, 0] != 1 or (stsc[:, 2] != 1).any() or (np.diff(stsc[:, 0]) <= 0).any():
        raise NoTable("the table of chunks is not in order")
    each = np.repeat(stsc[:, 1], np.diff(np.append(stsc[:, 0], len(chunk) + 1)))
    if len(each) != len(chunk) or int(each.sum()) != count:
        raise NoTable("tables disagree about the number of frames")
    before = np.cumsum(sizes) - sizes
    owner = np.repeat(np.arange(len(chunk)), each)
    first = (np.cumsum(each) - each)[owner]
    return pts, chunk[owner] + before - before[first], sizes, key, step


def _edits(moov: bytes, boxes: dict[bytes, tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return length, begin and rate of each edit."""
    if b"elst" not in boxes:
        return []
    at, end = boxes[b"elst"]
    form = struct.Struct(">QqI" if moov[at] else ">IiI")
    count = struct.unpack_from(">I", moov, at + 4)[0]
    if at + 8 + count * form.size > end:
        raise NoTable("a table does not fit its box")
    return [form.unpack_from(moov, at + 8 + number * form.size) for number in range(min(count, 3))]


def _edited(
    pts: Int64s, edits: list[tuple[int, int, int]], scale: int, movie_scale: int, *, fragmented: bool
) -> tuple[Int64s, Bools]:
    """Return the times after the edit list, and which frames it shows.

    As FFmpeg does it: an empty edit delays the first one; the first shown frame appears at the begin of the edit. An
    edit of a fragmented file moves its frames and hides none.
    """
    shown = np.ones(len(pts), np.bool_)
    delay = 0
    if edits and edits[0][1] == -1:
        delay = (2 * edits[0][0] * scale + movie_scale) // (2 * movie_scale)
        edits = edits[1:] or [(0, 0, _FULL_RATE)]
    if not edits:
        return pts, shown
    length, start, rate = edits[0]
    if len(edits) > 1 or rate != _FULL_RATE or start < 0:
        raise NoTable("several edits")
    if fragmented:
        return pts - start + delay, shown
    if not length:
        raise NoTable("an edit without a length")
    shown = (pts >= start) & (pts < start + (2 * length * scale + movie_scale) // (2 * movie_scale))
    pts = pts - start + delay
    if shown.any():
        pts -= max(int(pts[shown].min()) - delay, 0)
    return pts, shown


def _fragments(
    moov: bytes, mvex: tuple[int, int], track: int, read: Read, size: int, at: int
) -> tuple[Int64s, Int64s, Int64s, Bools, Int64s]:
    """Return times, places, sizes, keys and lengths of the frames in fragments.

    Reads heads of boxes and ``moof`` bodies.
    """
    defaults: tuple[int, int, int] = (0, 0, 0)
    for kind, begin, _ in _boxes(moov, *mvex):
        if kind == b"trex" and struct.unpack_from(">I", moov, begin + 4)[0] == track:
            defaults = struct.unpack_from(">III", moov, begin + 12)
    out: list[tuple[Int64s, ...]] = []
    clock, fragments = 0, 0
    for kind, moof, begin, end, known in _top_boxes(read, size, at, 4096):
        if end > size:
            raise NoTable("it ends within a fragment, as a stream may")
        if kind == b"moof":
            fragments += 1
            if fragments > MOST_FRAGMENTS:
                raise NoTable("many fragments")
            body = _whole(read, begin, end, known)
            tracks = [(begin, stop) for box, begin, stop in _boxes(body, 0, len(body)) if box == b"traf"]
            for begin, stop in tracks:
                base = moof if begin == tracks[0][0] else None
                clock = _fragment(body, begin, stop, moof, base, track, defaults, clock, out)
    if not out:
        raise NoTable("no frames")
    pts, offset, sizes, key, lasts = (np.concatenate(column) for column in zip(*out, strict=True))
    return pts, offset, sizes, key.astype(np.bool_), lasts


def _fragment(
    body: bytes, begin: int, end: int, moof: int, base: int | None, track: int, defaults: tuple[int, int, int],
    clock: int, out: list[tuple[Int64s, ...]],
) -> int:  # fmt: skip
    """Add the frames of a ``traf`` box, and return the time after them.

    Args:
        base: from where offsets count if the box does not say; None: from the end of another track's frames.
    """
    duration, length, flags = defaults
    following: int | None = None
    for kind, at, stop in _boxes(body, begin, end):
        bits = int.from_bytes(body[at + 1 : at + 4], "big")
        if kind == b"senc":
            raise NoTable("encrypted")
        if kind == b"tfhd":
            if struct.unpack_from(">I", body, at + 4)[0] != track:
                return clock
            at += 8
            base = moof if bits & 0x20000 else base
            if bits & 0x1:
                base, at = struct.unpack_from(">Q", body, at)[0], at + 8
            at += 4 if bits & 0x2 else 0
            if bits & 0x8:
                duration, at = struct.unpack_from(">I", body, at)[0], at + 4
            if bits & 0x10:
                length, at = struct.unpack_from(">I", body, at)[0], at + 4
            if bits & 0x20:
                flags = struct.unpack_from(">I", body, at)[0]
        elif kind == b"tfdt":
            clock = struct.unpack_from(">Q" if body[at] else ">I", body, at + 4)[0]
        elif kind == b"trun":
            count, at = struct.unpack_from(">I", body, at + 4)[0], at + 8
            if base is None:
                raise NoTable("frames that follow those of another track")
            start, first = base if following is None else following, None
            if bits & 0x1:
                start, at = base + struct.unpack_from(">i", body, at)[0], at + 4
            if bits & 0x4:
                first, at = struct.unpack_from(">I", body, at)[0], at + 4
            columns = [bit for bit in (0x100, 0x200, 0x400, 0x800) if bits & bit]
            long = len(out) == MOST_BOXES or count + sum(len(part[0]) for part in out) > MOST_FRAMES
            if long or at + 4 * count * len(columns) > stop:
                raise NoTable("a table does not fit its box, or is very long")
            rows = np.frombuffer(body, ">u4", count * len(columns), at).astype(np.int64).reshape(count, len(columns))
            given = {bit: rows[:, number] for number, bit in enumerate(columns)}
            lasts = given.get(0x100, np.full(count, duration, np.int64))
            sizes = given.get(0x200, np.full(count, length, np.int64))
            marks = given.get(0x400, np.full(count, flags, np.int64)).copy()
            if first is not None and count:
                marks[0] = first
            shift = _signed(given[0x800]) if 0x800 in given else np.zeros(count, np.int64)
            ends = np.cumsum(lasts)
            places = start + np.cumsum(sizes) - sizes
            out.append((clock + ends - lasts + shift, places, sizes, (marks >> 16 & 1) == 0, lasts))
            clock += int(lasts.sum())
            following = start + int(sizes.sum())
    return clock
