"""Decode wanted frames of files with tables, each group of pictures once, by a decoder that knows no container.

A decoder serves all files with the same `Setup`, so there is no file to open and to probe. Packets carry a tag in place
of their time, by which a decoded frame is known again. Between runs the decoder is drained and flushed: not doing so
before a picture that refers to no older one gains nothing, and HEVC then drops leading pictures of later groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from feedmill.formats.avfile import pyav
from feedmill.formats.mp4.table import Setup, Table

SKIPPING = frozenset({"h264", "hevc"})
"""Decoders that can leave out frames from one packet to the next. Others read the option when they are opened: libdav1d
(AV1) would leave out such frames for good (findings/pyav_av1_skip_frame.sh)."""
_DECODERS = {"av1": "libdav1d"}
_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
"""Types of the units that are parameter sets."""


class Run(NamedTuple):
    """Packets that are decoded in one go.

    Attributes:
        packets: their numbers.
        wanted: numbers of the frames to keep, sorted.
    """

    packets: range
    wanted: list[int]


def runs_of(table: Table, wanted: Sequence[int]) -> list[Run]:
    """Return what has to be decoded for frames, by their numbers: overlapping stretches become one."""
    runs: list[Run] = []
    for begin, number in sorted({(int(table.begin[number]), number) for number in wanted}):
        if runs and begin < runs[-1].packets.stop:  # by begin: a leading picture comes before the next group
            last = runs.pop()
            stop = max(last.packets.stop, number + 1)
            runs.append(Run(range(last.packets.start, stop), sorted({*last.wanted, number})))
        else:
            runs.append(Run(range(begin, number + 1), [number]))
    return runs


class Decoder:
    """Decoder of one `Setup`. Not thread-safe.

    Raises:
        MissingExtra: PyAV is not installed.
        Exception: whatever FFmpeg raises for a configuration.

    Args:
        threads: 0 for one per core; frames do not depend on it.

    Attributes:
        inside: tag -> number of the packets whose frames have not come out.
        is_reusable: whether it may decode packets of other files: False once a file has brought parameter sets of its
            own, since they would stay.
    """

    def __init__(self, setup: Setup, threads: int = 1) -> None:
        context = pyav().CodecContext.create(_DECODERS.get(setup.codec, setup.codec), "r")
        if setup.extradata:
            context.extradata = setup.extradata
        context.width, context.height = setup.size
        context.thread_type, context.thread_count = "NONE" if threads == 1 else "AUTO", threads
        if setup.colors is not None:
            primaries, transfer, matrix, full = setup.colors
            context.color_primaries, context.color_trc, context.colorspace = primaries, transfer, matrix
            context.color_range = 2 if full else 1
        self._context, self._setup = context, setup
        self._skips = False
        self._tag = 0
        self.inside: dict[int, int] = {}
        self.is_reusable = True

    def frames(self, run: Run, packets: Sequence[bytes]) -> Iterator[tuple[int, Any]]:
        """Yield number and frame of those that are wanted and come whole, in the order of the decoder.

        Args:
            packets: those of the run.

        Raises:
            Exception: whatever FFmpeg raises.
        """
        wanted = set(run.wanted)
        try:
            for number, data in zip(run.packets, packets, strict=True):
                self.is_reusable = self.is_reusable and not self._has_own_sets(data)
                yield from self.feed(number, data, skip=number not in wanted)
            yield from self.drain()
        finally:
            self.flush()

    def feed(self, number: int, data: bytes, *, skip: bool) -> Iterator[tuple[int, Any]]:
        """Decode a packet, and yield number and frame of those that come out whole and were not to be skipped.

        Args:
            skip: whether the packet's own frame is not wanted: it is only decoded if others may refer to it.

        Raises:
            Exception: whatever FFmpeg raises.
        """
        from av.packet import Packet

        if skip != self._skips and self._setup.codec in SKIPPING:
            self._skips = skip
            self._context.skip_frame = "NONREF" if skip else "DEFAULT"
        packet: Any = Packet(data)
        self._tag += 1
        packet.pts = packet.dts = self._tag
        if not skip:
            self.inside[self._tag] = number
        return self._known(self._context.decode(packet))

    def drain(self) -> Iterator[tuple[int, Any]]:
        """Yield the frames that are still in the decoder, which then needs a `flush`. Raises as `feed`."""
        return self._known(self._context.decode(None))

    def flush(self) -> None:
        """Forget all packets, so that decoding can begin at any key frame."""
        self._context.flush_buffers()
        self.inside.clear()

    def _known(self, frames: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for frame in frames:
            number = self.inside.pop(frame.pts, None)
            if number is not None and not frame.is_corrupt:
                yield number, frame

    def _has_own_sets(self, data: bytes) -> bool:
        """Return whether a packet holds parameter sets that the configuration does not have."""
        kinds, extradata = _SETS.get(self._setup.codec), self._setup.extradata
        if kinds is None:
            return False
        h264 = self._setup.codec == "h264"
        at = 4 if h264 else 21
        width = 1 + (extradata[at] & 3) if len(extradata) > at else 4
        at = 0
        while at + width < len(data):
            length = int.from_bytes(data[at : at + width], "big")
            kind = data[at + width] & 31 if h264 else data[at + width] >> 1 & 63
            if kind in kinds and data[at + width : at + width + length] not in extradata:
                return True
            at += width + length
        return False
