"""Save the state of a loader with the model: in torch's distributed checkpoints, a trainer's, or a separate file.

A `Loader` has `state_dict` and `load_state_dict`, so any tool that saves such objects can save it directly if the
states of all ranks are equal. `Checkpoint` covers the other cases: it has one string for all ranks, even if packing
makes their states differ. It is saved once and can be loaded on any number of ranks.

The loaders of `feedmill.compat.energon` use `gather` and `scatter` to save one state for all ranks. They send states as
JSON text, so that the state of another rank is never unpickled.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from feedmill.storage import open_store

KEY = "feedmill"
_RANK = "{rank}"


class Checkpoint:
    """The state of one loader on all its ranks. Every rank creates one, and all ranks call each method together.

        checkpoint = Checkpoint(loader)
        torch.distributed.checkpoint.save({"model": model, "data": checkpoint}, checkpoint_id="step-100")

    Args:
        loader: the loader of this rank.
        gather: function from the state of this rank to the list of all ranks' states; called only if packs or groups
            make the states differ. Default: `all_gather_object` of torch.distributed, if it is initialized.
    """

    def __init__(self, loader: Loader, gather: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None) -> None:
        self.loader = loader
        self._gather = gather or _all_gather

    def state_dict(self, state: dict[str, Any] | None = None) -> dict[str, str]:
        """Return the state as one JSON string, the same on every rank.

        Its size is a few hundred bytes plus about 35 per source, and with packs a few hundred more per rank.

        Args:
            state: an earlier state of this rank's loader; None for the current one.
        """
        state = self.loader.state_dict() if state is None else state
        return {KEY: json.dumps(self._all(state) if "windows" in state else state)}

    def load_state_dict(self, state_dict: Mapping[str, Any], **options: Any) -> None:
        """Resume where the state was saved, on any number of ranks and with any workers and batch size.

        Args:
            state_dict: the result of `state_dict`, or of `Loader.state_dict`, or a list of the latter.
            options: options of `Loader.load_state_dict`.

        Raises:
            ConfigError: an invalid state, or a state of another plan.
        """
        text = state_dict.get(KEY) if isinstance(state_dict, Mapping) else None
        self.loader.load_state_dict(state_dict if text is None else _parsed(text), **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file. Rank 0 writes it; if the name has ``{rank}``, each rank writes its own.

        The file is published under its name once it is complete.

        Raises:
            ConfigError: states of ranks with packs or groups are missing.
            StorageError: the file cannot be written.
        """
        name, ranks = os.fspath(path), self.loader.ranks
        if _RANK in name:
            _write(name.replace(_RANK, str(ranks.rank)), json.dumps(self.loader.state_dict()))
            return
        text = self.state_dict()[KEY]  # on every rank: this may be a collective operation
        if ranks.rank == 0 and ranks.leader:
            _write(name, text)

    def load(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Load a file written by `save`, on any number of ranks; each rank reads the files that it needs.

        Raises:
            NotFound: the file, or the file of a rank, is missing.
            ConfigError: as `load_state_dict`.
        """
        name = os.fspath(path)
        first = _parsed(_read(name.replace(_RANK, "0")), name)
        windows = first.get("windows") if _RANK in name and isinstance(first, Mapping) else None
        if not isinstance(windows, Mapping) or not isinstance(windows.get("ranks"), int):
            self.loader.load_state_dict(first, **options)
            return
        others = range(1, windows["ranks"])
        rest = [_parsed(_read(name.replace(_RANK, str(rank))), name) for rank in others]
        self.loader.load_state_dict([first, *rest], **options)

    def _all(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the state of each rank, in rank order; of several processes with the same rank, that of one."""
        ranks = self.loader.ranks
        states = self._gather(state) if ranks.world_size > 1 else [state]
        by_rank = {state_of_rank["windows"]["rank"]: state_of_rank for state_of_rank in states}
        if len(by_rank) != ranks.world_size:
            raise ConfigError(
                f"states are missing: expected one of each of {ranks.world_size} ranks, because each has packs in"
                f" progress, and found {len(by_rank)}",
                kind="bad-state",
                fix="Initialize torch.distributed, give gather=, or save each rank's state: save('state-{rank}.json').",
            )
        first, *rest = (by_rank[rank] for rank in sorted(by_rank))
        # All ranks have the same plan, so the first state keeps its outline and `read_states` adds it to the others.
        return [first, *({k: v for k, v in other.items() if k not in ("tree", "sources")} for other in rest)]


def _all_gather(state: dict[str, Any]) -> list[dict[str, Any]]:
    distributed = _distributed()
    if distributed is None:
        return [state]
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, state)
    return states


def _parsed(text: Any, file: str | None = None) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(
            "this is not the state of a feedmill loader: expected JSON",
            file=file,
            kind="bad-state",
            fix="Load the result of Checkpoint.state_dict(), or a file written by save().",
        ) from None


def _write(name: str, text: str) -> None:
    folder, _, last = name.rpartition("/")
    open_store(folder or ("/" if name.startswith("/") else ".")).write_bytes(last, text.encode())


def _read(name: str) -> bytes:
    folder, _, last = name.rpartition("/")
    return open_store(folder or ("/" if name.startswith("/") else ".")).read(last)


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
