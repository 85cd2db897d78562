"""Blends: nodes that interleave their children by weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import PERIOD_LIMIT, run_schedule
from feedmill.planning.nodes.base import LONGEST, NOWHERE, Epochs, IntArray, Junction, Node

Shares = tuple[Fraction, ...]

_LONGEST_SHOWN = 10**6


class ScheduleLike(Protocol):
    """Protocol of schedules: those of `mixing.blend`, and `stages.Stages`."""

    @property
    def counts(self) -> IntArray:
        """Return 0 for sources that are never drawn, a positive number for others: int64[sources]."""

    @property
    def period(self) -> int | None:
        """Return the number of positions after which the schedule repeats; None if it never does."""

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal of positions int64[n]."""

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the inverse of `at`; -1 if a source has no such draw."""

    def position(self, source: int, ordinal: int) -> int | None:
        """Return the position of one draw, as an integer of any size; None if it does not occur."""

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions."""


class Interleaved(Junction):
    """Node that interleaves the streams of its children in the order of a schedule.

    Endless if the schedule and the children are. Otherwise it ends before the first position that would draw more from
    a child than one epoch of it. If the node is repeated, each child's stream continues.

    Args:
        children: the nodes to interleave.
        schedule: the child that each position draws from.
        length: length of the node; must not exceed what the children allow.
        longest: length of the schedule; None if it is endless.

    Attributes:
        asked_length: `length` as given.
        run_length: samples of one child at a time.
    """

    run_length: int = 1

    def __init__(
        self, children: Sequence[Node], schedule: ScheduleLike, length: int | None = None, longest: int | None = None
    ) -> None:
        super().__init__(children)
        self._schedule, self.asked_length = schedule, length
        lengths = [child.length for child in children]
        ends = [schedule.position(i, size) for i, size in enumerate(lengths) if size is not None and schedule.counts[i]]
        known = [end for end in (*ends, longest) if end is not None]
        self.length = min(*known, LONGEST) if known else None
        if length is not None and not 1 <= length <= (self.length or LONGEST):
            raise ConfigError(
                f"the blend cannot have {length:,} samples: a source of it ends after {self.length or LONGEST:,}",
                kind="too-long",
                fix="Request fewer samples, or allow its sources to repeat more often.",
            )
        self.length = length or self.length
        # An endless child counts as one epoch of maximum length.
        self._lengths = np.array([LONGEST if size is None else size for size in lengths], np.int64)
        self._per_epoch = np.array(schedule.drawn(self.length or LONGEST), np.int64)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[Any], IntArray, Epochs]:
        child, ordinal = self._schedule.at(positions)
        if self.length is None:  # then all children that are ever drawn are endless too
            return child, ordinal, 0
        if isinstance(epochs, np.ndarray) or epochs:
            ordinal = ordinal + epochs * self._per_epoch[child]
        sizes = self._lengths[child]
        inner_epochs = ordinal // sizes
        return child, ordinal - inner_epochs * sizes, inner_epochs

    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        ordinal = epochs * self._lengths[child] + positions
        most = self._per_epoch[child]
        if self.length is None:
            never = ordinal >= most  # its position is beyond 64 bits
            known, ordinal = np.where(never, int(self._per_epoch.argmax()), child), np.where(never, 0, ordinal)
            return np.where(never, NOWHERE, self._schedule.positions(known, ordinal)), epochs * 0
        never = most == 0
        known = np.where(never, int(self._per_epoch.argmax()), child)
        own_epochs, rest = np.divmod(ordinal, self._per_epoch[known])
        return np.where(never, NOWHERE, self._schedule.positions(known, rest)), own_epochs

    @property
    def seamless(self) -> bool:
        """Return whether its length is a whole number of schedule periods, so that repeating it has no effect."""
        period = self._schedule.period
        return self.length is not None and period is not None and self.length % period == 0

    def draws(self, total: int) -> Sequence[int]:
        if self.length is None:
            return self._schedule.drawn(total)
        epochs, rest = divmod(total, self.length)
        return [
            epochs * int(each) + part for each, part in zip(self._per_epoch, self._schedule.drawn(rest), strict=True)
        ]

    def seams(self, start: int, stop: int) -> IntArray:
        return self.child_seams(start, stop)

    @abstractmethod
    def shares(self, total: int | None) -> tuple[Shares, Shares] | None:
        """Return requested and realized shares over the first `total` positions of the stream, or over all of it.

        Return None if the shares change, the stream is endless, and `total` is not given.
        """

    @abstractmethod
    def part(self, number: int) -> str:
        """Return everything that determines the positions of child `number`, for fingerprints."""

    @property
    def runs(self) -> str:
        """Return the run length as text for descriptions and fingerprints; empty if single samples are interleaved."""
        return "" if self.run_length == 1 else f" in runs of {self.run_length:,}"

    def identity(self) -> str:
        return "; ".join(map(self.part, range(len(self.children))))


def shares_text(shares: Shares) -> str:
    """Return shares for display: as fractions if these are short, otherwise rounded to six digits."""
    exact = max(share.denominator for share in shares) <= _LONGEST_SHOWN
    return " : ".join(str(share) if exact else f"{float(share):.6g}" for share in shares)


class Blend(Interleaved):
    """Node that interleaves the streams of its children so that each is always within one sample of its share.

    Only weights on three or more scales, with tiny ones among them, may have the wider bound given in `lines`.

    Args:
        children: the nodes to interleave.
        weights: one per child; see `blend.exact_weight`.
        length: length of the node; must not exceed what the children allow.
        limit: longest period that is stored as a table.
        run_length: samples of one child at a time. With more than 1, runs are interleaved instead of samples, and each
            child is always within one run of its share.
    """

    def __init__(
        self,
        children: Sequence[Node],
        weights: Sequence[Any],
        *,
        length: int | None = None,
        limit: int = PERIOD_LIMIT,
        run_length: int = 1,
    ) -> None:
        if len(children) != len(weights):
            raise ConfigError(f"{len(children)} sources and {len(weights)} weights", kind="bad-weight")
        self.schedule, self.limit = run_schedule(weights, run_length, limit), limit
        self.run_length = run_length
        super().__init__(children, self.schedule, length)

    def shares(self, total: int | None) -> tuple[Shares, Shares]:  # noqa: ARG002 - always the same
        return self.schedule.asked, self.schedule.realized

    def part(self, number: int) -> str:
        return f"number {number} of a blend{self.runs} with weight {self.schedule.asked[number]}"

    def describe(self) -> str:
        bound = self.schedule.bound
        wider = "" if bound <= self.run_length else f", within {float(bound):.3g} samples"
        return f"blend {shares_text(self.schedule.asked)}{self.runs}{wider}"
