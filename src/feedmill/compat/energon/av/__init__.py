"""Energon's module of audio and video."""

from __future__ import annotations

from feedmill.compat.energon import (
    AVData,
    AVDecoder,
)

__all__ = [
    "AVData",
    "AVDecoder",
]
