"""Energon's module of interleaved samples with similarities."""

from __future__ import annotations

from feedmill.compat.energon import (
    SimilarityInterleavedSample,
)

__all__ = [
    "SimilarityInterleavedSample",
]
