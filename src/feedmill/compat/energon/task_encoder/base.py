"""Energon's module of task encoders."""

from __future__ import annotations

from feedmill.compat.energon import (
    AugmentTaskEncoder,
    Batch,
    DefaultTaskEncoder,
    TaskEncoder,
    batch_list,
    batch_pad_stack,
    batch_stack,
    generic_batch,
    stateless,
)

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "DefaultTaskEncoder",
    "TaskEncoder",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "generic_batch",
    "stateless",
]
