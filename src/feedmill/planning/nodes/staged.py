"""Staged blends: weights that change at given sample counts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.mixing.stages import Stages
from feedmill.planning.nodes.base import IntArray, Node, borders
from feedmill.planning.nodes.blend import Interleaved, Phases, Shares, shares_text, short_weights


class StagedBlend(Interleaved):
    """A blend in stages, each with its own weights; each child's stream continues from stage to stage.

    A child with weight 0 in a stage pauses there. If the last stage ends and the node is repeated, the first stage
    follows, and the children's streams continue. For the bounds, see `feedmill.planning.mixing.stages`.

    Args:
        children: the nodes to interleave.
        stages: for each stage its length in samples and a weight per child; the last length may be None (open-ended).
        length: length of the node; must not exceed what stages and children allow.
        run_length: samples of one source at a time; the length of every stage but the last must be a multiple of it.
    """

    tag = "stages"
    args = ("length", "stages")
    restarts = True

    def __init__(
        self,
        children: Sequence[Node],
        stages: Sequence[tuple[int | None, Sequence[Any]]],
        *,
        length: int | None = None,
        run_length: int = 1,
    ) -> None:
        for number, (_, weights) in enumerate(stages):
            if len(weights) != len(children):
                raise ConfigError(
                    f"{len(children)} sources and {len(weights)} weights in stage {number + 1}", kind="bad-weight"
                )
        self.stages = Stages([weights for _, weights in stages], [samples for samples, _ in stages], run_length)
        self.run_length = run_length
        super().__init__(children, self.stages, length, self.stages.length)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "stages": [[size, short_weights(asked)] for size, asked in self.phases]}

    @property
    def phases(self) -> Phases:
        parts = zip(self.stages.samples, self.stages.schedules, strict=True)
        return [(samples, schedule.asked) for samples, schedule in parts]

    def seams(self, start: int, stop: int) -> IntArray:
        ends = [end for end in self.stages.starts[1:] if self.length is None or end < self.length]
        ends += [] if self.length is None else [self.length]
        return np.concatenate([self.child_seams(start, stop), borders(ends, self.length, start, stop)])

    def shares(self, total: int | None) -> tuple[Shares, Shares] | None:
        total = self.length if total is None else total
        if not total:
            return None
        rounds, rest = (0, total) if self.length is None else divmod(total, self.length)
        whole = self.stages.asked(self.length or 0)
        exact = [rounds * a + b for a, b in zip(whole, self.stages.asked(rest), strict=True)]
        return tuple(each / total for each in exact), tuple(Fraction(count, total) for count in self.draws(total))

    def part(self, number: int) -> str:
        steps = [str(asked[number]) + ("" if size is None else f" for {size:,}") for size, asked in self.phases]
        return f"number {number} of a staged blend{self.runs} with weight {', then '.join(steps)}"

    def describe(self) -> str:
        steps = [shares_text(asked) + ("" if size is None else f" for {size:,}") for size, asked in self.phases]
        return f"blend in stages {', then '.join(steps)}{self.runs}"
