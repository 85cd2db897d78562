"""Deal the positions of a global batch to ranks.

A global batch is the same for any number of ranks and workers; dealing only distributes it. ``shuffled`` permutes each
global batch with its own key, so that every rank sees all sources of a blend, however short the period of its weights
is. With a `Balance`, ranks get samples of equal cost instead. ``contiguous`` gives rank *r* the *r*-th of `world_size`
equal slices. On a rank, a batch is in the plan's order (most expensive first if balanced), so a single rank always sees
the plan unchanged.

For a shuffled batch, a rank only needs its own samples. For balancing, each rank evaluates the costs of the whole
global batch and computes the same result as the others, without communication.

Batches of one source, of a blend in runs: run *j* is the positions ``[j*K, (j+1)*K)``. If the `b` samples of a rank
divide *K*, a slice of `b` positions that begins at a multiple of `b` lies in one run, so each rank gets one slice. If
the global batch of `G` samples divides *K* and begins at a multiple of *G*, all ranks have the same source, and single
positions can be dealt in any way.

Batches of whole groups, so that what compares their samples needs no exchange: if every run of `g` positions is whole
groups and `g` divides a rank's batch, dealing permutes these runs instead of positions, and balancing exchanges them.
``deal: contiguous`` gives a rank its slice whatever the groups are: a group may then be spread over neighboring ranks.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.costs import LARGEST as LARGEST_COST
from feedmill.planning.dealing.grid import Grid, Step, Steps, share
from feedmill.planning.dealing.rules import SLOTS, Balance, Budget, Dealing
from feedmill.planning.nodes import Interleaved, Skip
from feedmill.planning.nodes.base import LONGEST, Located, Node
from feedmill.planning.permutation import branch, derive, permute

if TYPE_CHECKING:
    from feedmill.planning.dealing.cuts import BudgetGrid, Cut
    from feedmill.planning.packing.spans import LocatedSpans
    from feedmill.planning.plan import Plan

logger = logging.getLogger("feedmill")

IntArray = npt.NDArray[np.int64]

AHEAD, MOST_AHEAD = 1024, 16_384
"""Positions that are located per call, at the start and later: a call has the fixed cost of thousands of positions, and
the first batch waits for the first call."""
ROWS_AHEAD = 256, 1024
"""The same for packed rows, each of which has many documents, and may need that more of them are planned."""
_PER_SOURCE, _ROWS_PER_SOURCE, _MOST_OF_MANY = 128, 64, 131_072
"""With many sources, a call has the fixed cost of thousands of positions for each source."""
_RANKS = 1
"""Number of the child key of a batch's key that orders its ranks."""


def dealing_of(plan: Any, deal: str | None = None, balance: Any = None, batch: Any = None) -> Dealing:
    """Return the dealing of a plan.

    Arguments override the recipe. The default is shuffled, or contiguous if the plan reproduces the order of another
    tool that deals slices.

    Args:
        plan: the plan.
        deal: a value of `feedmill.planning.dealing.rules.Deal`.
        balance: see `Balance.of`.
        batch: a budget; or a number of samples, which overrides the budget of the recipe.

    Raises:
        ConfigError: an unknown value, or values that cannot be combined.
    """
    own: Dealing | None = getattr(plan, "dealing", None)
    wanted = Balance.of(balance)
    budget = Budget.of(batch) if isinstance(batch, Mapping | Budget) else None
    if budget is None and batch is None and own is not None:
        budget = own.budget
    if own is None:
        node = getattr(plan, "node", None)
        free = wanted is not None or budget is not None
        own = Dealing("contiguous" if node is not None and not free and _is_in_slices(plan) else "shuffled")
    kept = own.balance if deal in (None, "shuffled") else None
    if own.balance is not None and kept is None and wanted is None:
        logger.warning("deal=%r overrides the recipe's balance by %s", deal, own.balance.by)
    return Dealing(deal or ("shuffled" if wanted else own.kind), wanted or kept, budget)


def _is_in_slices(plan: Any) -> bool:
    """Return whether a node of a plan is in slices. It is looked up once: a plan can have thousands of nodes."""
    known = plan.__dict__.get("_in_slices")
    if known is None:
        known = plan.__dict__["_in_slices"] = _in_slices(plan.node)
    return bool(known)


