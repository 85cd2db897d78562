"""Base class of transforms of your own for `MergeTransform`."""

from __future__ import annotations

from feedmill.compat.energon.transforms.mappers import TransformMapper

__all__ = ["CustomTransform"]


class CustomTransform(TransformMapper):
    """Base of transforms of your own: override `apply_transform`."""

    def __init__(self) -> None:
        """Do nothing: there is no transform of torchvision behind it."""
