"""Energon's module of metadatasets."""

from __future__ import annotations

from feedmill.compat.energon import (
    TraversedDatasetReference,
    prepare_metadataset,
    traverse_metadataset,
)

__all__ = [
    "TraversedDatasetReference",
    "prepare_metadataset",
    "traverse_metadataset",
]
