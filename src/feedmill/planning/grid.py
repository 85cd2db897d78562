"""Which positions belong to which batch of which rank: whole-number arithmetic, nothing else.

From a start position on, global batch *b* is the positions ``[start + b*G, start + (b+1)*G)`` with
``G = batch_size * world_size``; rank *r* takes the *r*-th of its `world_size` equal slices. What remains at the end of
a finite plan is spread over the ranks in contiguous shares, so that all ranks end within the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Step(NamedTuple):
    """One batch of one rank: its positions ``[first, stop)``, and the position `end` after the whole global batch."""

    first: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The batches of one rank, counted from `start`.

    Attributes:
        start: position of the first sample of global batch 0.
        length: samples in the plan, or None where it never ends.
        batch_size: samples per rank and step.
        drop_last: leave out the global batch that the end of the plan would cut short.
    """

    start: int
    length: int | None
    batch_size: int
    rank: int
    world_size: int
    drop_last: bool

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def end(self) -> int | None:
        """The position after the last batch, or None where the plan never ends."""
        if self.length is None:
            return None
        return self.length - self._remainder(self.length) if self.drop_last else self.length

    @property
    def steps(self) -> int | None:
        """Batches of this rank; one fewer than other ranks' where the last step has fewer samples than ranks."""
        if self.length is None:
            return None
        first, stop = self._last_share(self.length)
        return (self.length - self.start) // self.global_batch + (stop > first)

    def step(self, number: int) -> Step:
        """Positions of this rank's batch `number`, which must be below `steps`."""
        first = self.start + number * self.global_batch
        end = first + self.global_batch
        if self.length is not None and end > self.length:
            low, high = self._last_share(self.length)
            return Step(first + low, first + high, self.length)
        first += self.rank * self.batch_size
        return Step(first, first + self.batch_size, end)

    def number_at(self, position: int) -> int:
        """The number of the batch that begins at `position`, or the count of all batches after the last one."""
        return -((self.start - position) // self.global_batch)

    def _remainder(self, length: int) -> int:
        return (length - self.start) % self.global_batch

    def _last_share(self, length: int) -> tuple[int, int]:
        """This rank's part of the cut batch, counted from that batch's first position."""
        if self.drop_last:
            return 0, 0
        remainder = self._remainder(length)
        return remainder * self.rank // self.world_size, remainder * (self.rank + 1) // self.world_size
