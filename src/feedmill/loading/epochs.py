"""Iterate a loader in epochs: a fixed number of batches per iteration, or a whole finite plan.

Use it for trainers that iterate a loader once per epoch, and for validation. `feedmill.compat.energon` builds on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader

VERSION = 1


class Resumable(Protocol):
    """Loader that can be iterated in epochs: a `Loader`, or a composition of loaders with the same methods."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON data; see `Loader.state_dict`."""

    def load_state_dict(
        self, state: Any, *, allow_append: bool = False, allow_skip: bool = False, allow_change: bool = False
    ) -> None:
        """Resume from a state; see `Loader.load_state_dict`."""

    def close(self) -> None:
        """End workers and release files. Closing twice is allowed."""


class EpochLoader:
    """Iterates a loader epoch by epoch.

    Args:
        loader: the loader to iterate.
        length: batches per epoch; None for all batches of the plan.
        expected: value of `len` if the loader does not know its number of batches (hooks that skip or pack).
        restart: begin each epoch at the loader's start, as for validation. Otherwise each epoch resumes where the
            previous one ended.
        cycle: after the end of the plan, begin the next epoch at the loader's start. Without `cycle` and `restart`,
            there are no more batches after the end of the plan.

    Iterating again after leaving an epoch early resumes that epoch, unless `restart` is set.

    Raises:
        ConfigError: an epoch without batches.
    """

    def __init__(
        self,
        loader: Resumable,
        *,
        length: int | None = None,
        restart: bool = False,
        expected: int | None = None,
        cycle: bool = False,
    ) -> None:
        if length is not None and length < 1:
            raise ConfigError(f"an epoch has {length} batches: expected at least 1", fix="Give at least 1, or None.")
        self.loader, self.length, self.restart, self.expected = loader, length, restart, expected
        self.cycle = cycle
        self._start = loader.state_dict()
        self._batches: Iterator[Any] | None = None
        self._given = 0
        self._resumed = False

    def __iter__(self) -> Iterator[Any]:
        if self.restart and not self._resumed and (self._given or self._batches is not None):
            self.rewind()
        self._resumed = False
        return self._epoch(fresh=self.cycle)

    def _epoch(self, fresh: bool) -> Iterator[Any]:
        """Yield the rest of the epoch; if nothing is left and `fresh` is true, the first epoch of the next cycle."""
        if self._batches is None:
            if fresh and isinstance(self.loader, Loader) and self.loader.progress.ended:
                self.rewind()  # the previous epoch ended at the end of the plan
            self._batches = iter(self.loader)
        batches = self._batches
        while self.length is None or self._given < self.length:
            try:
                batch = next(batches)
            except StopIteration:
                fresh = fresh and self._given == 0
                self._ended()
                if fresh:  # the previous epoch ended at the end of the plan
                    yield from self._epoch(fresh=False)
                return
            except BaseException:
                self._batches = None
                raise
            self._given += 1
            yield batch
            fresh = False
            if self._batches is not batches:  # a state was loaded, or the loader closed or restarted, meanwhile
                return
        self._given = 0
        if self.restart:
            self._ended()

    def _ended(self) -> None:
        self._given = 0
        self._batches = None
        if self.restart or self.cycle:
            self.rewind()
        else:
            self.loader.close()

    def rewind(self) -> None:
        """Begin the next epoch at the start of the loader."""
        self._begin(self._start)

    def _begin(self, state: Any) -> None:
        self.loader.close()
        self._batches, self._given = None, 0
        self.loader.load_state_dict(state)

    def __len__(self) -> int:
        """Return the number of batches per epoch, an upper bound if hooks decide. Raises TypeError if unknown."""
        if isinstance(self.loader, Loader) and self.loader.plan.length is None and self.length is not None:
            return self.length
        try:
            batches = len(self.loader)
        except TypeError:
            if self.expected is None:
                raise
            batches = self.expected
        return batches if self.length is None else min(self.length, batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was yielded: the loader's state and the position in the epoch."""
        return {"feedmill_epochs": VERSION, "given": self._given, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], **options: bool) -> None:
        """Resume from a state; see `Loader.load_state_dict`, also for when the states of all ranks are required.

        Args:
            state: the result of `state_dict`, or the list of those of all ranks.
            options: options of `Loader.load_state_dict`.

        Raises:
            ConfigError: an invalid state, or a state of another plan.
        """
        states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
        if not states or not all(map(_is_valid_state, states)):
            raise ConfigError(
                "this is not the state of a loader in epochs",
                kind="bad-state",
                fix="Load the result of its state_dict(). States that Energon saved cannot be loaded.",
            )
        inner = [saved["loader"] for saved in states]
        plain = isinstance(self.loader, Loader) and "windows" not in inner[0]  # one state suffices
        is_list = isinstance(state, list | tuple) and not plain
        self.loader.load_state_dict(inner if is_list else inner[0], **options)
        self._batches, self._given, self._resumed = None, states[0]["given"], True

    def close(self) -> None:
        """End the running iteration and its threads or processes."""
        self._batches = None
        self.loader.close()


def _is_valid_state(state: Any) -> bool:
    """Return whether this is a complete state of an `EpochLoader` of this version."""
    if not isinstance(state, Mapping) or state.get("feedmill_epochs") != VERSION:
        return False
    given = state.get("given")
    return type(given) is int and given >= 0 and isinstance(state.get("loader"), Mapping)
