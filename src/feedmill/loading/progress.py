"""Position of a loader: saved in its state, and advanced batch by batch by an iteration.

It covers both kinds of loaders: those of plain batches, whose position is a number, and those of packs or groups, whose
position is a `Cursor` over windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.loading.cursors import Cursor, resumed
from feedmill.loading.layout import RankBatches, check_begin
from feedmill.loading.plan import PlainPlan
from feedmill.planning.dealing.dealer import dealer_of
from feedmill.planning.dealing.grid import Grid

if TYPE_CHECKING:
    from feedmill.planning.dealing.cuts import BudgetGrid
    from feedmill.planning.resuming.resume import Allowed


@dataclass(slots=True)
class Progress:
    """The position of one rank in a plan. An iteration advances it; loading a state creates a new one.

    Attributes:
        plan: the plan; `layout`: its batches from the loader's start on; `seed`: seed of the transform.
        grid: global batches from the position at which this progress began.
        cursor: the remaining windows, if a task encoder packs or groups; otherwise None.
        consumed: the position after the last batch that was yielded, if there is no cursor.
        skip, every: yield every `every`-th batch of the rank, and `skip` batches less before the next one: the share
            of one of several processes that load the batches of this rank in turn.
    """

    plan: PlainPlan
    layout: RankBatches
    seed: int
    grid: Grid | BudgetGrid
    cursor: Cursor | None
    consumed: int
    skip: int = 0
    every: int = 1

    @classmethod
    def at_start(cls, plan: PlainPlan, layout: RankBatches, seed: int) -> Progress:
        """Return the progress of a loader that has yielded no batch."""
        return cls(plan, layout, seed, layout.grid, layout.cursor, layout.grid.start)

    @property
    def position(self) -> int:
        """Return the position, see `Loader.position`."""
        cursor = self.cursor
        if cursor is None:
            return self.consumed
        reached = cursor.start + cursor.next * cursor.world_size * cursor.size
        return reached if cursor.length is None else min(reached, cursor.length)

    @property
    def ended(self) -> bool:
        """Return whether nothing is left of the plan, also for the other ranks unless the loader packs or groups."""
        if self.cursor is not None:
            return self.cursor.done
        return self.grid.end is not None and self.consumed >= self.grid.end

    def describe_layout(self) -> str:
        """Return the size of a global batch in words: what a position within a share depends on."""
        size = f"batch size {self.grid.batch_size}" if isinstance(self.grid, Grid) else self.grid.budget
        return f"{size} on {self.grid.world_size} ranks"

    def check(self) -> None:
        """Check that batches can be made from this position on. Raises ConfigError if not."""
        if self.cursor is None:
            check_begin(self.plan, replace(self.layout, grid=self.grid), self.consumed)

    def advance(self, after: int | Cursor) -> None:
        """Set the end of the batches yielded so far."""
        if type(after) is int:
            self.consumed = after
            self.skip = self.every - 1
        else:
            assert isinstance(after, Cursor)
            self.cursor = after

    def share(self, number: int, count: int) -> Progress:
        """Return the progress of process `number` of `count` that load the batches of this rank in turn.

        Raises:
            ConfigError: the loader packs or groups, so that batches are not known before they are made.
        """
        if self.cursor is not None and count > 1:
            raise ConfigError(
                f"packs and groups cannot be divided over {count} workers of a torch DataLoader: each batch depends on"
                " the ones before it",
                kind="unsupported",
                fix="Use num_workers=1, or iterate the Loader itself, with Loader(..., workers=N).",
            )
        return replace(self, skip=number, every=count)

    def after(self, batches: int) -> Progress:
        """Return the progress of the rank after a number of further batches.

        Raises:
            ConfigError: the loader packs or groups, or the plan ends before.
        """
        if self.cursor is not None:
            raise ConfigError(
                "the position after a number of batches is unknown: packs and groups must be made for it",
                kind="unsupported",
                fix="Save the state_dict() of the loader that made them.",
            )
        if not batches:
            return replace(self)
        dealer = dealer_of(self.plan, self.grid, self.layout.dealing)
        last = next(dealer.batches(self.consumed, skip=batches - 1), None)
        if last is None:
            raise ConfigError(
                f"the plan ends before {batches} batches", fix="Give the number of batches that were used."
            )
        return replace(self, consumed=last.end)

    def finish(self) -> None:
        """Set the position to the end of the plan, also on ranks without a sample in the last step."""
        if self.cursor is None and self.grid.end is not None:
            self.consumed = self.grid.end

    def restarted(self) -> Progress:
        """Return the progress at the loader's start."""
        start = self.layout.grid.start
        cursor = None if self.cursor is None else replace(self.cursor, start=start, pending=(), next=0)
        return replace(self, grid=self.grid.started_at(start), cursor=cursor, consumed=start)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, see `Loader.state_dict`."""
        from feedmill.loading.state import make_state

        state = make_state(self.plan, self.position, self.seed)
        return state if self.cursor is None else {**state, "windows": self.cursor.to_json()}

    def resumed(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], allowed: Allowed) -> Progress:
        """Return the progress of a saved state, see `Loader.load_state_dict`. Raises ConfigError as it does."""
        several = self.cursor is not None and isinstance(state, list | tuple)
        states: list[Any] = list(state) if several else [state]
        from feedmill.loading.state import read_states

        positions = read_states(states, self.plan, self.seed, allowed)
        if not states or any(("windows" in each) is (self.cursor is None) for each in states):
            raise ConfigError(
                "the state is not of a loader that packs or groups, as this one does"
                if self.cursor
                else "the state is of a loader that packs or groups, which this one does not",
                kind="bad-state",
                fix="Load it with the task encoder that it was saved with.",
            )
        if self.cursor is None:
            return replace(self, grid=self.grid.started_at(positions[0]), consumed=positions[0])
        if positions != [each["position"] for each in states]:
            raise ConfigError(
                "the skip list has changed at positions before the samples that wait in packs, which has moved them",
                kind="plan-changed",
                fix="Only skip samples after the saved position, or begin without a state.",
            )
        return replace(self, cursor=resumed([each["windows"] for each in states], self.cursor))
