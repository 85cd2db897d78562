"""Read audio samples by time.

A clip holds the samples ``[round(start * rate), round(end * rate))`` of the file, as far as they exist. It equals the
same slice of the whole file decoded from its beginning. To get there, decoding starts early enough for codecs that
carry state from frame to frame, and coarse container timestamps (Matroska counts milliseconds) are snapped to the grid
of the codec's frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.avfile import ffmpeg_error

_PREROLL = Fraction(3, 10)
"""Seconds decoded before a clip: MP3 depends on up to ten earlier frames, Opus needs 80 ms."""

Samples = npt.NDArray[Any]


class AudioReader:
    """Reader of the first audio stream of a container.

    Args:
        open_container: Opens the file at its beginning.
    """

    def __init__(self, open_container: Callable[[], Any]) -> None:
        self._open = open_container
        self.container: Any = None
        self._grid: tuple[int, int] | None = None
        self.stream: Any
        self._rewind()
        self.rate: int = self.stream.sample_rate
        if not self.rate:
            raise _no_audio("the audio has no sample rate")

    def close(self) -> None:
        """Close the container."""
        self.container.close()

    def clip(self, start: float, end: float) -> tuple[Samples, float, float]:
        """Return one clip with its start and end times.

        Args:
            start, end: Seconds; `end` may be infinite.

        Returns:
            The samples ``[channels, n]`` in the file's own type, the time of the first sample, and the time at which
            the last one ends (both in seconds).
        """
        first = max(_sample(start, self.rate), 0)
        last = None if end == float("inf") else max(_sample(end, self.rate), first)
        for again in (False, True):
            if again:
                self._rewind()
            else:
                self._seek(first)
            blocks = self._blocks(last)
            found = next(blocks, None)
            if found is None or found[0] <= max(first - int(_PREROLL * self.rate) // 2, self.origin) or again:
                break  # otherwise the seek went past the target
        held: list[Samples] = []
        at = base = found[0] if found is not None else first
        while found is not None:
            held.append(found[1])
            at += found[1].shape[1]
            found = next(blocks, None)
        joined = np.concatenate(held, axis=1) if held else self._nothing()
        low = min(max(first - base, 0), joined.shape[1])
        high = joined.shape[1] if last is None else min(max(last - base, low), joined.shape[1])
        return np.ascontiguousarray(joined[:, low:high]), (base + low) / self.rate, (base + high) / self.rate

    @property
    def origin(self) -> int:
        """The number of the first sample, as given by the header."""
        return _sample((self.stream.start_time or 0) * self.stream.time_base, self.rate)

    def _blocks(self, last: int | None) -> Iterator[tuple[int, Samples]]:
        """Decode frames from the current position up to the sample `last`: number of the first sample, and samples."""
        at: int | None = None
        self._fresh = False
        for frame in self.container.decode(self.stream):
            if at is None:
                at = self._sample_number(frame)
            if last is not None and at >= last:
                return
            samples = _array(frame)
            yield at, samples
            at += samples.shape[1]

    def _sample_number(self, frame: Any) -> int:
        """Return the number of a frame's first sample, corrected if the container's timestamps are coarser."""
        if frame.pts is None:
            return self.origin
        number = _sample(frame.pts * frame.time_base, self.rate)
        slack = int(frame.time_base * self.rate) + 1
        if slack < 2:
            return number
        if self._grid is None:
            self._grid = self._find_grid()
        begin, size = self._grid
        end = number + int(frame.samples)  # after a seek some decoders drop the beginning of the first frame
        nearest = round((end - begin) / size) * size + begin
        return number + (nearest - end if abs(nearest - end) <= slack else 0)

    def _find_grid(self) -> tuple[int, int]:
        """Return the number of a frame's first sample, and samples per frame. The first frame may be shorter."""
        with self._open() as container:
            first, *others = list(islice(container.decode(audio=0), 3)) or [None]
        if first is None or first.pts is None or len({frame.samples for frame in others}) != 1:
            return 0, 1
        return _sample(first.pts * first.time_base, self.rate) + first.samples, others[0].samples

    def _seek(self, first: int) -> None:
        """Seek far enough before a sample.

        Near the beginning the file is reopened instead, since a seek skips the codec's priming samples.
        """
        target = Fraction(first, self.rate) - _PREROLL
        if target <= self.origin / Fraction(self.rate):
            if not self._fresh:
                self._rewind()
            return
        try:
            self.container.seek(int(target / self.stream.time_base), stream=self.stream, backward=True)
            self._fresh = False
        except ffmpeg_error():
            self._rewind()  # short files of some formats (FLAC) do not support seeking

    def _rewind(self) -> None:
        if self.container is not None:
            self.container.close()
        self.container = self._open()
        self._fresh = True
        if not self.container.streams.audio:
            self.container.close()
            raise _no_audio("the file has no audio stream")
        self.stream = self.container.streams.audio[0]

    def _nothing(self) -> Samples:
        kinds = {"u8": np.uint8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "dbl": np.float64}
        kind = kinds.get(self.stream.format.name.removesuffix("p"), np.float32)
        return np.zeros((self.stream.channels, 0), kind)


def _array(frame: Any) -> Samples:
    samples: Samples = frame.to_ndarray()
    if frame.format.is_planar:
        return samples
    return samples.reshape(frame.samples, frame.layout.nb_channels).T


def _sample(seconds: float | Fraction, rate: int) -> int:
    """Return the number of the sample nearest to a time; halves round up."""
    return int((Fraction(seconds) * rate + Fraction(1, 2)) // 1)


def _no_audio(what: str) -> DataError:
    return DataError(what, kind="bad-media", fix="Replace the file or skip the sample.")
