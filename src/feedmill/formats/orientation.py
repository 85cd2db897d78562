"""Orientation of pictures and videos: how stored pixels are turned and mirrored to be upright.

It is a number as in EXIF: 1 upright, 2 mirrored, 3 upside down, 4 mirrored and upside down, 5 mirrored and turned,
6 turned (a quarter clockwise makes it upright), 7 mirrored and turned the other way, 8 turned the other way. The
display matrix of a video says the same, or another angle, which pixels cannot be turned by.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, did_you_mean

Orientation = Literal["apply", "stored"]
"""Whether decoded pixels are turned upright, or given as they are stored."""

_log = logging.getLogger("feedmill")

_OF_MATRIX = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}
_ALMOST = 0.02  # about one degree


def check_orientation(given: str) -> bool:
    """Return whether pixels are turned. Raises `ConfigError` for other values than those of `Orientation`."""
    known = get_args(Orientation)
    if given not in known:
        raise ConfigError(
            f"unknown orientation {given!r}{did_you_mean(given, known)}",
            kind="bad-option",
            fix="Use 'apply' for upright pixels, or 'stored' for pixels as they are stored.",
        )
    return given == "apply"


def turned(orientation: int) -> bool:
    """Return whether width and height are exchanged."""
    return orientation > 4


def upright(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Return stored pixels ``[..., H, W, C]`` turned upright, contiguous; the array itself if it is upright."""
    if orientation == 1:
        return pixels
    if turned(orientation):
        pixels = pixels.swapaxes(-3, -2)
    rows = slice(None, None, -1 if orientation in (3, 4, 7, 8) else None)
    columns = slice(None, None, -1 if orientation in (2, 3, 6, 7) else None)
    return np.ascontiguousarray(pixels[..., rows, columns, :])


def of_matrix(matrix: bytes) -> int | None:
    """Return the orientation of a display matrix, int32[3, 3]; None if it is not one of the eight."""
    numbers = np.frombuffer(matrix, np.int32)[[0, 1, 3, 4]].astype(np.float64)
    size = np.abs(numbers).max()
    if not size:
        return None
    whole = np.rint(numbers / size)
    return _OF_MATRIX.get(tuple(whole.astype(int).tolist())) if np.abs(numbers / size - whole).max() < _ALMOST else None


def orientation_of(frame: Any) -> int:
    """Return the orientation of a video frame of PyAV. Another angle than quarters is logged, and not applied."""
    from av.sidedata.sidedata import Type

    matrix = frame.side_data.get(Type.DISPLAYMATRIX)
    if matrix is None:
        return 1
    found = of_matrix(bytes(matrix))
    if found is None:
        a, b = np.frombuffer(bytes(matrix), np.int32)[:2].tolist()
        angle = round(math.degrees(-math.atan2(b, a)))
        _log.warning("a video states an angle of %s degrees, which is not applied: not a quarter turn", angle)
    return found or 1


def orientation_of_mp4(data: bytes) -> int:
    """Return the orientation that the header of an MP4 or QuickTime file states for its first video; 1 if none.

    Other containers state it in other ways: `orientation_of` tells it of their frames.
    """
    try:
        for movie in _boxes(data, b"moov", 0, len(data)):
            for track in _boxes(data, b"trak", *movie):
                handlers = [data[at + 8 : at + 12] for media in _boxes(data, b"mdia", *track)
                            for at, _ in _boxes(data, b"hdlr", *media)]  # fmt: skip
                for begin, _ in _boxes(data, b"tkhd", *track) if handlers == [b"vide"] else ():
                    at = begin + (52 if data[begin] else 40)
                    return of_matrix(np.frombuffer(data, ">i4", 9, at).astype(np.int32).tobytes()) or 1
    except (struct.error, IndexError, ValueError):
        pass  # truncated, or another format
    return 1


def _boxes(data: bytes, wanted: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the content of the boxes of a kind."""
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, at + 8), 16
        size = size or end - at
        if size < head:
            return
        if kind == wanted:
            yield at + head, min(at + size, end)
        at += size
