"""The exact sample orders of other tools, for runs that move to Feedmill midway. See docs/compatible_orders.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedmill.formats.tokens.ds import file_order
    from feedmill.planning.orders.megatron import BlendedDataset, GptOrder, GptShuffle, samples_of, split_ranges
    from feedmill.planning.orders.modalities import ModalitiesSampler, sampler_indices
    from feedmill.planning.orders.nanoset import BlendableDataset, Nanoset, nanoset_index, normalized
    from feedmill.planning.orders.vla import Cursor, Manifest, Window, read_manifest, select_window
    from feedmill.planning.orders.vla_batches import Batch, mixed, shard_order, window_batches, worker_seed
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
        "Cursor",
        "Manifest",
        "Window",
        "read_manifest",
        "select_window",
    ),
    "feedmill.planning.orders.vla_batches": (
        "Batch",
        "mixed",
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
