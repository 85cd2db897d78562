"""The global batch of a step, as numbers of a run: its grid or its cut by budget, and the number of the step in it."""

from __future__ import annotations

from itertools import islice

from feedmill.errors import ConfigError, NotFound
from feedmill.planning.dealing.cuts import BudgetGrid, Cut
from feedmill.planning.dealing.dealer import BudgetDealer, Dealing, dealing_of
from feedmill.planning.dealing.grid import Grid, Remainder
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.plan import Plan


def cut_of(
    plan: Plan,
    number: int,
    rank: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
    remainder: Remainder,
    dealing: Dealing | None,
) -> tuple[BudgetDealer, Cut]:
    """Return a global batch by budget, and its dealer."""
    _check_rank(rank, world_size)
    check_run(plan, start)
    grid = budget_grid(plan, rank or 0, world_size, start, remainder, dealing)
    dealer = BudgetDealer(plan, grid)
    cut = next(islice(dealer.cuts.after(start), max(number - first_step, 0), None), None)
    if cut is None or number < first_step:
        raise NotFound(
            f"there is no step {number:,}: with {grid.budget} for each of {grid.world_size:,} ranks the run has steps"
            f" from {first_step:,}, and ends before this one",
            kind="no-such-step",
        )
    return dealer, cut


def budget_grid(
    plan: Plan,
    rank: int,
    world_size: int | None,
    start: int,
    remainder: Remainder,
    dealing: Dealing | None,
) -> BudgetGrid:
    """Return the grid of a recipe with a budget. Raises `ConfigError` if it has none, or `world_size` is missing."""
    budget = (dealing or dealing_of(plan)).budget
    if budget is None or world_size is None:
        raise ConfigError(
            "steps need the samples per step, or a recipe with a budget ('batch') and the number of ranks",
            kind="no-batch-size",
            fix="Give the global batch, or the number of ranks if the recipe has a budget.",
        )
    # 'ragged' also allows a last batch with fewer samples than ranks.
    return BudgetGrid(start, plan.length, budget, rank, world_size, "ragged" if remainder == "uneven" else remainder)


def _check_rank(rank: int | None, world_size: int | None) -> None:
    if rank is None:
        return
    if world_size is None:
        raise ConfigError(f"rank {rank} requires the number of ranks", fix="Give both; ranks count from 0 to one less.")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size} ranks is invalid", fix="Ranks count from 0 to one less.")


def check_run(plan: Plan, start: int) -> None:
    """Raise `ConfigError` if no run can begin at a position."""
    if start < 0 or (plan.length is not None and start > plan.length):
        size = "is endless" if plan.length is None else f"has {plan.length:,} positions"
        raise ConfigError(
            f"a run cannot begin at position {start:,}: the plan {size}",
            kind="bad-start",
            fix="Give the position of the state from which the run resumed.",
        )


def grid_of(
    plan: Plan,
    number: int,
    global_batch: int,
    rank: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
    remainder: Remainder,
) -> tuple[Grid, int]:
    """Return a rank's grid of batches, and the number of the step in it."""
    _check_rank(rank, world_size)
    if rank is None and world_size is not None:
        raise ConfigError(f"the rank is missing: the step has {world_size} ranks", fix="Give both, or neither.")
    if global_batch < 1 or global_batch % (world_size or 1):
        raise ConfigError(
            f"a global batch of {global_batch} is not divisible by {world_size or 1} ranks",
            fix="The global batch is the batch size per rank times the number of ranks.",
        )
    check_run(plan, start)
    ranks = world_size or 1
    grid = Grid(start, plan.length, global_batch // ranks, rank or 0, ranks, remainder)
    own = number - first_step
    end = LONGEST + 1 - global_batch if grid.end is None else grid.end
    if own < 0 or start + own * global_batch >= end:
        every = Grid(start, plan.length, global_batch, 0, 1, remainder)
        steps = (end - start) // global_batch if every.steps is None else every.steps
        last = f" to {first_step + steps - 1:,}" if steps else " to none"
        raise NotFound(
            f"there is no step {number:,}: with {global_batch:,} samples a step the run has steps {first_step:,}{last}",
            kind="no-such-step",
        )
    return grid, own
