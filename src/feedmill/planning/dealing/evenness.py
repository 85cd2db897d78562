"""Report how evenly ranks are loaded: their shares of every source, and the costs of their batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.dealing.cuts import BudgetGrid
from feedmill.planning.dealing.dealer import (
    BudgetDealer,
    Dealer,
    check_groups,
    check_layout,
    dealing_of,
    deals_slices,
    dealt_together,
)
from feedmill.planning.dealing.grid import Grid, borders_of
from feedmill.planning.dealing.rules import Balance, Dealing

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan

STEPS = 1000
POSITIONS = 1 << 20
"""Maximum numbers of steps and positions that are evaluated."""


@dataclass(frozen=True, slots=True)
class SourceShare:
    """A source's share of the samples over all ranks, and the lowest and highest share of a single rank.

    Attributes:
        source: name of the source.
        realized: its share over all ranks. The key in ``--json`` is ``realised``.
        least, most: its lowest and highest share on a rank.
    """

    source: str
    realized: float
    least: float
    most: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {"source": self.source, "realised": self.realized, "least": self.least, "most": self.most}


@dataclass(frozen=True, slots=True)
class CostSpread:
    """The cost of the most expensive rank of a step divided by the mean over ranks.

    Attributes:
        dealing: how positions were dealt, for display.
        mean, worst: mean and maximum over the steps.
        lower_bound: lower bound of `mean` for any way to deal whole samples: the mean over steps of the most expensive
            sample plus the cheapest ones that complete its batch, divided by the mean over ranks (at least 1).
    """

    dealing: str
    mean: float
    worst: float
    lower_bound: float


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """Use of the budget by batches.

    Attributes:
        budget: the budget of a rank, for display.
        samples: samples per step over all ranks, mean over the steps.
        fill: cost of all batches divided by the budget of all ranks and steps.
        over: share of the steps in which a rank exceeds its budget.
        worst: highest cost of a rank divided by its budget.
    """

    budget: str
    samples: float
    fill: float
    over: float
    worst: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Result of `spread`.

    Attributes:
        steps: number of steps that were evaluated, from the start.
        batch_size: samples per rank and step; None for batches by budget.
        by: the cost; None if no cost is known, with the reason in `unknown`.
        budget: budget use of batches by budget, or None.
    """

    world_size: int
    batch_size: int | None
    dealing: str
    steps: int
    shares: list[SourceShare]
    by: str | None
    costs: list[CostSpread]
    unknown: str | None = None
    budget: BudgetUse | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"shares": [share.as_dict() for share in self.shares]}


