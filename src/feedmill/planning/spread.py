"""How evenly ranks are served: each one's share of every source, and what its batches cost beside the others'."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.dealing import Balance, Dealer, Dealing, dealing_of
from feedmill.planning.grid import Grid
from feedmill.planning.homogeneous import check_layout, deals_slices

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan

STEPS = 1000
POSITIONS = 1 << 20
"""Steps and positions that are looked at, at most."""


@dataclass(frozen=True, slots=True)
class Share:
    """A source's share of the samples over all ranks, and on the ranks that have least and most of it."""

    source: str
    realised: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class CostSpread:
    """The cost of the costliest rank of a step divided by the mean over ranks.

    Attributes:
        dealing: how positions were dealt, in words.
        mean, worst: over the steps.
        lower_bound: no way to deal whole samples has a lower mean: the mean over steps of the costliest sample, with
            the cheapest ones beside it, by the mean over ranks (at least 1).
    """

    dealing: str
    mean: float
    worst: float
    lower_bound: float


@dataclass(frozen=True, slots=True)
class Spread:
    """What `spread` found.

    Attributes:
        steps: how many were looked at, from the start.
        by: what cost means; None where no cost is known, and `unknown` says why.
    """

    world_size: int
    batch_size: int
    dealing: str
    steps: int
    shares: list[Share]
    by: str | None
    costs: list[CostSpread]
    unknown: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def spread(plan: Plan, world_size: int, batch_size: int, budget: int | None = None) -> Spread:
    """How evenly the ranks of a layout are served in the first steps of a plan.

    Args:
        budget: positions to look at; at most `POSITIONS`, and `STEPS` steps.

    Raises:
        ConfigError: the plan has no whole global batch; or its recipe balances by a cost that is unknown.
    """
    grid = Grid(0, plan.length, batch_size, 0, world_size, "drop")
    most = max(1, POSITIONS // grid.global_batch)
    steps = min(STEPS, most, *(() if grid.steps is None else (grid.steps,)))
    if budget is not None:
        steps = min(steps, max(1, budget // grid.global_batch))
    if steps < 1:
        raise ConfigError(
            f"the plan's {plan.length:,} samples fill no global batch of {grid.global_batch:,}",
            kind="too-few-samples",
            fix="Use fewer ranks or a smaller batch.",
        )
    own = dealing_of(plan)
    check_layout(plan, grid, own.balance is not None)
    balance, costs, unknown = _costs(plan, own.balance)
    dealers = {"contiguous": Dealer(plan, grid, Dealing("contiguous"))}
    if own.kind == "shuffled":
        dealers["shuffled"] = Dealer(plan, grid, Dealing("shuffled"))
    used = own.kind
    if costs is not None and own.kind == "shuffled" and not deals_slices(plan, grid):
        name = "balanced" if own.balance else "if balanced"
        dealers[name] = Dealer(plan, grid, Dealing("shuffled", balance))
        used = name if own.balance else used
    counts = np.zeros((world_size, len(plan.names)), np.int64)
    sums: dict[str, list[float]] = {name: [] for name in dealers}
    bounds: list[float] = []
    for number in range(steps):
        first = number * grid.global_batch
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
                sums[name].append(float(each.max() * world_size / max(each.sum(), 1)))
    share = counts / (steps * batch_size)
    shares = [
        Share(name, float(share[:, n].mean()), float(share[:, n].min()), float(share[:, n].max()))
        for n, name in enumerate(plan.names)
    ]
    spreads = [
        CostSpread(name, float(np.mean(found)), max(found), float(np.mean(bounds)))
        for name, found in sums.items()
        if found
    ]
    by = None if costs is None else balance.by
    return Spread(world_size, batch_size, used, steps, shares, by, spreads, unknown)


def _bound(cost: Any, ranks: int) -> float:
    falling = np.sort(cost)[::-1].astype(np.float64)
    each = len(cost) // ranks
    mean = falling.sum() / ranks
    return float(max(1.0, (falling[0] + falling[len(falling) - each + 1 :].sum()) / mean)) if mean else 1.0


def _costs(plan: Plan, asked: Balance | None) -> tuple[Balance, Any, str | None]:
    """What cost means, the costs, and why they are unknown: as asked, else tokens, else bytes."""
    from feedmill.planning.costs import Costs

    if asked is not None:
        return asked, Costs(plan, asked.by, asked.linear), None
    why = None
    for balance in map(Balance, ("tokens", "bytes")):
        try:
            return balance, Costs(plan, balance.by), None
        except ConfigError as error:
            if error.kind != "no-costs":
                raise
            why = why or error.what
    return Balance("tokens"), None, why
