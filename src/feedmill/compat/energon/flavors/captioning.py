"""Energon's module of captioning samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    CaptioningSample,
)

__all__ = [
    "CaptioningSample",
]
