"""A loader as an `IterableDataset`, for torch's `DataLoader` and torchdata's `StatefulDataLoader`.

Worker *w* of W makes the batches w, w + W, w + 2W, ... of the rank, and a `DataLoader` takes one batch of each worker
in turn. The loop therefore gets the batches of the `Loader` in the same order, for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from feedmill.errors import ConfigError
from feedmill.loading.progress import Progress, make_state
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.resuming.resume import Allowed

_MARK, _STATE, _LATER = "feedmill_torch", "feedmill_loader", "_steps_since_snapshot"
VERSION = 1
_AGAIN = "Make the dataset of a loader that is at its start, or load an earlier state."


class LoaderDataset(IterableDataset[Any]):  # type: ignore[misc]
    """The batches of a loader. Pass it to a `DataLoader` with ``batch_size=None``.

        dataset = loader.as_iterable_dataset()
        StatefulDataLoader(dataset, batch_size=None, num_workers=4)

    Each iteration starts where the loader was, as torch's own datasets do, or at the state that `load_state_dict`
    loaded.

    Args:
        loader: the `Loader` of this rank, which is above this module. Its position does not change.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._start = loader.position
        self._begin: Progress = loader.progress
        self._progress = self._begin
        self._resumed = False

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of this process.

        Raises:
            ConfigError: packs or groups with several workers, or as `Loader.__iter__`.
        """
        if not self._resumed:
            self._progress = self._shared(replace(self._begin))
        self._resumed = False
        batches: Iterator[Any] = self.loader.iterate(self._progress, _AGAIN)
        return batches

    def __len__(self) -> int:
        """Return the number of batches of the rank, over all workers. Raises TypeError if it is unknown."""
        return len(self.loader)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Return the state of this process: in a worker, that of its own batches. `StatefulDataLoader` collects it.

        Args:
            num_samples: return the state after this number of samples over all ranks instead, which Composer asks for.
            from_beginning: count them from where the loader was; False: from the state that was loaded.
        """
        if num_samples is not None:
            position = (self._start if from_beginning else self._begin.position) + num_samples
            return make_state(self.loader.plan, position, self.loader.seed)
        progress = self._progress
        share = {"skip": progress.skip, "workers": progress.every, "layout": progress.describe_layout()}
        if isinstance(progress.grid, Grid) and not progress.grid.borders:  # else some positions have no batch
            share["global_batch"] = progress.grid.global_batch
        return {_MARK: VERSION, **share, "loader": progress.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        """Resume from a state.

        Args:
            state: the state of a `Loader`, or of a `StatefulDataLoader`, also inside a larger state: the latest
                position in it counts, and iterations start there. The number of workers and ranks and the batch size
                may differ from the saved run's. Or a result of `state_dict`, as `StatefulDataLoader` loads it: the next
                iteration starts there, those after it where the loader was.

        Raises:
            ConfigError: there is no state in it, the state is of another plan, or a worker's state was saved with
                another number of workers, ranks or samples per batch.
        """
        if isinstance(state, Mapping) and _MARK in state:
            self._load_own(state)
            return
        found = list(_states_in(state, _STATE))
        if not found:
            raise ConfigError("there is no state of a feedmill loader in this", kind="bad-state")
        _check_in_order(list(_states_in(state, _MARK)))
        packed = [each for each in found if "windows" in each]
        latest = max(found, key=lambda each: int(each["position"]))
        self._begin = self._begin.resumed(packed or latest, Allowed())
        self._progress = replace(self._begin)
        self._resumed = False

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state after a number of batches from the start: for a `DataLoader` that saves no state itself.

        Raises:
            ConfigError: the loader packs or groups.
        """
        return self._begin.after(batches).state_dict()

    def _shared(self, progress: Any) -> Any:
        info = get_worker_info()
        return progress if info is None else progress.share(info.id, info.num_workers)

    def _load_own(self, state: Mapping[str, Any]) -> None:
        if state[_MARK] != VERSION:
            raise ConfigError("the state of the DataLoader's worker is of another release", kind="bad-state")
        now = self._shared(self._begin.resumed(state["loader"], Allowed()))
        saved = state["workers"], state["layout"]
        if max(now.every, saved[0]) > 1 and saved != (now.every, now.describe_layout()):
            raise ConfigError(
                f"the workers' states were saved with {saved[0]} workers and {saved[1]}, and are loaded with"
                f" {now.every} workers and {now.describe_layout()}",
                kind="bad-state",
                fix="Call dataset.load_state_dict(state) with the state of the DataLoader before you make a new one,"
                " instead of the DataLoader's load_state_dict.",
            )
        self._progress, self._resumed = replace(now, skip=state["skip"]), True


def _check_in_order(workers: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` if one worker is further than the order of batches allows, as with ``in_order=False``.

    The latest position would then lose batches of the others. Workers that have given nothing yet are at the beginning.
    """
    sizes = {worker.get("global_batch") for worker in workers}
    size = sizes.pop() if sizes else None
    if len(workers) < 2 or sizes or not isinstance(size, int):
        return  # by budgets, batches have no common size
    positions = sorted((int(worker["loader"]["position"]) for worker in workers), reverse=True)
    first, last = positions[-1], positions[-1] + -(-(positions[0] - positions[-1]) // size) * size
    expected = [positions[0], *(max(first, last - number * size) for number in range(1, len(positions)))]
    if positions != expected:
        raise ConfigError(
            f"the workers' states are at the positions {', '.join(f'{each:,}' for each in positions)}: their batches"
            " were not taken in order, so no position is that of all of them",
            kind="bad-state",
            fix="Resume with as many workers and the DataLoader's load_state_dict, and train without in_order=False.",
        )


def _states_in(state: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the states with a key in a nested state of any tool: those of loaders, or those of workers."""
    if isinstance(state, Mapping):
        if state.get(_LATER):
            raise ConfigError(
                f"the state was saved {state[_LATER]} steps after the workers' last snapshot",
                kind="bad-state",
                fix="Save with snapshot_every_n_steps=1, or load it with the same number of workers and ranks.",
            )
        if key in state:
            yield state
            return
        state = list(state.values())
    if isinstance(state, list | tuple):
        for part in state:
            yield from _states_in(part, key)