def spread(plan: Plan, world_size: int, batch_size: int | None, budget: int | None = None) -> Spread:
    """Return how evenly the ranks of a layout are loaded in the first steps of a plan.

    Args:
        plan: the plan.
        world_size: number of ranks.
        batch_size: samples per rank and step; None for the budget of the plan's recipe.
        budget: number of positions to evaluate; at most `POSITIONS`, and at most `STEPS` steps.

    Raises:
        ConfigError: the plan has no whole global batch, its recipe balances by a cost that is unknown, or it has no
            budget and `batch_size` is None.
    """
    if batch_size is None:
        return _by_budget(plan, world_size, budget)
    own = dealing_of(plan, batch=batch_size)
    grid = Grid(0, plan.length, batch_size, 0, world_size, "drop", dealt_together(plan, own), borders_of(plan))
    most = max(1, POSITIONS // grid.global_batch)
    steps = min(STEPS, most, *(() if grid.steps is None else (grid.steps,)))
    if budget is not None:
        steps = min(steps, max(1, budget // grid.global_batch))
    if steps < 1:
        raise ConfigError(
            f"the plan's {plan.length:,} samples do not fill a global batch of {grid.global_batch:,}",
            kind="too-few-samples",
            fix="Use fewer ranks or a smaller batch.",
        )
    check_layout(plan, grid, own.balance is not None)
    check_groups(plan, grid, own)
    balance, costs, unknown = _costs(plan, own.balance)
    dealers = {"contiguous": Dealer(plan, grid, Dealing("contiguous"))}
    if own.kind not in dealers:
        dealers[own.kind] = Dealer(plan, grid, Dealing(own.kind))
    used = own.kind
    if costs is not None and own.kind == "shuffled" and not deals_slices(plan, grid):
        name = "balanced" if own.balance else "if balanced"
        dealers[name] = Dealer(plan, grid, Dealing("shuffled", balance))
        used = name if own.balance else used
    counts = np.zeros((world_size, len(plan.names)), np.int64)
    sums: dict[str, list[float]] = {name: [] for name in dealers}
    bounds: list[float] = []
    for number in range(steps):
        first = grid.step(number).first
        positions = first + np.arange(grid.global_batch, dtype=np.int64)
        located = plan.locate(positions)
        cost = None if costs is None else costs(positions, plan.locate_ahead(positions))
        if cost is not None:
            bounds.append(_bound(cost, world_size))
        for name, dealer in dealers.items():
            if cost is None and name != used:
                continue
            parts = np.stack(dealer.ranks(number)) - first
            if name == used:
                flat = np.repeat(np.arange(world_size), batch_size) * len(plan.names) + located.source[parts.ravel()]
                counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)
            if cost is not None:
                each = cost[parts].sum(axis=1)
                sums[name].append(float(each.max() * world_size / each.sum()) if each.any() else 1.0)
    by = None if costs is None else balance.by
    return Spread(world_size, batch_size, used, steps, _shares(plan, counts), by, _cost_spreads(sums, bounds), unknown)


def _by_budget(plan: Plan, world_size: int, positions: int | None) -> Spread:
    """Return `spread` for batches by the budget of the plan's recipe."""
    dealing = dealing_of(plan)
    budget = dealing.budget
    if budget is None:
        raise ConfigError("the recipe has no budget for its batches", fix="Give a batch size, or set 'batch' in it.")
    grid = BudgetGrid(0, plan.length, budget, 0, world_size, "drop", dealt_together(plan, dealing))
    check_groups(plan, grid, dealing)
    dealer = BudgetDealer(plan, grid)
    counts = np.zeros((world_size, len(plan.names)), np.int64)
    sums: dict[str, list[float]] = {"contiguous": [], "by budget": []}
    bounds: list[float] = []
    shares_used: list[float] = []
    most, cost, end = min(POSITIONS, positions or POSITIONS), 0.0, 0
    for cut in dealer.cuts.after(0):
        parts = dealer.deal(cut)
        located = plan.locate(cut.first + np.arange(len(cut.costs), dtype=np.int64))
        for rank, part in enumerate(parts):
            counts[rank] += np.bincount(located.source[part], minlength=len(plan.names))
        total = float(cut.costs.sum())
        mean = max(total / world_size, 1)
        for name, dealt in (
            ("contiguous", np.array_split(np.arange(len(cut.costs)), world_size)),
            ("by budget", parts),
        ):
            highest = max(float(cut.costs[part].sum()) for part in dealt)
            sums[name].append(highest / mean)
        bounds.append(max(1.0, float(cut.costs.max()) / mean))
        shares_used.append(highest / budget.amount)
        cost, end = cost + total, cut.first + len(cut.costs)
        if len(bounds) == STEPS or end >= most:
            break
    steps = len(bounds)
    if not steps:
        raise ConfigError(
            f"the plan's {plan.length:,} samples do not fill the budget of {budget} for each of {world_size:,} ranks",
            kind="too-few-samples",
            fix="Use fewer ranks or a smaller budget.",
        )
    use = BudgetUse(
        str(budget),
        end / steps,
        cost / (steps * world_size * budget.amount),
        sum(share > 1 for share in shares_used) / steps,
        max(shares_used),
    )
    costs = _cost_spreads(sums, bounds)
    return Spread(world_size, None, "by budget", steps, _shares(plan, counts), budget.by, costs, None, use)


def _shares(plan: Plan, counts: Any) -> list[SourceShare]:
    """Return the sources' shares from int64[ranks, sources]."""
    own = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    whole = counts.sum(axis=0) / max(counts.sum(), 1)
    return [
        SourceShare(name, float(whole[n]), float(own[:, n].min()), float(own[:, n].max()))
        for n, name in enumerate(plan.names)
    ]


def _cost_spreads(sums: dict[str, list[float]], bounds: list[float]) -> list[CostSpread]:
    bound = float(np.mean(bounds)) if bounds else 1.0
    return [CostSpread(name, float(np.mean(each)), max(each), bound) for name, each in sums.items() if each]


def _bound(cost: Any, ranks: int) -> float:
    falling = np.sort(cost)[::-1].astype(np.float64)
    each = len(cost) // ranks
    mean = falling.sum() / ranks
    return float(max(1.0, (falling[0] + falling[len(falling) - each + 1 :].sum()) / mean)) if mean else 1.0


def _costs(plan: Plan, asked: Balance | None) -> tuple[Balance, Any, str | None]:
    """Return the balance, its costs, and why they are unknown: for `asked` if given, otherwise tokens, then bytes."""
    from feedmill.planning.dealing.costs import Costs

    if asked is not None:
        return asked, Costs(plan, asked.by, asked.linear, asked.media, asked.media_squares), None
    why = None
    for balance in map(Balance, ("tokens", "bytes")):
        try:
            return balance, Costs(plan, balance.by), None
        except ConfigError as error:
            if error.kind != "no-costs":
                raise
            why = why or error.what
    return Balance("tokens"), None, why