def _in_slices(node: Node) -> bool:
    return node.in_slices or any(map(_in_slices, node.children))


class Dealer:
    """The batches of one rank, as positions.

    Args:
        plan: a `Plan`, or another object with a `seed`. The seed determines the permutations, the index the costs.
        grid: global batches, and the rank.
        dealing: how they are dealt.

    Raises:
        ConfigError: the costs of a source are unknown, or this kind of plan has none.
    """

    def __init__(self, plan: Any, grid: Grid, dealing: Dealing) -> None:
        self.grid, self.dealing = grid, dealing
        self._key = derive(plan.seed, "deal")
        self._slots = SLOTS.get(dealing.kind) if grid.world_size > 1 else None
        self._slices = deals_slices(plan, grid)  # deal whole slices, so that each rank's batch has one source
        self._locate = getattr(plan, "locate_ahead", None)
        self._locate_batches = getattr(plan, "locate_batches", None)
        sources = len(getattr(plan, "sources", ()))
        most = max(MOST_AHEAD, min(_PER_SOURCE * sources, _MOST_OF_MANY))
        rows = max(ROWS_AHEAD[1], min(_ROWS_PER_SOURCE * sources, MOST_AHEAD))
        self._ahead = (AHEAD, most) if self._locate_batches is None else (ROWS_AHEAD[0], rows)
        balance = dealing.balance
        self._costs = None
        if balance is not None:
            from feedmill.planning.dealing.cuts import costs_of

            towers = balance.media, balance.media_squares
            self._costs = costs_of(plan, balance.by, balance.linear, "'balance'", *towers)
        self._parts = [self._over(part) for part in grid.parts] if grid.borders else []

    def _over(self, grid: Grid) -> Dealer:
        """Return a dealer of the same plan for another grid."""
        dealer = copy.copy(self)
        dealer.grid, dealer._parts = grid, []
        return dealer

    def steps(self, numbers: Sequence[int]) -> Sequence[Step]:
        """Return the batches with these numbers, located if the plan can locate them.

        Args:
            numbers: ascending, each below `Grid.steps`.
        """
        if self._parts:
            return [step for chunk in self._planned(iter(numbers)) for step in chunk]
        if self._costs is not None and self.grid.world_size > 1:
            return [self._balanced(number) for number in numbers]
        end = LONGEST if self.grid.length is None else self.grid.length
        if numbers and self.grid.start + (numbers[-1] + 1) * self.grid.global_batch > end:  # the incomplete one
            return [*self.steps(numbers[:-1]), *self._located([self._last(numbers[-1])])]
        return self._whole(numbers) if numbers else []

    def batches(self, position: int, skip: int = 0, every: int = 1) -> Ahead:
        """Return an iterator over the batches from the one that begins at `position` on.

        Args:
            position: where a batch begins.
            skip, every: yield every `every`-th batch, after the first `skip`: for one of several processes that load
                the batches of one rank.
        """
        first = self.grid.number_at(position) + skip
        return self.ahead(count(first, every) if self.grid.steps is None else range(first, self.grid.steps, every))

    def ahead(self, numbers: Iterable[int]) -> Ahead:
        """Return an iterator over the batches with these numbers, in order; several are located at once."""
        return Ahead(self._planned(numbers))

    def _planned(self, numbers: Iterable[int]) -> Iterator[Sequence[Step]]:
        """Yield the batches with these numbers, as many at once as are located at once."""
        if self._parts:
            yield from self._planned_in_parts(iter(numbers))
            return
        grid, remaining = self.grid, iter(numbers)
        most = (LONGEST - grid.start) // grid.global_batch  # batches beyond are made one at a time
        each = grid.batch_size if self._costs is None else grid.global_batch
        ahead, most_ahead = self._ahead
        first = next(remaining, None)
        while first is not None:
            size = max(1, min(ahead // each, most - first))
            yield self.steps([first, *islice(remaining, size - 1)])
            ahead = min(2 * ahead, most_ahead)
            first = next(remaining, None)

    def _planned_in_parts(self, numbers: Iterator[int]) -> Iterator[Sequence[Step]]:
        """Yield the batches of each part of the grid; none of them are planned together with those of another."""
        upcoming, before = next(numbers, None), 0

        def within(stop: int | None) -> Iterator[int]:
            nonlocal upcoming
            while upcoming is not None and (stop is None or upcoming < stop):
                yield upcoming - before
                upcoming = next(numbers, None)

        for part in self._parts:
            steps = None if part is self._parts[-1] else part.grid.steps
            yield from part._planned(within(None if steps is None else before + steps))
            before += steps or 0

    def ranks(self, number: int) -> list[IntArray]:
        """Return the positions that each rank gets in a step, for reports."""
        if self._parts:
            part, own = self.grid.part_of(number)
            return self._over(part).ranks(own)
        first, count, _ = self._batch(number)
        if self._costs is not None:
            return [first + offsets for offsets in self._assigned(first, count)[0]]
        offsets = np.arange(count, dtype=np.int64)
        if self._slots is not None:
            offsets = self._offsets(offsets, count, branch(self._key, first))
        return [first + np.sort(part) for part in np.split(offsets, self._bounds(count)[1:-1])]

    def _batch(self, number: int) -> tuple[int, int, int]:
        """Return the first position, the number of positions to deal (padding included), and the end position."""
        grid = self.grid
        first = grid.start + number * grid.global_batch
        if grid.length is None or first + grid.global_batch <= grid.length:
            return first, grid.global_batch, first + grid.global_batch
        if grid.remainder == "pad":
            return first, grid.global_batch, grid.length
        return first, grid.left_over, grid.length

    def _bounds(self, count: int) -> IntArray:
        """Return the bounds of each rank's part of `count` dealt positions, int64[ranks + 1]; nearly equal parts."""
        ranks, group = self.grid.world_size, self.grid.group
        return np.array([share(count, rank, ranks, group) for rank in range(ranks + 1)], np.int64)

    def _whole(self, numbers: Sequence[int]) -> Steps:
        """Return batches of which none is incomplete."""
        grid = self.grid
        dealt = self._slots is not None
        firsts = grid.start + np.array(numbers, np.int64) * grid.global_batch
        slots: IntArray = np.arange(grid.batch_size, dtype=np.int64) + grid.rank * grid.batch_size
        if dealt:
            keys = np.repeat(branch(self._key, firsts), grid.batch_size)
            slots = self._offsets(np.tile(slots, len(firsts)), grid.global_batch, keys).reshape(len(firsts), -1)
            slots.sort(axis=1)
        positions = (firsts[:, None] + slots).reshape(-1)
        return Steps(grid, numbers, positions, dealt, self._locations(positions))

    def _last(self, number: int) -> Step:
        """Return a batch that may be incomplete."""
        step = self.grid.step(number)
        if self._slots is None:
            return step
        first, count, _ = self._batch(number)
        slots = np.arange(step.first, step.stop) - first
        return _step(step, first + np.sort(self._offsets(slots, count, branch(self._key, first))))

    def _offsets(self, slots: IntArray, count: int, keys: Any) -> IntArray:
        """Return the offsets in a global batch of `count` positions that slots of it get, int64[n]."""
        assert self._slots is not None
        grid = self.grid
        unit = grid.batch_size if self._slices and count == grid.global_batch else grid.group
        if unit == 1:
            return self._slots(slots, count, keys, grid.world_size)
        units, moved = count // unit, slots.copy()
        inside = np.flatnonzero(slots < units * unit)  # fewer samples than a unit stay last
        keys = keys if isinstance(keys, int) else keys[inside]
        runs, offsets = np.divmod(slots[inside], unit)
        moved[inside] = self._slots(runs, units, keys, grid.world_size) * unit + offsets
        return moved

    def _located(self, steps: Sequence[Step]) -> list[Step]:
        return [step._replace(located=self._locations(step.positions)) for step in steps]

    def _locations(self, positions: IntArray) -> Located | LocatedSpans | None:
        locate = self._locate_batches or self._locate
        return None if locate is None else locate(positions)

    def _balanced(self, number: int) -> Step:
        first, count, end = self._batch(number)
        assigned, spread, located = self._assigned(first, count)
        offsets = assigned[self.grid.rank]
        step = self.grid.step(number)
        step = _step(step._replace(end=end), first + offsets)
        return step._replace(located=None if located is None else located[offsets], spread=spread)

    def _assigned(self, first: int, count: int) -> tuple[list[IntArray], float, Located | None]:
        """Return each rank's offsets in a global batch, the highest cost of a rank over the mean, and the locations."""
        assert self._costs is not None
        grid, key = self.grid, branch(self._key, first)
        positions = first + np.arange(count, dtype=np.int64)
        if grid.length is not None:
            positions %= grid.length
        located: Located | None = None if self._locate is None else self._locate(positions)
        costs = self._costs(positions, located)
        group = grid.group
        if group > 1:  # `check_groups` allows no fewer samples at the end
            costs, count = np.minimum(costs, LARGEST_COST // group).reshape(-1, group).sum(axis=1), count // group
        order = permute(np.arange(count, dtype=np.int64), count, key)  # random order among equal costs
        ranks = grid.world_size
        if count < ranks:  # some ranks get nothing, regardless of cost
            parts = np.split(order, [count * rank // ranks for rank in range(1, ranks)])
        else:
            each = -(-count // ranks)
            filled = np.zeros(ranks * each, np.float64)
            filled[:count] = np.maximum(costs[order], 0) + 1.0  # padding has cost 0, and sorts last
            from feedmill.planning.dealing.balancing import balanced

            dealt = balanced(filled, ranks, exchange=count == len(filled))
            rows = permute(np.arange(ranks, dtype=np.int64), ranks, branch(key, _RANKS))
            parts = [order[row[row < count]] for row in dealt[rows]]
        sums = [float(costs[part].sum()) for part in parts]
        mean = sum(sums) / ranks
        if group > 1:
            parts = [(part[:, None] * group + np.arange(group)).reshape(-1) for part in parts]
        return parts, max(sums) / mean if mean else 1.0, located


def _step(step: Step, positions: IntArray) -> Step:
    if not len(positions):
        return step._replace(dealt=positions)
    return step._replace(first=int(positions.min()), stop=int(positions.max()) + 1, dealt=positions)


class Ahead(Iterator[Step]):
    """Iterator over batches that are planned several at a time.

    Args:
        planned: the batches, as planned.
    """

    def __init__(self, planned: Iterator[Sequence[Step]]) -> None:
        self._planned = planned
        self._steps: Sequence[Step] = ()
        self._next = 0

    def __next__(self) -> Step:
        self._plan()
        self._next += 1
        return self._steps[self._next - 1]

    def together(self, most: int) -> Steps | None:
        """Return the next batches, of which at most `most` and at least one; None if they were not planned together.

        Raises StopIteration as `next` does.
        """
        self._plan()
        if not isinstance(self._steps, Steps):
            return None
        begin = self._next
        self._next = min(begin + most, len(self._steps))
        return self._steps[begin : self._next]

    def _plan(self) -> None:
        while self._next == len(self._steps):
            self._steps, self._next = next(self._planned), 0


class BudgetDealer:
    """The batches of one rank by budget, as positions.

    Args:
        plan: the plan. Its index provides the costs, its seed the order among equal costs.
        grid: the budget, and the rank.

    Raises:
        ConfigError: the costs of a source are unknown, or this kind of plan has none.
    """

    def __init__(self, plan: Any, grid: BudgetGrid) -> None:
        self.grid = grid
        from feedmill.planning.dealing.cuts import Cuts

        self.cuts = Cuts(plan, grid)
        self._key = derive(plan.seed, "deal")

    def batches(self, position: int, skip: int = 0, every: int = 1) -> Iterator[Step]:
        """Yield the batches from the global batch that begins at `position` on, numbered from 0.

        Args:
            position: where a batch begins.
            skip, every: as for `Dealer.batches`.

        Raises:
            ConfigError: as `Cuts.after`.
        """
        grid = self.grid
        for number, cut in islice(enumerate(self.cuts.after(position)), skip, None, every):
            parts = self.deal(cut)
            offsets = parts[grid.rank]
            if not len(offsets):
                return  # the end of a plan, with fewer samples than ranks
            sums = [int(cut.costs[part].sum()) for part in parts]
            mean = sum(sums) / len(sums)
            step = Step(0, 0, cut.first + len(cut.costs), number, grid.length)
            yield _step(step, cut.first + offsets)._replace(
                located=None if cut.located is None else cut.located[offsets],
                spread=max(sums) / mean if mean else 1.0,
                budget_share=max(sums) / grid.budget.amount,
            )

    def deal(self, cut: Cut) -> list[IntArray]:
        """Return each rank's part of a global batch as offsets from its first position.

        With several ranks, the most expensive samples come first.
        """
        ranks, n = self.grid.world_size, len(cut.costs)
        if ranks == 1:
            return [np.arange(n, dtype=np.int64)]
        from feedmill.planning.dealing.balancing import greedy
        from feedmill.planning.dealing.cuts import grouped_costs

        key, group, most = branch(self._key, cut.first), self.grid.group, self.grid.budget.max_samples
        costs = grouped_costs(cut.costs, group)
        order = permute(np.arange(len(costs), dtype=np.int64), len(costs), key)  # random order among equal costs
        parts = greedy(costs[order], ranks, None if most is None else most // group)
        rows = permute(np.arange(ranks, dtype=np.int64), ranks, branch(key, _RANKS))
        dealt = [order[parts[row]] for row in rows.tolist()]
        if group == 1:
            return dealt
        whole = [(part[:, None] * group + np.arange(group)).reshape(-1) for part in dealt]
        return [part[part < n] for part in whole]


def dealer_of(plan: Any, grid: Grid | BudgetGrid, dealing: Dealing) -> Dealer | BudgetDealer:
    """Return the dealer of a grid: with a fixed number of samples, or by budget. Raises as the classes do."""
    return Dealer(plan, grid, dealing) if isinstance(grid, Grid) else BudgetDealer(plan, grid)


def run_length_of(plan: Any) -> int:
    """Return the run length of a plan's blend; 1 if it interleaves single samples, or if the plan has no blend."""
    if hasattr(plan, "documents"):
        return 1  # in a packed plan only the documents come in runs, not the rows
    node = getattr(plan, "node", None)
    node = node.child if isinstance(node, Skip) else node
    return node.run_length if isinstance(node, Interleaved) and node.one_source else 1


def check_skip(plan: Plan) -> None:
    """Check that a skip list moves whole runs only. Raises ConfigError."""
    length, gaps = run_length_of(plan), plan.skip
    if length == 1 or gaps is None:
        return
    for first, stop in zip(gaps.firsts.tolist(), gaps.stops.tolist(), strict=True):
        if first % length or (stop % length and stop != _end_of(plan)):
            raise ConfigError(
                f"the skip list removes the positions [{first:,}, {stop:,}) from runs of {length:,} samples: later"
                " positions would move up, and batches would hold two sources",
                kind="bad-recipe",
                fix=f"Skip ranges that begin and end at multiples of {length:,}, or substitute bad samples"
                " (on_error='substitute').",
            )


def _end_of(plan: Plan) -> int | None:
    """Return the length of the plan without its skip list."""
    return plan.node.child.length if isinstance(plan.node, Skip) else plan.node.length


def check_drawn(plan: Plan, names: Sequence[str]) -> None:
    """Check that each source with a weight gets a run before the plan ends.

    Args:
        plan: the plan.
        names: names of the blend's children.

    Raises:
        ConfigError: a source gets no sample.
    """
    node = plan.node.child if isinstance(plan.node, Skip) else plan.node
    if plan.length is None or not isinstance(node, Interleaved) or node.run_length == 1:
        return
    total = plan.length + (0 if plan.skip is None else plan.skip.count)
    shares = node.shares(total)
    assert shares is not None  # the plan ends
    for name, asked, drawn in zip(names, shares[0], node.draws(total), strict=True):
        if asked and not drawn:
            raise ConfigError(
                f"the source {name!r} has a share of {float(asked):.4g} of {total:,} samples, and gets none of the"
                f" {-(-total // node.run_length):,} runs of {node.run_length:,} samples",
                kind="too-few-samples",
                fix="Raise its weight, use more samples or shorter runs, or remove it.",
            )


def deals_slices(plan: Any, grid: Grid) -> bool:
    """Return whether ranks get whole slices: the global batch has several sources, but each slice has one."""
    length = run_length_of(plan)
    return length > 1 and length % grid.global_batch != 0 and length % grid.batch_size == 0


def check_layout(plan: Any, grid: Grid | BudgetGrid, balanced: bool) -> None:
    """Check that every batch of a layout has one source.

    Args:
        balanced: whether samples are exchanged between ranks.

    Raises:
        ConfigError: a batch would hold two sources, or ranks of different sources would be balanced.
    """
    length = run_length_of(plan)
    if length == 1:
        return
    if not isinstance(grid, Grid):
        raise bad_batches("batches by budget hold several sources", "Remove 'homogeneous', or give a batch size.")
    size, whole = grid.batch_size, grid.global_batch
    if length % size:
        raise bad_batches(
            f"a batch of {size:,} samples would hold several sources: the plan yields {length:,} samples of one source"
            " at a time",
            f"Use a batch size per rank that divides {length:,}, or set 'homogeneous' to a multiple of the batch size.",
        )
    unit = size if length % whole else whole
    if grid.start % unit:
        raise bad_batches(
            f"position {grid.start:,} is not a multiple of {unit:,}: a batch that begins there would hold two sources,"
            f" which alternate in runs of {length:,} samples",
            f"Start at a multiple of {unit:,}, or use a batch size that divides the position.",
        )
    if length % whole and balanced:
        raise bad_batches(
            f"ranks that have batches of different sources cannot be balanced: {length:,} samples of one source do not"
            f" fill whole global batches of {whole:,}",
            f"Set 'homogeneous' to a multiple of {whole:,}, or remove 'balance'.",
        )
    if grid.left_over and (grid.remainder == "pad" or (length % whole and grid.remainder != "drop")):
        raise bad_batches(
            f"the last {grid.left_over:,} samples do not fill a global batch of {whole:,}, and remainder="
            f"{grid.remainder!r} would make batches of several sources from them",
            "Use remainder='drop', or a different number of 'samples'.",
        )


def bad_batches(what: str, fix: str) -> ConfigError:
    """Return the error for batches of one source, or of whole groups, that are impossible."""
    return ConfigError(what, kind="bad-recipe", fix=fix)


def group_of(plan: Any) -> int | None:
    """Return `Node.first_group` of a plan's root; 1 if its positions are packed rows, or it has no nodes."""
    node = None if hasattr(plan, "documents") else getattr(plan, "node", None)
    return 1 if node is None else node.first_group


def dealt_together(plan: Any, dealing: Dealing) -> int:
    """Return the `group` of the grid of a plan."""
    return 1 if dealing.kind == "contiguous" else group_of(plan) or 1


def check_groups(plan: Any, grid: Grid | BudgetGrid, dealing: Dealing) -> None:
    """Check that the batches of a layout have whole groups.

    Raises:
        ConfigError: a batch would have a part of a group.
    """
    group = group_of(plan)
    if group == 1 or dealing.kind == "contiguous":
        return
    apart = "or 'deal: contiguous', which lets batches cut groups"
    if group is None:
        raise bad_batches(
            "the groups of samples have different sizes, and a batch of a fixed number of samples would cut them",
            f"Use groups of one size, {apart}.",
        )
    size = grid.batch_size if isinstance(grid, Grid) else 0
    if size % group:
        near = " or ".join(f"{each:,}" for each in (size // group * group, (size // group + 1) * group) if each)
        raise bad_batches(
            f"a batch of {size:,} samples for a rank is not whole groups: {size:,} = {size // group:,} x {group:,} +"
            f" {size % group:,}",
            f"Use a batch size of {near}, {apart}.",
        )
    if grid.start % group:
        raise bad_batches(
            f"position {grid.start:,} is inside a group: groups come in runs of {group:,} samples",
            f"Start at a multiple of {group:,}, {apart}.",
        )
    left = grid.left_over if isinstance(grid, Grid) else 0
    if left % group and (grid.remainder == "pad" or (dealing.balance is not None and grid.remainder != "drop")):
        how = "padded" if grid.remainder == "pad" else "balanced"
        raise bad_batches(
            f"the last {left:,} samples cannot be {how} in runs of {group:,}, which groups come in",
            "Use remainder='drop', or a different number of 'samples'.",
        )
