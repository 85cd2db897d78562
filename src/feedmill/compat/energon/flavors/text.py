"""Energon's module of text samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    TextSample,
)

__all__ = [
    "TextSample",
]
