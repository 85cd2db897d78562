"""The state of a loader after the batches that were used, for trainers that take batches before they train on them.

A loader's own state is that after the last batch it yielded. A trainer that looks one batch ahead, to know whether it
is the last, would lose this batch at a resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader
from feedmill.planning.dealing.grid import Grid

MOST_AHEAD = 256


def batches_left(loader: Loader) -> int:
    """Return the number of batches of this rank to the end of the plan. Raises TypeError if it is unknown."""
    total, grid = len(loader), loader.layout.grid
    assert isinstance(grid, Grid), "loaders by budget have no length"
    return total - grid.started_at(loader.position).first_number


def check_length(loader: Loader, batches: int, trainer: str, option: str) -> None:
    """Raise `ConfigError` if a plan ends before a trainer that ends by its own number of batches."""
    try:
        left = batches_left(loader)
    except TypeError:  # it never ends
        return
    if left < batches:
        raise ConfigError(
            f"the plan ends after {left:,} more batches, and {trainer} trains on {batches:,}",
            kind="too-few-samples",
            fix=f"Raise 'epochs' or 'samples' in the recipe, or lower {option}.",
        )


class TrackedBatches:
    """An iterable over the batches of a loader that remembers the positions after the last ones.

    Args:
        loader: the loader of this rank.

    Attributes:
        count: number of batches that were taken since the loader was made or a state was loaded.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self.count = loader, 0
        self._after = deque([loader.progress], maxlen=MOST_AHEAD)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.count += 1
            self._after.append(self.loader.progress)
            yield batch

    def checkpoint(self, used: int | None = None) -> dict[str, str]:
        """Return the state after the first `used` batches, the same on every rank; None for all that were taken.

        All ranks must call it together, as for `Checkpoint.state_dict`.

        Raises:
            ConfigError: the trainer has taken more than 256 batches ahead.
        """
        ahead = 0 if used is None else self.count - used
        if not 0 <= ahead < len(self._after):
            raise ConfigError(
                f"the state after {used} of {self.count} batches is unknown: the last {len(self._after) - 1} are kept",
                kind="bad-state",
                fix="Take fewer batches ahead of training.",
            )
        return Checkpoint(self.loader).state_dict(self._after[-1 - ahead].state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `checkpoint`, on any number of ranks and with any batch size."""
        Checkpoint(self.loader).load_state_dict(state)
        self.count, self._after = 0, deque([self.loader.progress], maxlen=MOST_AHEAD)
