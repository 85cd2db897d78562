"""Functions that join batches, for `MixBatchDataset`."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

__all__ = ["concat_pad", "generic_concat", "homogeneous_concat_mix"]


def concat_pad(batch: list[Any]) -> Any:
    """Return batches as one tensor: concatenated in the first dimension, and padded with zeros in the others.

    Args:
        batch: tensors with the same number of dimensions.
    """
    shape = [max(sizes) for sizes in zip(*(value.shape[1:] for value in batch), strict=True)]
    out = batch[0].new_zeros((sum(len(value) for value in batch), *shape))
    first = 0
    for value in batch:
        out[(slice(first, first + len(value)), *(slice(size) for size in value.shape[1:]))] = value
        first += len(value)
    return out


def generic_concat(batch: list[Any]) -> Any:
    """Return batches as one, by the type of the first one.

    Tensors are concatenated by `concat_pad`; dicts, dataclasses and named tuples field by field. Other values
    become a list.
    """
    first = batch[0]
    if isinstance(first, torch.Tensor):
        return concat_pad(batch)
    if isinstance(first, dict):
        return {name: generic_concat([value[name] for value in batch]) for name in first}
    names = None
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first)]
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        names = list(first._fields)
    if names is None:
        return batch
    return type(first)(**{name: generic_concat([getattr(value, name) for value in batch]) for name in names})


def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Return batches of one type as one batch, see `generic_concat`.

    Raises:
        TypeError: the types differ.
    """
    kinds = {type(sample).__name__ for sample in samples}
    if len(kinds) > 1:
        raise TypeError(f"batches of different types cannot be joined: {', '.join(sorted(kinds))}")
    return generic_concat(samples)
