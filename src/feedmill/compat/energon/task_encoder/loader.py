"""Energon's module of dataset calls."""

from __future__ import annotations

from feedmill.compat.energon import (
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)

__all__ = [
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
]
