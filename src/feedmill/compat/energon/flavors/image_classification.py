"""Energon's module of image classification samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    ImageClassificationSample,
)

__all__ = [
    "ImageClassificationSample",
]
