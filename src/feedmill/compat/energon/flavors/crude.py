"""Energon's module of crude samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    CrudeSample,
)

__all__ = [
    "CrudeSample",
]
