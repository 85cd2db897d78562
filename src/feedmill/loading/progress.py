"""Position of a loader: saved in its state, and advanced batch by batch by an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.groups import Cursor, resumed
from feedmill.loading.layout import Layout, check_begin
from feedmill.loading.plan import PlainPlan
from feedmill.loading.state import make_state, read_states
from feedmill.planning.dealing.cuts import BudgetGrid
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.resuming.resume import Allowed


@dataclass(slots=True)
class Progress:
    """Where one rank of a plan is. An iteration moves it; a state that is loaded makes another one.

    Attributes:
        plan: the plan; `layout`: its batches from the loader's start on; `seed`: of the transform.
        grid: global batches from where this progress began.
        cursor: the windows to come, where a task encoder packs or groups; else None.
        consumed: the position after the last batch that was yielded, if there is no cursor.
    """

    plan: PlainPlan
    layout: Layout
    seed: int
    grid: Grid | BudgetGrid
    cursor: Cursor | None
    consumed: int

    @classmethod
    def at_start(cls, plan: PlainPlan, layout: Layout, seed: int) -> Progress:
        """Progress of a loader that has given out nothing."""
        return cls(plan, layout, seed, layout.grid, layout.cursor, layout.grid.start)

    @property
    def position(self) -> int:
        """See `Loader.position`."""
        cursor = self.cursor
        if cursor is None:
            return self.consumed
        reached = cursor.start + cursor.next * cursor.world_size * cursor.size
        return reached if cursor.length is None else min(reached, cursor.length)

    def check(self) -> None:
        """Check that batches can be made from here on. Raises ConfigError."""
        if self.cursor is None:
            check_begin(self.plan, replace(self.layout, grid=self.grid), self.consumed)

    def advance(self, after: int | Cursor) -> None:
        """Set the end of the batches yielded so far."""
        if isinstance(after, Cursor):
            self.cursor = after
        else:
            self.consumed = after

    def finish(self) -> None:
        """Move to the end of the plan, on all ranks: even one that had no sample in the last step."""
        if self.cursor is None and self.grid.end is not None:
            self.consumed = self.grid.end

    def restarted(self) -> Progress:
        """Progress from the loader's start."""
        start = self.layout.grid.start
        cursor = None if self.cursor is None else replace(self.cursor, start=start, pending=(), next=0)
        return replace(self, grid=self.grid.started_at(start), cursor=cursor, consumed=start)

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        state = make_state(self.plan, self.position, self.seed)
        return state if self.cursor is None else {**state, "windows": self.cursor.to_json()}

    def resumed(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], allowed: Allowed) -> Progress:
        """Progress from a state; see `Loader.load_state_dict`. Raises ConfigError."""
        several = self.cursor is not None and isinstance(state, list | tuple)
        states: list[Any] = list(state) if several else [state]
        positions = read_states(states, self.plan, self.seed, allowed)
        if not states or any(("windows" in each) is (self.cursor is None) for each in states):
            raise ConfigError(
                "the state is not of a loader that packs or groups" if self.cursor else "the state is of other packs",
                kind="bad-state",
                fix="Load it with the task encoder that it was saved with.",
            )
        if self.cursor is None:
            return replace(self, grid=self.grid.started_at(positions[0]), consumed=positions[0])
        if positions != [each["position"] for each in states]:
            raise ConfigError(
                "the skip list has changed before the samples that wait in packs, and has moved them",
                kind="plan-changed",
                fix="Skip what comes later only, or begin without a state.",
            )
        return replace(self, cursor=resumed([each["windows"] for each in states], self.cursor))
