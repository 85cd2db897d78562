"""Global batches by budget: where each one ends, by the costs in the index.

A global batch takes positions in the plan's order as long as their costs add up to at most ``world_size * budget`` and
their number is at most ``world_size * max_samples``. It is therefore the same for any layout with the same product.
Where a batch ends depends only on where it begins, so a state is still just a position. The step of a position,
however, is only known by walking from the start; `Cuts` does so in blocks of positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.dealing.grid import Remainder, borders_of
from feedmill.planning.dealing.rules import LARGEST, MOST_SAMPLES, Budget, bad_budget
from feedmill.planning.nodes.base import LONGEST, Located

IntArray = npt.NDArray[np.int64]

_BLOCK, _LONGEST_BLOCK = 1 << 10, 1 << 16
"""Positions that are evaluated at once, at the start and later."""


@dataclass(frozen=True, slots=True)
class BudgetGrid:
    """Batches by budget of one rank; the counterpart of `Grid`, whose batches have a fixed number of samples.

    Attributes:
        start: position at which the first batch begins.
        length: samples in the plan, or None if it is endless.
        remainder: handling of a last global batch that the plan's end truncates: ``drop``, ``uneven``, ``ragged``.
        group: samples that one rank gets together; only the last ones of the plan may be fewer.

    Raises:
        ConfigError: `remainder` is ``pad``: a batch by budget has no fixed number of samples to pad to.
    """

    start: int
    length: int | None
    budget: Budget
    rank: int
    world_size: int
    remainder: Remainder
    group: int = 1

    def __post_init__(self) -> None:
        if self.remainder == "pad":
            raise bad_budget(
                "remainder='pad' is unsupported for batches by budget: they have no fixed number of samples",
                "Use remainder='drop' or 'uneven'.",
            )
        if (self.budget.max_samples or self.group) < self.group:
            raise bad_budget(
                f"max_samples {self.budget.max_samples:,} is less than the {self.group:,} samples of a group",
                f"Raise it to {self.group:,} or more.",
            )
        if self.budget.amount * self.world_size > LARGEST:
            raise bad_budget(
                f"{self.world_size:,} ranks x {self.budget.amount:,} {self.budget.by} exceed 2^50",
                "Use a smaller budget.",
            )

    def started_at(self, position: int) -> BudgetGrid:
        """Return the same grid with another start position."""
        return replace(self, start=position)

    @property
    def end(self) -> int | None:
        """Return the position after the last batch; None if it is only known once it is reached."""
        return None if self.remainder == "drop" else self.length


class Cut(NamedTuple):
    """One global batch.

    Attributes:
        first: its first position.
        costs: costs of its positions, int64[n].
        located: the locations of its samples, or None.
        whole: whether it ended by its budget rather than at the end of the plan.
    """

    first: int
    costs: IntArray
    located: Located | None
    whole: bool


class Cuts:
    """The global batches of a layout.

    Args:
        plan: a plan whose indexes have the costs.
        grid: budget, ranks and remainder.

    Raises:
        ConfigError: the costs of a source are unknown, or this kind of plan has none.
    """

    def __init__(self, plan: Any, grid: BudgetGrid) -> None:
        self._plan, self._grid = plan, grid
        self._costs = costs_of(plan, grid.budget.by, grid.budget.linear, "a budget")
        skipped = 0 if plan.skip is None else plan.skip.count
        self._end: int = LONGEST - skipped if plan.length is None else plan.length
        self._borders = borders_of(plan)
        self._total = grid.budget.amount * grid.world_size
        most = grid.budget.max_samples
        self._most = MOST_SAMPLES + 1 if most is None else most // grid.group * grid.group * grid.world_size

    def after(self, position: int) -> Iterator[Cut]:
        """Yield the global batches from `position` on, in order.

        Raises:
            ConfigError: one sample costs more than the budget of a rank, the last batch has fewer samples than ranks
                (``uneven``), or samples without cost make a batch too long.
        """
        first, size = position, _BLOCK
        costs, located = np.zeros(0, np.int64), None
        largest = max(1, min(_LONGEST_BLOCK, (1 << 62) // (self._total + 1)))
        while first < self._end:
            costs, located = self._longer(first, costs, located, min(size, largest))
            size *= 2
            # Clipped so that sums over a block fit into 64 bits; a clipped cost is still above the budget.
            sums = [0, *np.cumsum(np.minimum(costs, self._total + 1)).tolist()]
            at, known = 0, len(costs)
            while True:
                limit = min(at + self._most, self._border(first + at) - first)
                fits = min(bisect_right(sums, sums[at] + self._total, at) - 1, limit)
                if fits == known < limit and first + known < self._end:
                    break  # it extends beyond the evaluated positions
                last = fits if first + fits == self._end else fits - (fits - at) % self._grid.group
                if last == at and at == known:
                    return
                whole = fits < known or fits == limit or sums[fits] - sums[at] == self._total
                if not whole and self._grid.remainder == "drop":
                    return
                cut = Cut(first + at, costs[at:last], None if located is None else located[at:last], whole)
                self._check(cut, first + last)
                yield cut
                at = last
            first += at
            costs, located = costs[at:], None if located is None else located[at:]

    def _border(self, position: int) -> int:
        """Return the next position at which batches begin again: a batch has rows of one width."""
        number = bisect_right(self._borders, position)
        return self._borders[number] if number < len(self._borders) else self._end + self._most

    def ends(self, position: int, until: int) -> IntArray:
        """Return the end of each global batch from `position` on, up to the first one beyond `until`: int64[n]."""
        ends = []
        for cut in self.after(position):
            ends.append(cut.first + len(cut.costs))
            if ends[-1] > until:
                break
        return np.array(ends, np.int64)

    def oversized(self) -> list[str]:
        """Return descriptions of samples that cost more than the budget of a rank, at most one per source.

        A subset or a skip list may exclude them from the plan.
        """
        budget = self._grid.budget
        return [
            f"sample {index:,} of {self._plan.names[source]!r} ({cost:,} {budget.by})"
            for source, index, cost in self._costs.largest()
            if cost > budget.amount
        ]

    def _longer(
        self, first: int, costs: IntArray, located: Located | None, size: int
    ) -> tuple[IntArray, Located | None]:
        """Return costs and locations of the positions from `first` on: those given, and the next `size`."""
        begin = first + len(costs)
        positions = np.arange(begin, min(begin + size, self._end), dtype=np.int64)
        more: Located | None = self._plan.locate_ahead(positions)
        both = np.concatenate([costs, self._costs(positions, more)])
        if located is None or more is None:
            return both, more
        return both, Located(
            np.concatenate([located.source, more.source]),
            np.concatenate([located.index, more.index]),
            np.concatenate([located.epoch, more.epoch]),
        )

    def _check(self, cut: Cut, stop: int) -> None:
        grid, count = self._grid, len(cut.costs)
        budget = grid.budget
        together = grouped_costs(cut.costs, grid.group)
        if count and int(together.max()) > budget.amount:
            place = int(np.argmax(together > budget.amount))
            raise self._too_large(cut.first + place * grid.group, int(together[place]))
        if budget.max_samples is None and count > MOST_SAMPLES:
            raise bad_budget(
                f"the global batch at position {cut.first:,} has more than {MOST_SAMPLES:,} samples within its"
                f" budget of {self._total:,} {budget.by}: most of them have cost 0",
                "Give 'max_samples' with the budget.",
            )
        if len(together) >= grid.world_size or (not cut.whole and grid.remainder == "ragged"):
            return
        if not cut.whole:
            raise ConfigError(
                f"the last step would have {count} samples for {grid.world_size} ranks, and ranks without a sample"
                " would end before the others",
                kind="uneven-end",
                fix="Use remainder='drop'.",
            )
        # One sample or group per rank always fits, unless one of them costs more than the budget of a rank.
        following = np.arange(stop, min(stop + grid.group, self._end), dtype=np.int64)
        raise self._too_large(stop, int(grouped_costs(self._costs(following), grid.group)[0]))

    def _too_large(self, position: int, cost: int) -> ConfigError:
        budget, group = self._grid.budget, self._grid.group
        what, all_of_it = "sample", ""
        if group > 1:
            what, all_of_it = "group", f" and the {group - 1:,} after it"
        return ConfigError(
            f"the {what} at position {position:,} exceeds the budget: {self._sample(position)}{all_of_it}"
            f" cost{'s' if group == 1 else ''} {cost:,} {budget.by}, and the batch of a rank at most {budget.amount:,}",
            kind="too-large",
            fix="Raise the budget, or exclude the sample ('skip', 'subset', or a filter).",
        )

    def _sample(self, position: int) -> str:
        located = self._plan.locate(np.array([position], np.int64))
        return f"sample {int(located.index[0]):,} of {self._plan.names[int(located.source[0])]!r}"


def grouped_costs(costs: IntArray, group: int) -> IntArray:
    """Return the sums of the costs of each `group` samples, the last of which may be fewer: int64[groups]."""
    if group == 1 or not len(costs):
        return costs
    sums: IntArray = np.add.reduceat(np.minimum(costs, LARGEST), np.arange(0, len(costs), group))
    return sums


def costs_of(plan: Any, by: str, linear: float, option: str, media: float = 0.0, media_squares: float = 0.0) -> Any:
    """Return the costs of a plan; `option` is named in errors. Raises `ConfigError` if the costs are unknown."""
    if getattr(plan, "node", None) is None:
        raise ConfigError(f"this plan has no index with the costs that {option} needs", fix=f"Remove {option}.")
    from feedmill.planning.dealing.costs import Costs

    return Costs(plan, by, linear, media, media_squares)
