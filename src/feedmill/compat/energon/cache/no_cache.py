"""Energon's module of the pool without a cache."""

from __future__ import annotations

from feedmill.compat.energon import (
    DirectLazy,
    NoCachePool,
)

__all__ = [
    "DirectLazy",
    "NoCachePool",
]
