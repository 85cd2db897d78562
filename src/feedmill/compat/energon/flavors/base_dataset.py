"""Energon's module of the base sample type."""

from __future__ import annotations

from feedmill.compat.energon import (
    Sample,
)

__all__ = [
    "Sample",
]
