"""Energon's module of multiple-choice samples."""

from __future__ import annotations

from feedmill.compat.energon import (
    MultiChoiceVQASample,
)

__all__ = [
    "MultiChoiceVQASample",
]
