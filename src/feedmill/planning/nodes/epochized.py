"""Epochized blends: each epoch holds every child a given number of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import AnySchedule, schedule
from feedmill.planning.mixing.lines import LINES_LIMIT
from feedmill.planning.nodes.base import IntArray, Node, borders
from feedmill.planning.nodes.blend import Interleaved, Phases, Shares
from feedmill.planning.nodes.repeat import Repeat, epochs_of, epochs_text


class EpochizedBlend(Interleaved):
    """Node whose epochs hold each child exactly `repetitions` times, spread evenly.

    The weights are the counts themselves, so one period of an exact blend's schedule is one epoch. This needs no table
    of the epoch's length, and each child's share is even throughout. If the node is repeated, each child's stream
    continues: a child with 1/2 repetitions yields the two halves of its order in two epochs, then a new order.

    Args:
        children: finite nodes.
        repetitions: one per child, above 0; a fraction stands for ``floor(fraction * length)`` samples.
        max_repeats: for each child, the maximum number of epochs that the whole plan may use of it, or None.
        names: display names of the children, for messages.
        length: cut each epoch to this length.

    Raises:
        ConfigError: a child is endless, a repetition has no sample, or an epoch is longer than 2^50 samples.
    """

    length: int
    tag = "epochs"
    args = ("length", "repetitions")
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        children: Sequence[Node],
        repetitions: Sequence[Any],
        *,
        max_repeats: Sequence[int | None] = (),
        names: Sequence[str] = (),
        length: int | None = None,
    ) -> None:
        if len(children) != len(repetitions):
            raise ConfigError(f"{len(children)} sources and {len(repetitions)} repetitions", kind="bad-repeat")
        sizes = [child.finite("an epochized blend") for child in children]
        self.counts = [epochs_of(times, size)[1] for times, size in zip(repetitions, sizes, strict=True)]
        self.repetitions = [epochs_of(times, size)[0] for times, size in zip(repetitions, sizes, strict=True)]
        if sum(self.counts) > LINES_LIMIT:
            raise ConfigError(
                f"an epoch of {sum(self.counts):,} samples is longer than 2^50",
                kind="too-long",
                fix="Repeat its sources less often.",
            )
        caps = max_repeats or [None] * len(children)
        titles = names or [""] * len(children)
        streams = [
            Repeat(child, max_repeats=cap, name=name) for child, cap, name in zip(children, caps, titles, strict=True)
        ]
        self.schedule: AnySchedule = schedule(self.counts)
        super().__init__(streams, self.schedule, length, sum(self.counts))

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "repetitions": [str(times) for times in self.repetitions]}

    @property
    def below(self) -> Sequence[Node]:
        return [child.children[0] for child in self.children]  # the constructor adds the repetitions

    @property
    def phases(self) -> Phases:
        return [(None, self.schedule.asked)]

    def seams(self, start: int, stop: int) -> IntArray:
        return np.concatenate([self.child_seams(start, stop), borders([self.length], self.length, start, stop)])

    def shares(self, total: int | None) -> tuple[Shares, Shares]:  # noqa: ARG002 - always the same
        return self.schedule.asked, self.schedule.realized

    def part(self, number: int) -> str:
        return f"number {number} of an epochized blend with weight {self.schedule.asked[number]}"

    def describe(self) -> str:
        return "epochized blend " + " : ".join(epochs_text(times) for times in self.repetitions)
