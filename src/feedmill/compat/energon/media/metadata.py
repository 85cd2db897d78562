"""Energon's module of media metadata."""

from __future__ import annotations

from feedmill.compat.energon import (
    AVMetadata,
    ImageMetadata,
)

__all__ = [
    "AVMetadata",
    "ImageMetadata",
]
