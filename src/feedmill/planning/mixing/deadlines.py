"""Exact blends of many sources without a table: every source stays within one sample of its share, for any weights.

Every draw has a window, the slots in which its source stays within one sample of its share. Earliest deadline first
finds a slot for each draw, as for the table in `blend`. The order supports random access, because the number of draws
before a slot can be computed from the slot's neighborhood (`kernels.deadlines`). So it is computed block by block:
first the counts at both borders of a block, which depend only on the weights, then the draws between them.

A block is at least twice as long as the widest window, whose width is the inverse of the smallest weight. If that
exceeds 2^12 slots, the heavy and the light sources form two groups. A rounded line, as in `lines`, selects the slots of
the light group, the heavy group has the others, and each group's windows are counted in its own slots.

Proof that each draw has a slot: by Hall's theorem, it is sufficient that in any interval ``[s, e)`` of time the number
of draws whose window is inside does not exceed the number of slots. A source of share ``w`` has ``over(e) - begun(s)``
such draws, if that is positive. Let `I` be the sources for which it is.

* Two groups: a group has the total share ``W``, and windows in which a source stays strictly within 1 of its share. A
  source has ``floor(w e) - ceil(w s) <= w (e - s)`` draws, so all of `I` have at most ``floor(W (e - s))``. A rounded
  line, or its complement, has more than ``W (e - s) - 1`` slots, which is enough, because it is an integer.
* One group of n sources within ``a = 1 - 1 / (2n - 2)`` (Tijdeman's bound): a source has less than
  ``w (e - s) + 2 - 2a`` draws. If `I` lacks a source, its sources have less than
  ``(e - s) + 2 (n - 1) (1 - a) = (e - s) + 1`` draws, an integer that is at most ``e - s``. If `I` has all sources, the
  number of draws is ``sum over(e) - sum begun(s)``, and ``sum over(e) <= e``: the fractional parts of the shares
    ``w e`` have an integer sum, and ``q`` of them, those above ``a``, count as one. If ``q < n`` the sum is above
    ``q a >= q - 1/2``, so at least ``q``; ``q = n`` is impossible, because the sum would be above ``n - 1`` and below
    ``n``. Likewise ``sum begun(s) >= s``.

Tijdeman's bound allows rounding weights whose common denominator exceeds 2^60: sources stay strictly within one sample
of the requested shares for the first ``2^60 / (2n - 2)`` samples. Two groups need denominators up to 2^50, and rounding
adds one sample in 2^50 to the bound.

Source: Tijdeman 1980, "The chairman assignment problem".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.order.deadlines import Rates, counts_before, deal
from feedmill.planning.mixing.lines import LINES_LIMIT, divide

IntArray = npt.NDArray[np.int64]

ONE_GROUP_LIMIT = 2**60
"""Longest period of one group, so that the kernel's sums of a few periods fit in 64 bits."""
MANY = 1024
"""Maximum number of sources: each slot compares all of them."""

_NARROW = 2**12
_WIDEST = 2**18
_SHORTEST_BLOCK = 2**10
_KEPT_SLOTS = 2**20


