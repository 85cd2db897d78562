"""Integer arithmetic of global batches: which positions belong to a global batch, and how many each rank gets.

From a start position on, global batch *b* is the positions ``[start + b*G, start + (b+1)*G)`` with
``G = batch_size * world_size``. Rank *r* gets as many of them as the *r*-th of `world_size` equal slices has, and
exactly that slice unless positions are dealt (`feedmill.planning.dealing.dealer`). The remainder at the end of a finite
plan is dropped (``drop``), padded with the plan's first samples so that every rank has a whole batch (``pad``), or
divided over the ranks in contiguous parts of nearly equal size (``uneven``; with ``ragged``, some ranks may have one
batch less than others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args, overload

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
    """

    start: int
    length: int | None
    batch_size: int
    rank: int
    world_size: int
    remainder: Remainder
    group: int = 1

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
        first, stop = self._last_share()
        return (self.length - self.start) // self.global_batch + (stop > first)

    @property
    def left_over(self) -> int:
        """Return the number of samples at the end of a finite plan that do not fill a global batch."""
        return 0 if self.length is None else (self.length - self.start) % self.global_batch

    def step(self, number: int) -> Step:
        """Return this rank's batch `number`, which must be below `steps`."""
        first = self.start + number * self.global_batch
        end = first + self.global_batch
        number -= -self.start // self.global_batch  # batches before the start
        if self.length is not None and end > self.length:
            low, high = self._last_share()
            return Step(first + low, first + high, self.length, number, self.length)
        first += self.rank * self.batch_size
        return Step(first, first + self.batch_size, end, number, self.length)

    def number_at(self, position: int) -> int:
        """Return the number of the batch that begins at `position`, or the count of all batches after the last one."""
        return -((self.start - position) // self.global_batch)

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
