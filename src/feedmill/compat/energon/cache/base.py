"""Energon's module of file stores and cache pools."""

from __future__ import annotations

from feedmill.compat.energon import (
    CachePool,
    FileStore,
    Lazy,
    MockLazy,
    PrimaryFileStore,
)

__all__ = [
    "CachePool",
    "FileStore",
    "Lazy",
    "MockLazy",
    "PrimaryFileStore",
]
