"""Children mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.blend import PERIOD_LIMIT, Schedule, schedule
from feedmill.planning.nodes.base import LONGEST, NOWHERE, Epochs, IntArray, Junction, Node


class Blend(Junction):
    """The streams of its children, interleaved so that each is always within one sample of its share.

    Endless where all its children are; otherwise it ends before the first position that would draw more from a child
    than that child's one epoch has. Where the blend itself is repeated, each child's stream carries on.

    Args:
        children: the nodes to mix.
        weights: one per child; see `blend.exact_weight`.
        length: end here, if the children last that long.
        limit: longest period.
    """

    def __init__(
        self,
        children: Sequence[Node],
        weights: Sequence[Any],
        *,
        length: int | None = None,
        limit: int = PERIOD_LIMIT,
    ) -> None:
        super().__init__(children)
        if len(children) != len(weights):
            raise ConfigError(f"{len(children)} sources and {len(weights)} weights", kind="bad-weight")
        self.schedule: Schedule = schedule(weights, limit)
        lengths = [child.length for child in children]
        ends = [
            self.schedule.position(i, length)
            for i, length in enumerate(lengths)
            if length is not None and self.schedule.counts[i]
        ]
        self.length = min(*ends, LONGEST) if ends else None
        if length is not None and not 1 <= length <= (self.length or LONGEST):
            raise ConfigError(
                f"the blend cannot have {length:,} samples: a source of it ends after {self.length or LONGEST:,}",
                kind="too-long",
                fix="Ask for fewer samples, or let its sources repeat more often.",
            )
        self.length = length or self.length
        # An endless child is one epoch that outlasts all.
        self._lengths = np.array([LONGEST if length is None else length for length in lengths], np.int64)
        self._endless = all(length is None for length in lengths)
        self._per_epoch = np.array(self.schedule.drawn(self.length) if self.length else self.schedule.counts, np.int64)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[Any], IntArray, Epochs]:
        child, ordinal = self.schedule.at(positions)
        if self._endless:
            return child, ordinal, 0
        if isinstance(epochs, np.ndarray) or epochs:
            ordinal = ordinal + epochs * self._per_epoch[child]
        sizes = self._lengths[child]
        inner_epochs = ordinal // sizes
        return child, ordinal - inner_epochs * sizes, inner_epochs

    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        ordinal = epochs * self._lengths[child] + positions
        never = self._per_epoch[child] == 0
        known = np.where(never, int(self._per_epoch.argmax()), child)
        if self.length is None:
            return np.where(never, NOWHERE, self.schedule.positions(known, ordinal)), epochs * 0
        own_epochs, rest = np.divmod(ordinal, self._per_epoch[known])
        return np.where(never, NOWHERE, self.schedule.positions(known, rest)), own_epochs

    def draws(self, total: int) -> Sequence[int]:
        if self.length is None:
            return self.schedule.drawn(total)
        epochs, rest = divmod(total, self.length)
        return [
            epochs * int(each) + part for each, part in zip(self._per_epoch, self.schedule.drawn(rest), strict=True)
        ]

    def describe(self) -> str:
        return "blend " + " : ".join(str(share) for share in self.schedule.asked)
