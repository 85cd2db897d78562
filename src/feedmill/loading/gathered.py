"""States of all ranks in one place, and back, over torch.distributed; as text, so that nothing is unpickled of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def _distributed() -> Any:
    """torch.distributed where it is set up, else None: what was not imported was not set up either."""
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
    """Return the states that one rank of the world has, on all ranks of a group. All of them call it."""
    distributed = _distributed()
    if distributed is None:
        return None if states is None else list(states)
    box: list[Any] = [json.dumps(states) if distributed.get_rank() == source else None]
    distributed.broadcast_object_list(box, src=source, group=group)
    found: list[Any] | None = json.loads(box[0])
    return found
