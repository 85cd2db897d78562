"""Energon's module of video question samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    VidQASample,
)

__all__ = [
    "VidQASample",
]
