"""Energon's module of interleaved samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    InterleavedSample,
)

__all__ = [
    "InterleavedSample",
]
