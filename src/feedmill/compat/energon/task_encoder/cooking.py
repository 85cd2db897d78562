"""Energon's module of cookers."""

from __future__ import annotations

from feedmill.compat.energon import (
    Cooker,
    basic_sample_keys,
    cooker,
)

__all__ = [
    "Cooker",
    "basic_sample_keys",
    "cooker",
]
