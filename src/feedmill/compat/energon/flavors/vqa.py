"""Energon's module of visual question samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    VQASample,
)

__all__ = [
    "VQASample",
]
