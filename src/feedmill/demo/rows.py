"""Rows of tokens as loaded by a run: a hash per position, independent of the layout of the run."""

from __future__ import annotations

import contextlib
from typing import Any

import xxhash

from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from feedmill.samples.targets import with_targets


def load_rows(
    plan: Plan, *, until: int, batch_size: int, world_size: int = 1, state: dict[str, Any] | None = None
) -> tuple[dict[int, str], dict[str, Any]]:
    """Load every rank's batches from the state, or from position 0, to `until` or just beyond.

    Returns:
        Position -> hash of inputs and targets, and the state after the last step.
    """
    found: dict[int, str] = {}
    after: dict[str, Any] = {}
    for rank in range(world_size):
        with contextlib.closing(
            Loader(plan, batch_size, rank=rank, world_size=world_size, collate=with_targets, deal="contiguous")
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            while loader.position < until:
                first = loader.position + rank * batch_size
                batch = next(batches)
                rows = zip(batch["inputs"], batch["targets"], strict=True)
                found |= {
                    first + row: xxhash.xxh3_64_hexdigest(x.tobytes() + y.tobytes()) for row, (x, y) in enumerate(rows)
                }
            after = loader.state_dict()
    return found, after
