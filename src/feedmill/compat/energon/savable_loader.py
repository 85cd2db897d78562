"""Energon's module of loaders."""

from __future__ import annotations

from feedmill.compat.energon import (
    BasicDataLoader,
    SavableDataLoader,
)

__all__ = [
    "BasicDataLoader",
    "SavableDataLoader",
]
