"""Integer arithmetic of global batches: which positions belong to a global batch, and how many each rank gets.

From a start position on, global batch *b* is the positions ``[start + b*G, start + (b+1)*G)`` with
``G = batch_size * world_size``. Rank *r* gets as many of them as the *r*-th of `world_size` equal slices has, and
exactly that slice unless positions are dealt (`feedmill.planning.dealing.dealer`). The remainder at the end of a finite
plan is dropped (``drop``), padded with the plan's first samples so that every rank has a whole batch (``pad``), or
divided over the ranks in contiguous parts of nearly equal size (``uneven``; with ``ragged``, some ranks may have one
batch less than others).

Rows of packed plans can have another width from some positions on (`Grid.borders`). A batch has one width, so batches
begin again at each border, and the rows before it that do not fill a global batch are dropped. What lies between two
borders is a grid of its own (`Grid.parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, overload

import numpy as np
import numpy.typing as npt

from feedmill.planning.nodes.base import Located

if TYPE_CHECKING:
    from feedmill.planning.packing.spans import LocatedSpans

Remainder = Literal["drop", "pad", "uneven", "ragged"]
REMAINDERS: tuple[str, ...] = get_args(Remainder)


class Step(NamedTuple):
    """One batch of one rank.

    Attributes:
        first, stop: the range of its positions; positions from `length` on are padding, see `positions`.
        end: the position after the whole global batch.
        number: the step's number, from 0 at the plan's start; after resuming with another batch size, as if that had
            always been the size.
        length: samples in a finite plan, else None.
        dealt: int64[n], its positions; None for all of ``[first, stop)``.
        located: the locations of its samples, if already known.
        spread: the highest cost of a rank in this step divided by the mean over ranks, if ranks are balanced.
        budget_share: the highest cost of a rank in this step divided by its budget, for batches by budget.
    """

    first: int
    stop: int
    end: int
    number: int = 0
    length: int | None = None
    dealt: npt.NDArray[np.int64] | None = None
    located: Located | LocatedSpans | None = None
    spread: float | None = None
    budget_share: float | None = None

    def __str__(self) -> str:
        return f"step {self.number}, from position {self.first} on"

    @property
    def slots(self) -> npt.NDArray[np.int64]:
        """Return its positions, int64[n]; padding is numbered from the plan's end on."""
        return np.arange(self.first, self.stop, dtype=np.int64) if self.dealt is None else self.dealt

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Return which of its samples belong to the plan, bool[n]; the others are padding."""
        slots = self.slots
        return np.ones(len(slots), np.bool_) if self.length is None else slots < self.length

    @property
    def real(self) -> int:
        """Return the number of its samples without padding."""
        if self.dealt is not None:
            return int(self.mask.sum())
        return self.stop - self.first if self.length is None else max(0, min(self.stop, self.length) - self.first)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Return the plan's positions to read, int64[n]; padding begins at position 0."""
        row = self.slots
        return row if self.length is None or self.stop <= self.length else row % self.length


