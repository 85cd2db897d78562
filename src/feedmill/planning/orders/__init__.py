"""The exact sample orders of other tools, for runs that move to Feedmill midway. See docs/compatible_orders.md."""

from feedmill.formats.tokens.ds import file_order
from feedmill.planning.orders.modalities import ModalitiesSampler, sampler_indices
from feedmill.planning.orders.nanoset import BlendableDataset, Nanoset, nanoset_index, normalised
from feedmill.planning.orders.vla import Cursor, Manifest, Window, read_manifest, select_window
from feedmill.planning.orders.vla_batches import Batch, mixed, shard_order, window_batches, worker_seed
from feedmill.planning.orders.wids import wids_order

__all__ = [
    "Batch",
    "BlendableDataset",
    "Cursor",
    "Manifest",
    "ModalitiesSampler",
    "Nanoset",
    "Window",
    "file_order",
    "mixed",
    "nanoset_index",
    "normalised",
    "read_manifest",
    "sampler_indices",
    "select_window",
    "shard_order",
    "wids_order",
    "window_batches",
    "worker_seed",
]
