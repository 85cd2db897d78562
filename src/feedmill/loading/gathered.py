"""Gather and scatter the states of all ranks over torch.distributed.

The loaders of `feedmill.compat.energon` use this to save one state for all ranks. States are sent as JSON text, so that
the state of another rank is never unpickled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def _distributed() -> Any:
    """Return torch.distributed if it is initialized, else None. If it was not imported, it is not initialized."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def gather(state: Any, to: int, group: Any = None) -> list[Any] | None:
    """Return the states of all ranks of a group, in rank order, on one rank of the world; None on the others.

    All ranks of the group must call it.

    Args:
        state: the state of this rank, as JSON data.
        to: rank of the world that gets the states.
        group: the process group; None for the world.
    """
    distributed = _distributed()
    if distributed is None:
        return [state]
    texts: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(texts, json.dumps(state), group=group)
    return [json.loads(text) for text in texts] if distributed.get_rank() == to else None


def scatter(states: Sequence[Any] | None, source: int, group: Any = None) -> list[Any] | None:
    """Return the states of rank `source` on all ranks of a group. All ranks of the group must call it.

    Args:
        states: the states; only the value on rank `source` is used.
        source: rank of the world that sends the states.
        group: the process group; None for the world.
    """
    distributed = _distributed()
    if distributed is None:
        return None if states is None else list(states)
    box: list[Any] = [json.dumps(states) if distributed.get_rank() == source else None]
    distributed.broadcast_object_list(box, src=source, group=group)
    received: list[Any] | None = json.loads(box[0])
    return received
