"""The exact sample orders of other tools, for runs that move to Feedmill midway.

See docs/internals/compatible_orders.md.

`made_whole` and `countable` are helpers for orders that must be computed as a whole, in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.nodes.repeat import too_long

if TYPE_CHECKING:
    from feedmill.formats.tokens.ds import file_order
    from feedmill.planning.orders.megatron import BlendedDataset, GptOrder, GptShuffle, samples_of, split_ranges
    from feedmill.planning.orders.modalities import ModalitiesSampler, sampler_indices
    from feedmill.planning.orders.nanoset import BlendableDataset, Nanoset, nanoset_index, normalized
    from feedmill.planning.orders.vla import (
        Batch,
        Cursor,
        Manifest,
        Window,
        mixed,
        read_manifest,
        select_window,
        shard_order,
        window_batches,
        worker_seed,
    )
    from feedmill.planning.orders.wids import wids_order


__all__ = [
    "Batch",
    "BlendableDataset",
    "BlendedDataset",
    "Cursor",
    "GptOrder",
    "GptShuffle",
    "Manifest",
    "ModalitiesSampler",
    "Nanoset",
    "Window",
    "file_order",
    "mixed",
    "nanoset_index",
    "normalized",
    "read_manifest",
    "sampler_indices",
    "samples_of",
    "select_window",
    "shard_order",
    "split_ranges",
    "wids_order",
    "window_batches",
    "worker_seed",
]

_MODULES = {
    "feedmill.formats.tokens.ds": ("file_order",),
    "feedmill.planning.orders.megatron": (
        "BlendedDataset",
        "GptOrder",
        "GptShuffle",
        "samples_of",
        "split_ranges",
    ),
    "feedmill.planning.orders.modalities": (
        "ModalitiesSampler",
        "sampler_indices",
    ),
    "feedmill.planning.orders.nanoset": (
        "BlendableDataset",
        "Nanoset",
        "nanoset_index",
        "normalized",
    ),
    "feedmill.planning.orders.vla": (
        "Batch",
        "Cursor",
        "Manifest",
        "Window",
        "mixed",
        "read_manifest",
        "select_window",
        "shard_order",
        "window_batches",
        "worker_seed",
    ),
    "feedmill.planning.orders.wids": ("wids_order",),
}
"""Module -> its names. They are imported when first used, because few plans use them."""

ORDERS_WITH_NODES = (
    "feedmill.planning.orders.megatron",
    "feedmill.planning.orders.modalities",
    "feedmill.planning.orders.nanoset",
)
"""Modules that define classes of nodes."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@contextmanager
def made_whole(samples: int) -> Iterator[None]:
    """Report running out of memory inside the block as a `ConfigError` about the order."""
    try:
        if samples >= 2**59:
            raise MemoryError  # numpy raises a different error for impossible sizes
        yield
    except MemoryError as error:
        size = samples * (4 if samples <= 2**32 else 8) / 1e9
        raise ConfigError(
            f"this order does not fit into memory: {samples:,} samples need {size:,.1f} GB and half as much again",
            kind="too-large",
            fix="Use a machine with more memory, or Feedmill's own order, which needs none.",
        ) from error


def countable(samples: int) -> int:
    """Return the number if it is a valid length of a plan.

    Raises:
        ConfigError: it exceeds 64 bits.
    """
    if samples > LONGEST:
        raise too_long(samples)
    return samples
