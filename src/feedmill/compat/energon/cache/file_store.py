"""Energon's module of file stores."""

from __future__ import annotations

from feedmill.compat.energon import (
    DecodeFileStore,
    SystemFileStore,
)

__all__ = [
    "DecodeFileStore",
    "SystemFileStore",
]
