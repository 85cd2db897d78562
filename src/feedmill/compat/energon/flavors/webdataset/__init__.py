"""Energon's module of decoding."""

from __future__ import annotations

from feedmill.compat.energon import (
    SampleDecoder,
)

__all__ = [
    "SampleDecoder",
]