def groups_of(counts: Sequence[int]) -> list[list[int]] | None:
    """Return the sources with draws as one group, or as a light and a heavy one; None if windows would be too wide.

    A group's widest window is its weight divided by the smallest weight in it. The two groups are chosen to minimize
    the wider one. Windows are never too wide if each of n sources has at least ``n / 2^36`` of the blend: sources below
    2^-18 can be the light group.
    """
    order = sorted((i for i, count in enumerate(counts) if count), key=lambda i: (-counts[i], i))
    if len(order) > MANY:
        return None
    sizes = [counts[i] for i in order]
    heavy = list(accumulate(sizes))  # weights of the first sources
    whole = heavy[-1] // sizes[-1] + 1
    if whole <= _NARROW:
        return [order]
    widths = [
        max((heavy[-1] - before) // sizes[-1] + 1, before // size + 1)
        for before, size in zip(heavy[:-1], sizes[:-1], strict=True)
    ]
    least = min([whole, *widths])
    if least > _WIDEST:
        return None
    if least == whole:
        return [order]
    cut = widths.index(least) + 1
    return [order[cut:], order[:cut]]


class Deadlines:
    """A periodic order of sources like `blend.Schedule`, computed block by block instead of looked up.

    Args:
        asked: the requested weights, normalized.
        counts: draws per source and period; together at most 2^60, or 2^50 for two groups.
        groups: see `groups_of`.

    Attributes:
        period: the common denominator of the counts.
        bound: maximum distance of a source from its share by `counts` in samples; always below 1.
    """

    def __init__(self, asked: Sequence[Fraction], counts: Sequence[int], groups: Sequence[Sequence[int]]) -> None:
        self.asked = tuple(asked)
        self.counts = np.array(counts, np.int64)
        self.period = sum(counts)
        if self.period > (ONE_GROUP_LIMIT if len(groups) == 1 else LINES_LIMIT):
            raise ValueError(f"a period of {self.period} samples is too long for {len(groups)} groups")
        if len(groups) == 1:
            starts, room = [0], self.period // max(1, 2 * len(groups[0]) - 2)
        else:
            starts, room = [self.period // 2, self.period - 1 - self.period // 2], 1
        slack = self.period - max(1, room)
        self.bound = Fraction(slack, self.period)
        self._groups = [
            _Group(group, Rates(tuple(int(counts[i]) for i in group), self.period, slack, start))
            for group, start in zip(groups, starts, strict=True)
        ]
        self._home = {source: (group, i) for group in self._groups for i, source in enumerate(group.sources.tolist())}
        self._kind = np.min_scalar_type(len(counts) - 1)

    @property
    def realized(self) -> tuple[Fraction, ...]:
        """Return the weights that the counts realize; equal to `asked` unless their common denominator is too large."""
        return tuple(Fraction(int(count), self.period) for count in self.counts)

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal in the source's stream for positions int64[n]."""
        source = np.empty(len(positions), self._kind)
        ordinal = np.empty(len(positions), np.int64)
        if len(self._groups) == 1:
            self._groups[0].fill(positions, slice(None), source, ordinal)
            return source, ordinal
        light, heavy = self._groups
        before, rest = divide(positions, light.total, self.period, self.period // 2)
        is_light = rest >= heavy.total  # the line increases by one with the next sample
        for group, rows in ((light, np.flatnonzero(is_light)), (heavy, np.flatnonzero(~is_light))):
            slots = before[rows] if group is light else positions[rows] - before[rows]
            group.fill(slots, rows, source, ordinal)
        return source, ordinal

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the positions, int64[n], of draws given by source and ordinal; the inverse of `at`."""
        positions = np.empty(len(ordinal), np.int64)
        for number in np.unique(source).tolist():
            group, i = self._home[number]
            rows = np.flatnonzero(source == number)
            slots = group.slots(i, ordinal[rows])
            if len(self._groups) == 2:
                slots, _ = divide(slots, self.period, group.total, self.period - 1 - group.rates.start)
            positions[rows] = slots
        return positions

    def position(self, source: int, ordinal: int) -> int:
        """Return the position of one draw, as an integer of any size."""
        group, i = self._home[source]
        return group.rates.time(group.slot(i, ordinal))

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions."""
        counts = [0] * len(self.counts)
        for group in self._groups:
            inside = group.counts_before((group.total * total + group.rates.start) // self.period)
            for source, count in zip(group.sources.tolist(), inside, strict=True):
                counts[source] = count
        return counts


class _Block(NamedTuple):
    """A block: draws of each source before it, then source, ordinal (since then) and slots as in `blend.Schedule`."""

    before: list[int]
    source: npt.NDArray[Any]
    ordinal: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    starts: IntArray


class Blocks(ABC):
    """Slots of several sources whose order is computed block by block.

    Args:
        sources: their numbers in the blend.
        bits: a block has ``2^bits`` slots.
    """

    def __init__(self, sources: Sequence[int], bits: int) -> None:
        self.sources, self._bits = np.array(sources, np.int64), bits
        self._blocks: dict[int, _Block] = {}

    @abstractmethod
    def _before(self, number: int) -> list[int]:
        """Return the number of draws of each source before a block."""

    @abstractmethod
    def _deal(self, number: int, before: list[int]) -> npt.NDArray[Any]:
        """Return the sources of the slots of a block, as indices into `sources`."""

    @abstractmethod
    def _first_block(self, i: int, ordinal: int) -> int:
        """Return a block that is not after that of a draw."""

    def fill(self, slots: IntArray, rows: Any, source: npt.NDArray[Any], ordinal: IntArray) -> None:
        """Fill in source and ordinal of the slots int64[n], at these rows of the results."""
        local = np.empty(len(slots), np.int64)
        draws = np.empty(len(slots), np.int64)
        for number, some in _by_number(slots >> self._bits):
            block = self._block(number)
            inside = slots[some] - (number << self._bits)
            local[some] = block.source.take(inside)
            draws[some] = np.array(block.before, np.int64).take(local[some]) + block.ordinal.take(inside)
        source[rows] = self.sources[local]
        ordinal[rows] = draws

    def slots(self, i: int, ordinal: IntArray) -> IntArray:
        """Return the slots of draws of one source, int64[n]."""
        blocks = self._first_blocks(i, ordinal)
        slots = np.empty(len(ordinal), np.int64)
        pending = np.arange(len(ordinal))
        while len(pending):
            later = []
            for number, chosen in _by_number(blocks[pending]):
                rows = pending[chosen]
                behind = ordinal[rows] >= self._before(number + 1)[i]
                later.append(rows[behind])
                rows = rows[~behind]
                if len(rows):
                    block = self._block(number)
                    inside = ordinal[rows] - block.before[i] + block.starts[i]
                    slots[rows] = (number << self._bits) + block.slots.take(inside).astype(np.int64)
            pending = np.concatenate(later)
            blocks[pending] += 1
        return slots

    def _first_blocks(self, i: int, ordinal: IntArray) -> IntArray:
        return np.array([self._first_block(i, each) for each in ordinal.tolist()], np.int64)

    def slot(self, i: int, ordinal: int) -> int:
        """Return the slot of one draw, as an integer of any size."""
        number = self._first_block(i, ordinal)
        while ordinal >= self._before(number + 1)[i]:
            number += 1
        block = self._block(number)
        return (number << self._bits) + int(block.slots[int(block.starts[i]) + (ordinal - block.before[i])])

    def counts_before(self, slots: int) -> list[int]:
        """Return the number of draws of each source in the first `slots` slots."""
        number, inside = slots >> self._bits, slots & ((1 << self._bits) - 1)
        if not inside:
            return self._before(number)
        block = self._block(number)
        since = np.bincount(block.source[:inside], minlength=len(self.sources)).tolist()
        return [a + b for a, b in zip(block.before, since, strict=True)]

    def _block(self, number: int) -> _Block:
        """Return the order of one block; the last few blocks are cached."""
        found = self._blocks.get(number)
        if found is not None:
            return found
        before = self._before(number)
        source = self._deal(number, before)
        slots = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=len(before))
        starts = np.zeros(len(before) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        ordinal = np.empty(len(source), np.int32)
        ordinal[slots] = np.arange(len(source)) - np.repeat(starts[:-1], counts)
        found = _Block(before, source, ordinal, slots.astype(np.int32), starts)
        if len(self._blocks) >= max(4, _KEPT_SLOTS >> self._bits):
            self._blocks = {}
        self._blocks[number] = found
        return found


class _Group(Blocks):
    """A group of sources and the slots that they share."""

    def __init__(self, sources: Sequence[int], rates: Rates) -> None:
        self.rates = rates
        self.total = sum(rates.weights)
        widest = self.total // min(rates.weights) + 1
        super().__init__(sources, (max(_SHORTEST_BLOCK, 2 * widest) - 1).bit_length())
        self._borders: dict[int, list[int]] = {}

    def _first_blocks(self, i: int, ordinal: IntArray) -> IntArray:
        # A draw comes after the beginning of its window; the rounding error is less than 2^-50 of it.
        earliest = ordinal * (self.total / self.rates.weights[i] * (1 - 2.0**-50)) - 3
        blocks: IntArray = np.maximum(earliest, 0).astype(np.int64) >> self._bits
        return blocks

    def _first_block(self, i: int, ordinal: int) -> int:
        return max(0, ordinal * self.total // self.rates.weights[i] - 3) >> self._bits

    def _before(self, number: int) -> list[int]:
        found = self._borders.get(number)
        if found is None:
            found = counts_before(self.rates, number << self._bits)
            if len(self._borders) >= _KEPT_SLOTS >> 10:
                self._borders = {}
            self._borders[number] = found
        return found

    def _deal(self, number: int, before: list[int]) -> npt.NDArray[Any]:
        return deal(self.rates, number << self._bits, before, self._before(number + 1))


def _by_number(numbers: IntArray) -> Iterator[tuple[int, Any]]:
    """Yield each distinct number and its rows: a slice if the numbers are in order, as in most calls."""
    if not len(numbers):
        return
    changes = numbers[1:] != numbers[:-1]
    if (numbers[1:] >= numbers[:-1]).all():
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(numbers)]
        for begin, end in pairwise(bounds):
            yield int(numbers[begin]), slice(begin, end)
        return
    order = np.argsort(numbers, kind="stable")
    for number, rows in _by_number(numbers[order]):
        yield number, order[rows]