@dataclass(frozen=True, slots=True)
class Grid:
    """The batches of one rank, counted from `start`.

    Attributes:
        start: position of the first sample of global batch 0.
        length: samples in the plan, or None if it is endless.
        batch_size: samples per rank and step.
        remainder: handling of the samples at the end that do not fill a global batch.
        group: samples that one rank gets together, of which a batch is a multiple; only the last ones may be fewer.
        borders: positions at which batches begin again, ascending: those of `borders_of`.
        numbered: number of the first step; None for as many as there are before the start with batches of this size.
    """

    start: int
    length: int | None
    batch_size: int
    rank: int
    world_size: int
    remainder: Remainder
    group: int = 1
    borders: tuple[int, ...] = ()
    numbered: int | None = None

    @property
    def parts(self) -> tuple[Grid, ...]:
        """Return the batches between borders, from the start on, as grids without borders; at least one."""
        return _parts(self) if self.borders else (self,)

    @property
    def first_number(self) -> int:
        """Return the number of the first step, from 0 at the plan's start."""
        if self.numbered is not None:
            return self.numbered
        if not self.borders:
            return -(-self.start // self.global_batch)
        return _parts(self)[0].first_number

    def started_at(self, position: int) -> Grid:
        """Return the same batches, counted from another position."""
        return replace(self, start=position)

    @property
    def global_batch(self) -> int:
        """Return the samples per step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def end(self) -> int | None:
        """Return the position after the last batch, or None if the plan is endless."""
        if self.length is None:
            return None
        return self.length - self.left_over if self.remainder == "drop" else self.length

    @property
    def steps(self) -> int | None:
        """Return the number of batches of this rank.

        With ``uneven`` and ``ragged`` some ranks have one batch less if fewer samples than ranks remain.
        """
        if self.length is None:
            return None
        if self.borders:
            return sum(part.steps or 0 for part in self.parts)
        first, stop = self._last_share()
        return (self.length - self.start) // self.global_batch + (stop > first)

    @property
    def left_over(self) -> int:
        """Return the number of samples at the end of a finite plan that do not fill a global batch."""
        return 0 if self.length is None else (self.length - self.parts[-1].start) % self.global_batch

    def step(self, number: int) -> Step:
        """Return this rank's batch `number`, which must be below `steps`."""
        if self.borders:
            part, own = self.part_of(number)
            return part.step(own)
        first = self.start + number * self.global_batch
        end = first + self.global_batch
        number += self.first_number
        if self.length is not None and end > self.length:
            low, high = self._last_share()
            return Step(first + low, first + high, self.length, number, self.length)
        first += self.rank * self.batch_size
        return Step(first, first + self.batch_size, end, number, self.length)

    def number_at(self, position: int) -> int:
        """Return the number of the batch that begins at `position`, or the count of all batches after the last one."""
        if not self.borders:
            return -((self.start - position) // self.global_batch)
        before = 0
        for part in self.parts[:-1]:
            if part.length is not None and position < part.length:
                return before + min(part.number_at(position), part.steps or 0)
            before += part.steps or 0
        return before + self.parts[-1].number_at(position)

    def number_of(self, position: int) -> int | None:
        """Return the number of the batch that has a position from the start on; None if a border drops it."""
        before = 0
        for part in self.parts[:-1]:
            if part.length is not None and position < part.length:
                number = (position - part.start) // part.global_batch
                return before + number if number < (part.steps or 0) else None
            before += part.steps or 0
        return before + (position - self.parts[-1].start) // self.global_batch

    def part_of(self, number: int) -> tuple[Grid, int]:
        """Return the part that has batch `number`, and the batch's number in it. Numbers beyond are of the last."""
        *others, last = self.parts
        for part in others:
            steps = part.steps or 0
            if number < steps:
                return part, number
            number -= steps
        return last, number

    def _last_share(self) -> tuple[int, int]:
        """Return this rank's range in the last, incomplete batch, counted from that batch's first position."""
        left = self.left_over
        if self.remainder == "drop" or not left:
            return 0, 0
        if self.remainder == "pad":
            return self.rank * self.batch_size, (self.rank + 1) * self.batch_size
        return share(left, self.rank, self.world_size, self.group), share(
            left, self.rank + 1, self.world_size, self.group
        )

    @property
    def shares_out(self) -> bool:
        """Return whether the samples at the end, if there are any, are enough for each rank to get some."""
        return not 0 < -(-self.left_over // self.group) < self.world_size


def share(count: int, rank: int, ranks: int, group: int = 1) -> int:
    """Return where the part of a rank begins if positions are divided into nearly equal parts of whole groups.

    >>> [share(10, rank, 3) for rank in range(4)], [share(11, rank, 3, 2) for rank in range(4)]
    ([0, 3, 6, 10], [0, 4, 8, 11])
    """
    return min(-(-count // group) * rank // ranks * group, count)


@lru_cache(64)
def _parts(grid: Grid) -> tuple[Grid, ...]:
    """Return `Grid.parts` of a grid with borders."""
    size, number, begin = grid.global_batch, 0, 0
    out: list[Grid] = []
    for end in (*grid.borders, None):
        if end is not None and end <= grid.start:
            number += (end - begin) // size
            begin = end
            continue
        start = max(begin, grid.start)
        if not out:
            number += -(-(start - begin) // size)
        last = end is None or (grid.length is not None and end >= grid.length)
        part = replace(
            grid,
            start=start,
            length=grid.length if last else end,
            remainder=grid.remainder if last else "drop",
            borders=(),
            numbered=number,
        )
        out.append(part)
        if last:
            break
        assert end is not None
        number, begin = number + (part.steps or 0), end
    return tuple(out)


def borders_of(plan: Any) -> tuple[int, ...]:
    """Return the positions of a plan at which batches begin again: rows have another width from there on."""
    found: tuple[int, ...] = getattr(plan, "borders", ())
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Sequence[Step]):
    """Whole batches of one rank, planned together. Their steps are made when they are asked for.

    Attributes:
        grid: their grid; `numbers`: their numbers in it.
        positions: int64[len(numbers) * batch_size], the positions of all of them, in order.
        dealt: whether the positions of a batch may have gaps.
        located: the locations of their samples, if already known.
    """

    grid: Grid
    numbers: Sequence[int]
    positions: npt.NDArray[np.int64]
    dealt: bool
    located: Located | LocatedSpans | None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, row: int) -> Step: ...
    @overload
    def __getitem__(self, row: slice) -> Steps: ...
    def __getitem__(self, row: int | slice) -> Step | Steps:
        """Return the step of a batch, or some of the batches, without a stride."""
        size = self.grid.batch_size
        if isinstance(row, slice):
            begin, end, _ = row.indices(len(self))
            rows = slice(begin * size, end * size)
            located = None if self.located is None else self.located[rows]
            return Steps(self.grid, self.numbers[row], self.positions[rows], self.dealt, located)
        step = self.grid.step(self.numbers[row])
        row = row % len(self)
        rows = slice(row * size, (row + 1) * size)
        located = None if self.located is None else self.located[rows]
        if not self.dealt:
            return step._replace(located=located)
        positions = self.positions[rows]
        low, high = int(positions[0]), int(positions[-1]) + 1
        return Step(low, high, step.end, step.number, step.length, positions, located)

    @property
    def ends(self) -> list[int]:
        """Return the position after the global batch of each of them."""
        start, size = self.grid.start, self.grid.global_batch
        return [start + (number + 1) * size for number in self.numbers]
