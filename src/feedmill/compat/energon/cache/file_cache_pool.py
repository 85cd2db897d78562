"""Energon's module of the cache pool."""

from __future__ import annotations

from feedmill.compat.energon import (
    FileCacheLazy,
    FileStoreCachePool,
)

__all__ = [
    "FileCacheLazy",
    "FileStoreCachePool",
]
