"""Objects in images as their samples store them: masks, and the fields of a `DetectionSample` from its parts.

Sources: the run-length encoding and the rasterization of polygons are those of COCO (``maskApi.c`` of pycocotools);
the conventions of EXIF are in `feedmill.formats.orientation`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.orientation import turned

Bitmap = npt.NDArray[np.bool_]
Segment = list[list[float]] | dict[str, Any]
"""A mask as COCO writes it: polygons ``[x, y, x, y, ...]``, or runs ``{"size": [height, width], "counts": ...}``."""
OBJECTS = ("boxes", "labels", "label_names", "ids", "areas", "crowd", "masks", "keypoints", "attributes")
"""Fields with a value for each object."""

_LONGEST = 1 << 21
"""Pixels around a polygon: its edges are walked in fifths of them."""
_UPSAMPLED = 5
"""Steps of a pixel in which COCO walks along the edges of polygons."""
_MOST_PIXELS = 178_956_970
"""Pillow's limit of pixels per image, for masks: runs of a few bytes can declare gigabytes of them."""


class Masks(Sequence[Bitmap]):
    """The masks of the objects of one image, decoded when asked for.

    ``masks[i]`` is bool[height, width], and `bitmaps` has all of them. An object without a mask has no pixels.

    Attributes:
        segments: the masks as they are stored, in the size before all transforms; None for an object without one.
        size: height and width of the masks.
    """

    __slots__ = ("_columns", "_rows", "_stored", "_transposed", "segments", "size")

    def __init__(self, segments: Sequence[Segment | None], size: tuple[int, int]) -> None:
        self.segments = list(segments)
        self.size = self._stored = (int(size[0]), int(size[1]))
        self._transposed = False
        # Which stored row and column each one of the masks shows: any chain of transforms is one pair of indices.
        self._rows: npt.NDArray[np.int64] | None = None
        self._columns: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: Any) -> Any:
        """Return one mask, bool[height, width]; of a slice or an array of numbers, these `Masks`."""
        if not isinstance(index, int | np.integer):
            chosen = np.arange(len(self))[index].tolist()
            return self._as([self.segments[number] for number in chosen])
        segment = self.segments[index]
        if segment is None:
            return np.zeros(self.size, bool)
        bitmap = decode_mask(segment, *self._stored)
        bitmap = bitmap.T if self._transposed else bitmap
        bitmap = bitmap if self._rows is None else bitmap[self._rows]
        return np.ascontiguousarray(bitmap if self._columns is None else bitmap[:, self._columns])

    def __repr__(self) -> str:
        return f"Masks({len(self)} of {self.size[1]} x {self.size[0]})"

    def bitmaps(self) -> Bitmap:
        """Return all masks: bool[n, height, width]."""
        out = np.zeros((len(self), *self.size), bool)
        for number in range(len(self)):
            out[number] = self[number]
        return out

    def as_json(self) -> list[Segment | None]:
        """Return the masks as COCO writes them: as they were stored, or after transforms as runs."""
        if not self._transposed and self._rows is None and self._columns is None:
            return self.segments
        return [None if each is None else as_runs(self[number]) for number, each in enumerate(self.segments)]

    def _as(self, segments: list[Segment | None]) -> Masks:
        made = Masks(segments, self._stored)
        made.size, made._transposed, made._rows, made._columns = self.size, self._transposed, self._rows, self._columns
        return made

    def moved(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Masks:
        """Return masks whose pixel ``[y, x]`` is that of these masks at ``[rows[y], columns[x]]``."""
        made = self._as(self.segments)
        made._rows = rows if self._rows is None else self._rows[rows]
        made._columns = columns if self._columns is None else self._columns[columns]
        made.size = (len(rows), len(columns))
        return made

    def transposed(self) -> Masks:
        """Return the masks with rows and columns exchanged."""
        made = self._as(self.segments)
        made._rows, made._columns, made._transposed = self._columns, self._rows, not self._transposed
        made.size = (self.size[1], self.size[0])
        return made


def decode_mask(segment: Any, height: int, width: int) -> Bitmap:
    """Return a mask of COCO as bool[height, width]: polygons, or runs, compressed or not.

    Raises `DataError` if it is neither, or its runs are of another size.
    """
    if isinstance(segment, Mapping):
        return np.ascontiguousarray(_of_runs(runs_of(segment, height, width), height))
    if not isinstance(segment, list | tuple):
        raise bad_mask(f"expected polygons or runs, found {type(segment).__name__}")
    bitmap = np.zeros((height, width), bool)
    for polygon in segment:
        column, row = _crossings(polygon_of(polygon), height, width)
        if not len(column):
            continue
        left, top, right, bottom = int(column.min()), int(row.min()), int(column.max()) + 1, int(row.max()) + 1
        if (np.bincount(column - left) & 1).any():  # a run reaches from one column into the next
            edges = np.sort(column * height + row)
            bitmap |= _of_runs(np.diff(edges, prepend=0, append=height * width), height)
            continue
        changes = np.zeros((bottom - top, right - left), np.uint8)
        np.bitwise_xor.at(changes.reshape(-1), (row - top) * (right - left) + column - left, 1)
        np.bitwise_xor.accumulate(changes, axis=0, out=changes)
        bottom = min(bottom, height)
        bitmap[top:bottom, left:right] |= changes[: bottom - top].view(bool)
    return bitmap


def _of_runs(runs: npt.NDArray[np.int64], height: int) -> Bitmap:
    """Return a mask of runs, of zeros and ones in turn, which go down the columns."""
    ones = np.zeros(len(runs), bool)
    ones[1::2] = True
    return np.repeat(ones, runs).reshape(-1, height).T


def as_runs(bitmap: Bitmap) -> Segment:
    """Return a mask as COCO's uncompressed runs."""
    flat = bitmap.T.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    ends = np.concatenate([[0] * (1 + bool(flat[:1].any())), edges, [flat.size]])
    return {"size": list(bitmap.shape), "counts": np.diff(ends).tolist()}


def bad_mask(why: str) -> DataError:
    """Return the error of a mask."""
    return DataError(f"this is no mask of COCO: {why}", kind="bad-part", fix="Correct the mask, or drop the object.")


def runs_of(segment: Mapping[str, Any], height: int, width: int) -> npt.NDArray[np.int64]:
    """Return the lengths of the runs of a mask, of zeros and ones in turn. Raises `DataError`."""
    size, counts = segment.get("size"), segment.get("counts")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise bad_mask(f"its size is {size}, expected {[height, width]}")
    if height * width > _MOST_PIXELS:
        raise bad_mask(f"{height * width:,} pixels are too many")
    if isinstance(counts, bytes | str):
        runs = _unpacked(counts.encode("ascii", "replace") if isinstance(counts, str) else counts)
    elif isinstance(counts, list | tuple) and all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
        runs = np.array(counts, np.int64)
    else:
        raise bad_mask("its counts are neither text nor whole numbers")
    if len(runs) and (runs.min() < 0 or runs.max() > height * width):
        raise bad_mask("a run has a negative length, or is longer than the mask")
    if int(runs.sum()) != height * width:
        raise bad_mask(f"its runs have {int(runs.sum()):,} pixels, expected {height * width:,}")
    return runs


def _unpacked(text: bytes) -> npt.NDArray[np.int64]:
    """Return the runs of compressed counts.

    Each number has 5 bits a character, from 48 on, the lowest first; the sixth bit says that more follow, and the
    fifth of the last one is the sign. From the fourth on, a number is the difference to the one two before it.
    """
    digits = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(digits) or digits.min() < 0 or digits.max() > 63 or digits[-1] & 32:
        raise bad_mask("its counts are not compressed runs")
    ends = np.flatnonzero(digits & 32 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 12:
        raise bad_mask("its counts are not compressed runs")
    places = np.arange(len(digits)) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((digits & 31) << (5 * places), starts)
    numbers -= np.where(digits[ends] & 16, np.int64(1) << (5 * lengths), 0)
    for first in (1, 2):  # sums of differences, of runs of zeros and of ones
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers


def polygon_of(points: Any) -> npt.NDArray[np.float64]:
    """Return the corners of a polygon, float64[k, 2]. Raises `DataError` if it has fewer than three."""
    try:
        flat = np.array(points, np.float64)
    except (TypeError, ValueError, OverflowError):
        flat = np.zeros(0)
    if flat.ndim != 1 or len(flat) < 6 or len(flat) % 2 or not (np.abs(flat) < 1e7).all():
        raise bad_mask("a polygon has three or more pairs of numbers")
    corners = flat.reshape(-1, 2)
    if np.abs(np.diff(corners, axis=0, append=corners[:1])).max(axis=1).sum() > _LONGEST:
        raise bad_mask(f"a polygon is longer than {_LONGEST:,} pixels around")
    return corners


Numbers = npt.NDArray[np.int64]


def _crossings(corners: npt.NDArray[np.float64], height: int, width: int) -> tuple[Numbers, Numbers]:
    """Return columns and rows of the pixels at which a polygon begins or ends; a row can be `height`, past the column.

    As COCO does, it walks along the edges in fifths of pixels, and takes the points where they cross the center of a
    column.
    """
    first = (_UPSAMPLED * corners + 0.5).astype(np.int64)  # toward zero
    last = np.concatenate([first[1:], first[:1]])
    delta = np.abs(last - first)
    steep = delta[:, 1] > delta[:, 0]
    back = np.where(steep, first[:, 1] > last[:, 1], first[:, 0] > last[:, 0])
    low, high = np.where(back[:, None], last, first), np.where(back[:, None], first, last)
    steps = delta.max(axis=1)
    slope = np.where(steep, high[:, 0] - low[:, 0], high[:, 1] - low[:, 1]) / np.maximum(steps, 1)
    counts = steps + 1
    edge = np.repeat(np.arange(len(first)), counts)
    at = np.arange(len(edge)) - (np.cumsum(counts) - counts)[edge]
    at = np.where(back[edge], steps[edge] - at, at)
    x = np.where(steep[edge], (low[:, 0][edge] + slope[edge] * at + 0.5).astype(np.int64), low[:, 0][edge] + at)
    moves = np.flatnonzero(x[1:] != x[:-1])
    column = (np.where(x[moves + 1] < x[moves], x[moves + 1], x[moves + 1] - 1) + 0.5) / _UPSAMPLED - 0.5
    inside = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    moves = moves[inside]

    def y(points: Numbers) -> Numbers:
        edges = edge[points]
        across = (low[:, 1][edges] + slope[edges] * at[points] + 0.5).astype(np.int64)
        found: Numbers = np.where(steep[edges], low[:, 1][edges] + at[points], across)
        return found

    row = np.ceil(np.clip((np.minimum(y(moves + 1), y(moves)) + 0.5) / _UPSAMPLED - 0.5, 0, height))
    return column[inside].astype(np.int64), row.astype(np.int64)


def of_parts(cls: type[Any], orientation: str | None, fields: Mapping[str, Any]) -> Any:
    """Return a `DetectionSample` of decoded parts, see `DetectionSample.of_parts`."""
    made = dict(fields)
    try:
        count, given = len(made["boxes"]), made["size"]
        size = given if isinstance(given, Mapping) else dict(zip(("height", "width"), given, strict=True))
        made["size"] = (int(size["height"]), int(size["width"]))
        made["boxes"] = _array(made["boxes"], np.float32, (count, 4))
        made["labels"] = _array(made["labels"], np.int64, (count,))
        if made.get("areas") is not None:
            made["areas"] = _array(made["areas"], np.float64, (count,))
        if made.get("crowd") is not None:
            made["crowd"] = _array(made["crowd"], np.bool_, (count,))
        if (ids := made.get("ids")) is not None and all(type(one) is int and abs(one) < 1 << 63 for one in ids):
            made["ids"] = _array(ids, np.int64, (count,))
        if made.get("keypoints") is not None:
            points, names = made["keypoints"], made.get("keypoint_names") or made.get("keypoint_flip") or ()
            made["keypoints"] = _array(points, np.float32, (count, len(points[0]) if count else len(names), 3))
        if made.get("masks") is not None:
            made["masks"] = Masks(made["masks"], made["size"])
        odd = [name for name in OBJECTS if made.get(name) is not None and len(made[name]) != count]
        if odd:
            raise ValueError(f"{len(made[odd[0]])} {odd[0]} of {count} boxes")
        turn = size.get(orientation or "", 1)
        if turn not in range(1, 9):
            raise ValueError(f"no orientation {turn!r}")
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(
            f"the annotations are not those of a DetectionSample: {error}",
            record=str(fields.get("__key__", "")) or None,
            kind="bad-part",
            fix="Correct the part that the field map names, or import the dataset again.",
        ) from None
    return _turned(cls(**made), int(turn))


def _array(values: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    array = np.array(values, dtype)
    if array.size == 0 and 0 in shape:
        return array.reshape(shape)
    if array.shape != shape:
        raise ValueError(f"an array of shape {list(array.shape)}, expected {list(shape)}")
    return array


def _turned(sample: Any, orientation: int) -> Any:
    """Return a sample whose objects, but not the image, are turned as `feedmill.formats.orientation.upright` does."""
    if orientation == 1:
        return sample
    if turned(orientation):
        changes: dict[str, Any] = {"size": sample.size[::-1], "boxes": sample.boxes[:, [1, 0, 3, 2]]}
        if sample.keypoints is not None:
            changes["keypoints"] = sample.keypoints[:, :, [1, 0, 2]]
        if sample.masks is not None:
            changes["masks"] = sample.masks.transposed()
        sample = dataclasses.replace(sample, **changes)
    for vertical, values in ((False, (2, 3, 6, 7)), (True, (3, 4, 7, 8))):
        if orientation in values:
            sample = mirrored(sample, vertical)
    return sample


def mirrored(sample: Any, vertical: bool) -> Any:
    """Return a sample whose objects are mirrored; keypoints keep their numbers."""
    axis = int(vertical)
    length = sample.size[1 - axis]
    boxes = sample.boxes.copy()
    boxes[:, axis], boxes[:, axis + 2] = length - sample.boxes[:, axis + 2], length - sample.boxes[:, axis]
    changes: dict[str, Any] = {"boxes": boxes}
    if sample.keypoints is not None:
        points = sample.keypoints.copy()
        points[..., axis] = length - 1 - points[..., axis]
        changes["keypoints"] = blanked(points)
    if sample.masks is not None:
        rows, columns = (np.arange(each) for each in sample.size)
        changes["masks"] = sample.masks.moved(*((rows[::-1], columns) if vertical else (rows, columns[::-1])))
    return dataclasses.replace(sample, **changes)


def blanked(points: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Set keypoints that are not labeled to 0, 0, as COCO has them."""
    points[points[..., 2] == 0] = 0
    return points
