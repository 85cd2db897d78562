"""Gather and scatter the states of all ranks over torch.distributed; as text, so that no state is unpickled."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def _distributed() -> Any:
    """Return torch.distributed if it is initialized, else None. If it was not imported, it is not initialized."""
    found = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None


def gather(state: Any, to: int, group: Any = None) -> list[Any] | None:
    """Return the states of all ranks of a group, in rank order, on one rank of the world; None on the others.

    All ranks of the group call it.
    """
    distributed = _distributed()
    if distributed is None:
        return [state]
    texts: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(texts, json.dumps(state), group=group)
    return [json.loads(text) for text in texts] if distributed.get_rank() == to else None


def scatter(states: Sequence[Any] | None, source: int, group: Any = None) -> list[Any] | None:
    """Return the states held by one rank of the world, on all ranks of a group. All ranks of the group call it."""
    distributed = _distributed()
    if distributed is None:
        return None if states is None else list(states)
    box: list[Any] = [json.dumps(states) if distributed.get_rank() == source else None]
    distributed.broadcast_object_list(box, src=source, group=group)
    found: list[Any] | None = json.loads(box[0])
    return found
