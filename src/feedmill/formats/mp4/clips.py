"""The frames of one file in the order in which they are shown, by its table.

Decoding continues from one clip to the next as long as no key frame lies between them. Packets are read in stretches up
to the last one of a clip. A decoder that shows frames in another order than it gets them may need a few packets after
that; before a key frame that none of them refers to, it is drained instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, BinaryIO, NamedTuple

from feedmill.formats.mp4.decoder import Decoder
from feedmill.formats.mp4.table import Int64s, Table, read_table

_AT_ONCE = 1 << 22
"""Bytes that are read at once."""
_BRIDGE = 32 << 10
"""Bytes between two packets, such as sound, that are rather read than skipped."""


class Missing(Exception):
    """A frame did not come whole."""


class Span(NamedTuple):
    """Times of the frames of a video.

    Attributes:
        first, last: Ticks at which the first and the last frame appear.
        end: Tick at which the last one disappears.
        frames: Number of frames; None if they were not counted.
    """

    first: int
    last: int
    end: int
    frames: int | None


class ClipReader:
    """Reader of the clips of a file. Not thread-safe.

    Args:
        file: the file, which `close` closes.
        size: of it in bytes.
        threads: of the decoder; 0 means one per core.

    Raises:
        NoTable: a container has to read the file.

    Attributes:
        time_base: seconds of a tick.
        orientation: of the frames, as the file's display matrix says.
    """

    def __init__(self, file: BinaryIO, size: int, threads: int = 1) -> None:
        self._file, self._threads = file, threads
        self.table: Table = read_table(self._read, size)
        self.time_base: Fraction = self.table.time_base
        self.orientation = self.table.orientation
        self._decoder: Decoder | None = None
        self._ready: dict[int, Any] = {}
        self._begin = self._next = 0
        self._data, self._data_at = b"", 0

    def close(self) -> None:
        """Close the file."""
        self._decoder, self._ready, self._data = None, {}, b""
        self._file.close()

    def _read(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(end - begin)

    @property
    def stated(self) -> tuple[Fraction | None, int | None]:
        """Return the frames per second, and no duration: `span` has the one that counts."""
        span = self.span()
        seconds = (span.end - span.first) * self.time_base
        return Fraction(len(self.table.times)) / seconds if seconds else None, None

    def ticks(self) -> Int64s:
        """Return the tick at which each frame begins, int64[n], in the order in which they are shown."""
        return self.table.times

    def span(self, *, count: bool = True) -> Span:  # noqa: ARG002
        """Return when the frames are shown. They are always counted."""
        times = self.table.times
        return Span(int(times[0]), int(times[-1]), self.table.end, len(times))

    def first(self) -> Any:
        """Return the first frame. Raises as `frames`."""
        return self._frame(0, self.table.offset[self.table.order[0]])

    def frames(self, start: int, end: int | None) -> Iterator[Any]:
        """Yield the frames on the screen from tick `start` to tick `end` (None: to the last).

        Raises:
            Missing: a frame does not come whole.
            Exception: whatever FFmpeg and reading raise.
        """
        places = self.table.on_screen(start, end)
        last = int(self.table.offset[self.table.order[places.start : places.stop]].max())
        for place in places:
            yield self._frame(place, last)

    def _frame(self, place: int, last: int) -> Any:
        """Return the frame at a place in the order of showing.

        Args:
            last: offset of the last packet that is wanted.
        """
        table = self.table
        number, time = int(table.order[place]), int(table.times[place])
        self._ready = {at: frame for at, frame in self._ready.items() if table.pts[at] >= time}
        try:
            if number not in self._ready and not self._continues(number):
                self._start(int(table.begin[number]))
            while number not in self._ready:
                self._step(time, last)
        except BaseException:
            self._decoder, self._ready = None, {}  # the next call begins again
            raise
        frame = self._ready[number]
        frame.pts, frame.time_base = time, self.time_base
        frame.duration = (int(table.times[place + 1]) if place + 1 < len(table.times) else table.end) - time
        return frame

    def _continues(self, number: int) -> bool:
        """Return whether a frame comes by decoding further, with no key frame to begin at in between."""
        if self._decoder is None:
            return False
        begins = self._begin <= self.table.begin[number] < self._next <= number
        return number in self._decoder.inside.values() or bool(begins)

    def _start(self, number: int) -> None:
        if self._decoder is None:
            self._decoder = Decoder(self.table.setup, self._threads)
        else:
            self._decoder.flush()
        self._begin = self._next = number

    def _step(self, time: int, last: int) -> None:
        """Decode the next packet; frames before a time are not wanted."""
        table, decoder, number = self.table, self._decoder, self._next
        assert decoder is not None
        count = len(table.pts)
        if number > self._begin and (number == count or self._is_closed(number)):
            self._ready.update(decoder.drain())
            self._begin = self._next = count  # nothing continues from here
            decoder.flush()
            return
        if number == count:
            raise Missing
        skip = bool(table.pts[number] < time)
        self._ready.update(decoder.feed(number, self._packet(number, last), skip=skip))
        self._next += 1

    def _is_closed(self, number: int) -> bool:
        """Return whether a packet is a key frame, and none after it refers to one before it."""
        begin = self.table.begin
        return bool(begin[number] == number and (number + 1 == len(begin) or begin[number + 1] >= number))

    def _packet(self, number: int, last: int) -> bytes:
        offsets, sizes = self.table.offset, self.table.size
        begin, size = int(offsets[number]), int(sizes[number])
        if not self._data_at <= begin <= begin + size <= self._data_at + len(self._data):
            end, following = begin + size, number + 1
            while following < len(offsets) and end <= offsets[following] <= min(end + _BRIDGE, last):
                stop = int(offsets[following] + sizes[following])
                if stop - begin > _AT_ONCE:
                    break
                end, following = stop, following + 1
            self._data, self._data_at = self._read(begin, end), begin
        at = begin - self._data_at
        return self._data[at : at + size]
