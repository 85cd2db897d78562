"""Position of a loader: saved in its state, and advanced batch by batch by an iteration.

It covers both kinds of loaders: those of plain batches, whose position is a number, and those of packs or groups, whose
position is a `Cursor` over windows.

A state is JSON data: a position, and the fingerprint and the outline of the plan. The plan is a pure function of the
position, so a state needs no buffers and no generator states, and does not depend on the number of ranks or workers or
on the batch size. All ranks have the same state after the same step, so any one of them may save it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.loading.layout import Cursor, RankBatches, check_begin, resumed
from feedmill.loading.plan import PlainPlan, PlannedByReading, completed
from feedmill.planning.dealing.dealer import dealer_of
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.nodes.base import LONGEST

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
            check_begin(self.plan, self.layout._replace(grid=self.grid), self.consumed)

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
        state = make_state(self.plan, self.position, self.seed)
        return state if self.cursor is None else {**state, "windows": self.cursor.to_json()}

    def resumed(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], allowed: Allowed) -> Progress:
        """Return the progress of a saved state, see `Loader.load_state_dict`. Raises ConfigError as it does."""
        several = self.cursor is not None and isinstance(state, list | tuple)
        states: list[Any] = list(state) if several else [state]
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


VERSION = 2
_FIX = "Load the state that this loader's state_dict() returned, or begin without one."


def make_state(plan: PlainPlan, position: int, seed: int) -> dict[str, Any]:
    """Return the state as JSON data: a few hundred bytes, plus about 35 for each source of the plan.

    With a shuffle of shards, up to 3 bytes more for each shard.
    """
    own = {"feedmill_loader": VERSION, "position": position, "seed": seed, "plan": plan.fingerprint}
    return {**own, **completed(plan).bookmark(position)}


def read_states(states: Sequence[Any], plan: PlainPlan, seed: int, allowed: Allowed) -> list[int]:
    """Return the position of `plan` at which each state resumes.

    States are read from the last position down, so that a proof that two plans agree is made once for all of them.

    Raises:
        ConfigError: as `read_state`.
    """
    proven: dict[str, int] = {}

    def saved_position(state: Any) -> int:
        position = state.get("position") if isinstance(state, Mapping) else None
        return position if isinstance(position, int) else 0

    complete = [_with_outline(state, states[0]) for state in states]
    order = sorted(range(len(complete)), key=lambda number: saved_position(complete[number]), reverse=True)
    positions = {number: read_state(complete[number], plan, seed, allowed, proven) for number in order}
    return [positions[number] for number in range(len(complete))]


def read_state(
    state: Mapping[str, Any],
    plan: PlainPlan,
    seed: int,
    allowed: Allowed,
    proven: dict[str, int] | None = None,
) -> int:
    """Return the position of `plan` at which `state` resumes.

    Args:
        state: the state of a loader.
        plan: the plan of this loader.
        seed: seed of this loader's transform.
        allowed: permitted differences; see `feedmill.planning.resuming.resume`.
        proven: positions up to which plans are proven to agree; see `feedmill.planning.resuming.resume`.

    Raises:
        ConfigError: this is not the state of a loader, or it is from a newer version, or belongs to another plan; the
            message lists the changes of the plan.
    """
    if not isinstance(state, Mapping) or "feedmill_loader" not in state:
        contents = (
            f"the keys {', '.join(map(str, state)) or 'none'}" if isinstance(state, Mapping) else type(state).__name__
        )
        raise ConfigError(f"this is not the state of a feedmill loader (found {contents})", kind="bad-state", fix=_FIX)
    version = state["feedmill_loader"]
    if version != VERSION:
        raise ConfigError(
            f"the loader's state has version {version!r}, this release reads version {VERSION}",
            kind="bad-state",
            fix="Resume with the release that saved it.",
        )
    invalid = _invalid_entries(state)
    if invalid:
        raise ConfigError(f"the loader's state is corrupt at: {', '.join(invalid)}", kind="bad-state", fix=_FIX)
    from feedmill.planning.resuming.resume import changed

    position = int(state["position"])
    other_seed = changed([f"the transform's seed was {state['seed']} and is {seed}"])
    if state["seed"] != seed and allowed.change:
        raise other_seed
    if state["plan"] != plan.fingerprint:
        position = completed(plan).reopened(state, allowed, {} if proven is None else proven)
    if state["seed"] != seed:
        raise other_seed
    if isinstance(plan, PlannedByReading):
        plan.use_landmark(state)
    end = LONGEST if plan.length is None else plan.length
    if not 0 <= position <= end:
        raise ConfigError(
            f"the loader's state is at position {position}, the plan has {end} samples",
            kind="bad-state",
            fix=_FIX,
        )
    return position


def _with_outline(state: Any, first: Any) -> Any:
    """Return the state with the plan's outline, which `Checkpoint` keeps in the first of all ranks' states only."""
    if not (isinstance(state, Mapping) and isinstance(first, Mapping)) or state.get("plan") != first.get("plan"):
        return state
    return {**{name: first[name] for name in ("tree", "sources") if name in first}, **state}


def _invalid_entries(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the entries of a state that are missing or have the wrong type."""
    types: dict[str, type] = {"position": int, "seed": int, "plan": str}
    optional = {"tree": str, "sources": Mapping, "unskipped": int, "stream": str, "skip": str, "skipped": str}
    types |= {name: kind for name, kind in optional.items() if name in state}
    invalid = [name for name, kind in types.items() if not isinstance(state.get(name), kind)]
    sources = state.get("sources")
    if isinstance(sources, Mapping) and not all(isinstance(text, str) for entry in sources.items() for text in entry):
        invalid.append("sources")
    return invalid
