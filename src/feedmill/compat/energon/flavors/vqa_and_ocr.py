"""Energon's module of visual question samples with text."""

from __future__ import annotations

from feedmill.compat.energon import (
    VQAOCRSample,
)

__all__ = [
    "VQAOCRSample",
]
