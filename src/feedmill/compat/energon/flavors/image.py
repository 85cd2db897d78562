"""Energon's module of image samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    ImageSample,
)

__all__ = [
    "ImageSample",
]
