"""Energon's transforms: several geometric transforms of torchvision as one."""

from __future__ import annotations

from feedmill.compat.energon.transforms.mappers import (  # first: its error names torchvision if that is missing
    CenterCropMapper,
    RandomCropMapper,
    RandomHorizontalFlipMapper,
    RandomPerspectiveMapper,
    RandomResizedCropMapper,
    RandomRotationMapper,
    RandomVerticalFlipMapper,
    ResizeMapper,
    TransformMapper,
)

from feedmill.compat.energon.transforms.custom import CustomTransform  # isort: skip
from feedmill.compat.energon.transforms.merge import MergeTransform  # isort: skip

__all__ = [
    "CenterCropMapper",
    "CustomTransform",
    "MergeTransform",
    "RandomCropMapper",
    "RandomHorizontalFlipMapper",
    "RandomPerspectiveMapper",
    "RandomResizedCropMapper",
    "RandomRotationMapper",
    "RandomVerticalFlipMapper",
    "ResizeMapper",
    "TransformMapper",
]
