"""Geometric transforms of torchvision as matrices.

Each transform is a 3 x 3 matrix from positions (x, y, 1) in its input to those in its output. A `TransformMapper` draws
the random numbers of its transform in torchvision's order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from feedmill.errors import ConfigError, MissingExtra

try:
    from torchvision import transforms as T
except ImportError:
    raise MissingExtra("transforms need torchvision", fix="Install it with: pip install torchvision") from None

__all__ = [
    "MAPPERS",
    "CenterCropMapper",
    "RandomCropMapper",
    "RandomHorizontalFlipMapper",
    "RandomPerspectiveMapper",
    "RandomResizedCropMapper",
    "RandomRotationMapper",
    "RandomVerticalFlipMapper",
    "ResizeMapper",
    "TransformMapper",
]

Matrix = npt.NDArray[np.float64]
Size = npt.NDArray[np.int64]
"""Height and width."""


class TransformMapper(ABC):
    """A transform as a matrix.

    Attributes:
        source_type: class of torchvision that the mapper is for; subclasses of it have the same mapper.
    """

    source_type: ClassVar[Any] = None
    transform: Any = None

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        """Return the matrix followed by this transform, the size of the output, and the parameters that were drawn.

        Args:
            matrix: the transforms before this one.
            dst_size: height and width of this one's input.
        """

    def fill(self) -> Any:
        """Return the color outside of the image; None for any."""
        return getattr(self.transform, "fill", None)

    def interpolation(self) -> Any:
        """Return the interpolation; None for any."""
        return getattr(self.transform, "interpolation", None)

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """Return the matrix of a shift to the right and down."""
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Return the matrix of a scaling."""
        return np.diag([x, y, 1.0])

    @staticmethod
    def shear(x: float, y: float) -> Matrix:
        """Return the matrix of a shearing."""
        return np.array([[1, x, 0], [y, 1, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Return the matrix of a counterclockwise rotation on the screen, around the origin, in radians."""
        cosine, sine = np.cos(angle), np.sin(angle)
        return np.array([[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]])

    @staticmethod
    def hflip() -> Matrix:
        """Return the matrix that negates x."""
        return TransformMapper.scale(-1, 1)

    @staticmethod
    def vflip() -> Matrix:
        """Return the matrix that negates y."""
        return TransformMapper.scale(1, -1)


class ResizeMapper(TransformMapper):
    """`Resize`."""

    source_type = T.Resize

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        size = self.transform.size
        sizes = [size] if isinstance(size, int) else list(size)
        height, width = map(int, dst_size)
        if len(sizes) == 1:
            short, long = min(height, width), max(height, width)
            new_short, new_long = sizes[0], int(sizes[0] * long / short)
            limit = self.transform.max_size
            if limit is not None and new_long > limit:
                new_short, new_long = int(limit * new_short / new_long), limit
            sizes = [new_short, new_long] if height <= width else [new_long, new_short]
        resized = self.scale(sizes[1] / width, sizes[0] / height) @ matrix
        return resized, np.array(sizes, np.int64), ("Resize", sizes)


class RandomResizedCropMapper(TransformMapper):
    """`RandomResizedCrop`."""

    source_type = T.RandomResizedCrop

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        drawn = self.transform.get_params(_of_size(dst_size), self.transform.scale, self.transform.ratio)
        top, left, height, width = drawn
        out = np.array(self.transform.size, np.int64)
        scaling = self.scale(out[1] / width, out[0] / height)
        return scaling @ self.translate(-left, -top) @ matrix, out, ("RandomResizedCrop", drawn)


class RandomHorizontalFlipMapper(TransformMapper):
    """`RandomHorizontalFlip`."""

    source_type = T.RandomHorizontalFlip

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        flips = bool(torch.rand(1) < self.transform.p)
        flipped = self.translate(dst_size[1], 0) @ self.hflip() @ matrix if flips else matrix
        return flipped, dst_size, ("RandomHorizontalFlip", flips)


class RandomVerticalFlipMapper(TransformMapper):
    """`RandomVerticalFlip`."""

    source_type = T.RandomVerticalFlip

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        flips = bool(torch.rand(1) < self.transform.p)
        flipped = self.translate(0, dst_size[0]) @ self.vflip() @ matrix if flips else matrix
        return flipped, dst_size, ("RandomVerticalFlip", flips)


class RandomRotationMapper(TransformMapper):
    """`RandomRotation` around the center."""

    source_type = T.RandomRotation

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        if self.transform.center is not None:
            raise ConfigError("a rotation around a point cannot be merged", fix="Omit its center.")
        degrees = self.transform.get_params(self.transform.degrees)
        height, width = map(int, dst_size)
        rotation = self.rotate(np.radians(degrees)) @ self.translate(-width / 2, -height / 2)
        if self.transform.expand:
            # Pillow's size of the result: that of all pixels that the rotated image touches.
            corners = np.array([[0, width, width, 0], [0, 0, height, height], [1, 1, 1, 1]])
            x, y, _ = self.translate(width / 2, height / 2) @ rotation @ corners
            width, height = (int(np.ceil(ends.max()) - np.floor(ends.min())) for ends in (x, y))
        rotated = self.translate(width / 2, height / 2) @ rotation @ matrix
        return rotated, np.array([height, width], np.int64), ("RandomRotation", degrees)


class RandomCropMapper(TransformMapper):
    """`RandomCrop`."""

    source_type = T.RandomCrop

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        if self.transform.padding is not None or self.transform.padding_mode != "constant":
            raise ConfigError(
                "a crop with padding, or one that is not constant, cannot be merged", fix="Use pad_if_needed."
            )
        wanted = np.array(self.transform.size, np.int64)
        margin = np.maximum(wanted - dst_size, 0) if self.transform.pad_if_needed else np.zeros(2, np.int64)
        top, left, height, width = self.transform.get_params(_of_size(dst_size + 2 * margin), tuple(wanted.tolist()))
        cropped = self.translate(int(margin[1]) - left, int(margin[0]) - top) @ matrix
        return cropped, np.array([height, width], np.int64), ("RandomCrop", (left, top, height, width))


class CenterCropMapper(TransformMapper):
    """`CenterCrop`, which pads small images."""

    source_type = T.CenterCrop

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        size = self.transform.size
        sizes = [int(size)] * 2 if not isinstance(size, list | tuple) else [int(one) for one in size]
        wanted = [sizes[0], sizes[-1]]
        # torchvision rounds the margin of a pad down, and that of a crop to the even number.
        pairs = zip(map(int, dst_size), wanted, strict=True)
        down, right = ((out - given) // 2 if out > given else -round((given - out) / 2) for given, out in pairs)
        return self.translate(right, down) @ matrix, np.array(wanted, np.int64), ("CenterCrop", (down, right, *wanted))


class RandomPerspectiveMapper(TransformMapper):
    """`RandomPerspective`."""

    source_type = T.RandomPerspective

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        start = end = None
        if torch.rand(1) < self.transform.p:
            height, width = map(int, dst_size)
            start, end = self.transform.get_params(width, height, self.transform.distortion_scale)
            matrix = _homography(start, end) @ matrix
        return matrix, dst_size, ("RandomPerspective", start, end)


MAPPERS: tuple[type[TransformMapper], ...] = (
    ResizeMapper,
    RandomResizedCropMapper,
    RandomHorizontalFlipMapper,
    RandomVerticalFlipMapper,
    RandomRotationMapper,
    RandomCropMapper,
    CenterCropMapper,
    RandomPerspectiveMapper,
)


def _of_size(size: Size) -> torch.Tensor:
    """Return an image without content: torchvision's functions need it to know its size."""
    return torch.empty((1, int(size[0]), int(size[1])), device="meta")


def _homography(start: list[list[int]], end: list[list[int]]) -> Matrix:
    """Return the matrix that maps four points (x, y) to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solution = np.linalg.solve(np.array(rows, np.float64), np.array(values, np.float64))
    return np.append(solution, 1.0).reshape(3, 3)
