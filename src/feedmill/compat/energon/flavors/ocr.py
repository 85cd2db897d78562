"""Energon's module of OCR samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    OCRSample,
)

__all__ = [
    "OCRSample",
]
