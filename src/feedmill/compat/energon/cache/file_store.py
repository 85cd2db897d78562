"""Energon's module of file stores."""

from __future__ import annotations

from feedmill.compat.energon import (
    DecodeFileStore,
    JsonlFileStore,
    SystemFileStore,
    WebdatasetFileStore,
)

__all__ = [
    "DecodeFileStore",
    "JsonlFileStore",
    "SystemFileStore",
    "WebdatasetFileStore",
]
