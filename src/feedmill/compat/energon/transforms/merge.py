"""Several geometric transforms as one: `MergeTransform` resamples each image once.

The result is that of the single transforms, but for the rounding of pixels between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchvision.transforms.functional import InterpolationMode, pil_modes_mapping

from feedmill.compat.energon.transforms.mappers import MAPPERS, Matrix, Size, TransformMapper
from feedmill.errors import ConfigError

__all__ = ["MergeTransform"]

_GRID_MODES = {
    InterpolationMode.NEAREST: "nearest",
    InterpolationMode.BILINEAR: "bilinear",
    InterpolationMode.BICUBIC: "bicubic",
}


class MergeTransform(torch.nn.Module):  # type: ignore[misc]
    """Apply several transforms to an image, resampling it once.

    Args:
        transforms: transforms of torchvision, or `CustomTransform`.

    Raises:
        ConfigError: a transform is not supported, or their colors or interpolations differ.
    """

    def __init__(self, transforms: list[Any]) -> None:
        super().__init__()
        self.transforms = [_mapper(transform) for transform in transforms]
        self.fill_value = _common("fill", [mapper.fill() for mapper in self.transforms])
        mode = _common("interpolation", [mapper.interpolation() for mapper in self.transforms])
        self.interpolation = InterpolationMode.BILINEAR if mode is None else mode

    def forward(self, image: Any) -> Any:
        """Return the transformed image.

        Args:
            image: an image of Pillow, or a float tensor ``[channels, height, width]``.
        """
        is_tensor = isinstance(image, torch.Tensor)
        size = np.array(image.shape[-2:] if is_tensor else (image.height, image.width), np.int64)
        matrix: Matrix = np.eye(3)
        for mapper in self.transforms:
            matrix, size, _ = mapper.apply_transform(matrix, size)
        backward: Matrix = np.linalg.inv(matrix).astype(np.float64)
        backward /= backward[2, 2]
        return self._resample(image, backward, size) if is_tensor else self._transform(image, backward, size)

    def _transform(self, image: Any, backward: Matrix, size: Size) -> Any:
        from PIL.Image import Transform

        fill = self.fill_value
        color = (fill,) * len(image.getbands()) if isinstance(fill, int | float) else fill
        is_affine = np.allclose(backward[2, :2], 0)
        kind, count = (Transform.AFFINE, 6) if is_affine else (Transform.PERSPECTIVE, 8)
        coefficients = backward.flatten()[:count].tolist()
        extent = (int(size[1]), int(size[0]))
        return image.transform(extent, kind, coefficients, pil_modes_mapping[self.interpolation], fillcolor=color)

    def _resample(self, image: torch.Tensor, backward: Matrix, size: Size) -> torch.Tensor:
        if self.interpolation not in _GRID_MODES or self.fill_value not in (None, 0):
            raise ConfigError(
                f"tensors cannot be transformed with {self.interpolation} and the color {self.fill_value}",
                fix="Use nearest, bilinear or bicubic, and black.",
            )
        x, y = np.meshgrid(np.arange(size[1]) + 0.5, np.arange(size[0]) + 0.5)
        positions = np.stack([x, y, np.ones_like(x)], -1) @ backward.T
        extent = np.array(image.shape[:-3:-1])
        grid = torch.as_tensor(2 * positions[..., :2] / positions[..., 2:] / extent - 1).to(image)
        mode = _GRID_MODES[self.interpolation]
        return torch.nn.functional.grid_sample(image[None], grid[None], mode, "zeros", align_corners=False)[0]


def _mapper(transform: Any) -> TransformMapper:
    if isinstance(transform, TransformMapper):
        return transform
    for mapper in MAPPERS:
        if isinstance(transform, mapper.source_type):
            return mapper(transform)
    names = ", ".join(mapper.source_type.__name__ for mapper in MAPPERS)
    raise ConfigError(f"{type(transform).__name__} cannot be merged", fix=f"Use {names} or a CustomTransform.")


def _common(name: str, values: list[Any]) -> Any:
    """Return the value that all transforms with one have; None if none has one."""
    given = [value for value in values if value is not None]
    if any(value != given[0] for value in given):
        raise ConfigError(f"the transforms differ in {name}: {given}", fix=f"Give all of them the same {name}.")
    return given[0] if given else None
