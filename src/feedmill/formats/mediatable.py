"""Sizes of all media of a dataset in columns: one row for each image, video and clip, without reading any of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.formats.offsets import Int64s
from feedmill.formats.orientation import turned

KINDS = ("image", "video", "audio")
UNKNOWN = -1
"""A size that the index does not have, or that cannot be one (0, negative, or beyond `_MOST`)."""
_MOST = 2**31 - 1


@dataclass(frozen=True)
class MediaTable:
    """Media of a dataset, sorted by sample and part. 50 bytes a medium.

    Attributes:
        offsets: int64[samples + 1], the media of sample `i` are rows ``offsets[i]`` to ``offsets[i + 1]``.
        parts: names of parts, such as ``jpg``; `part` says which of them each medium is.
        part: int32[n].
        kind: uint8[n], index into `KINDS`. A video with sound is a video; it has `samples` and `rate` too.
        width, height: int64[n], pixels as stored; `UNKNOWN` also for sound.
        orientation: uint8[n], how these are still to be turned, see `feedmill.formats.orientation`; 1 is upright.
        frames: int64[n], frames of a video, counted or by duration and rate, as `prepare-media` has them.
        fps: float64[n], frames a second; NaN if unknown.
        samples, rate: int64[n], samples of a channel of sound, and samples a second.
    """

    offsets: Int64s
    parts: tuple[str, ...]
    part: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    width: Int64s
    height: Int64s
    orientation: npt.NDArray[np.uint8]
    frames: Int64s
    fps: npt.NDArray[np.float64]
    samples: Int64s
    rate: Int64s

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def upright(self) -> tuple[Int64s, Int64s]:
        """Return width and height of the upright media, int64[n] both."""
        sideways = np.isin(self.orientation, [number for number in range(9) if turned(number)])
        return np.where(sideways, self.height, self.width), np.where(sideways, self.width, self.height)

    @property
    def sample(self) -> Int64s:
        """Return the sample of each medium, int64[n]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def where(self, keep: npt.NDArray[np.bool_]) -> MediaTable:
        """Return the media for which `keep`, bool[n], is true; samples without media remain."""
        offsets = np.concatenate([[0], np.cumsum(keep)])[self.offsets]
        return replace(self, offsets=offsets, **{name: getattr(self, name)[keep] for name in _COLUMNS})

    def select(self, numbers: Int64s) -> MediaTable:
        """Return the media of samples by number, in that order; a sample may occur twice."""
        starts, counts = self.offsets[:-1][numbers], np.diff(self.offsets)[numbers]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], counts)
        return replace(self, offsets=offsets, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def unknown(self) -> dict[str, Int64s]:
        """Return reason -> int64[n], rows of media whose size is unknown."""
        visual, video, sound = self.kind < 2, self.kind == 1, self.kind == 2
        reasons = {
            "width and height": visual & ((self.width < 1) | (self.height < 1)),
            "number of frames": video & (self.frames < 1),
            "frames a second": video & np.isnan(self.fps),
            "number of samples": sound & (self.samples < 1),
        }
        return {reason: np.flatnonzero(rows) for reason, rows in reasons.items() if rows.any()}

    @property
    def digest(self) -> str:
        """Return a hash of all columns."""
        digest = xxhash.xxh3_128("\0".join(self.parts).encode())
        for name in ("offsets", *_COLUMNS):
            digest.update(np.ascontiguousarray(getattr(self, name)).data)
        return digest.hexdigest()


_COLUMNS = tuple(field.name for field in fields(MediaTable) if field.name not in ("offsets", "parts"))


def table_of(
    sample: Int64s, part: list[str], kind: npt.NDArray[np.uint8], numbers: npt.NDArray[np.float64], samples: int
) -> MediaTable:
    """Return a table of media in any order.

    Args:
        sample: int64[n], the sample of each medium.
        part: n names of parts.
        kind: uint8[n], index into `KINDS`.
        numbers: float64[n, 7], width, height, orientation, frames, fps, samples, rate; NaN if unknown.
        samples: number of samples of the dataset.
    """
    names = sorted(set(part))
    code = {name: number for number, name in enumerate(names)}
    codes = np.fromiter((code[name] for name in part), np.int32, len(part))
    order = np.lexsort((codes, sample))
    numbers = numbers[order]
    with np.errstate(invalid="ignore"):
        size = (numbers >= 1) & (numbers <= _MOST)
        whole = np.where(size, numbers, UNKNOWN).astype(np.int64)
        known = (numbers[:, 2] >= 1) & (numbers[:, 2] <= 8)
        fps = np.where((numbers[:, 4] > 0) & (numbers[:, 4] <= _MOST), numbers[:, 4], np.nan)
    return MediaTable(
        offsets=np.concatenate([[0], np.cumsum(np.bincount(sample, minlength=samples))]).astype(np.int64),
        parts=tuple(names),
        part=codes[order],
        kind=kind[order],
        width=whole[:, 0],
        height=whole[:, 1],
        orientation=np.where(known, numbers[:, 2], 1).astype(np.uint8),
        frames=whole[:, 3],
        fps=fps,
        samples=whole[:, 5],
        rate=whole[:, 6],
    )
