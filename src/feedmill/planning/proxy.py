"""Proxies: small runs whose sources repeat as often as in the large run that they stand for.

A proxy of size *f* (1/200 for 1B of 200B tokens) draws from *f* of each source's samples, rounded up, and is *f* as
long, rounded down. So each source is drawn *f* times as often, from *f* times as many samples: it repeats as often as
in the large run, but for one sample of the blend, and what rounding takes. `feedmill.planning.nodes.subset` says
which samples are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, TypeVar

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Node, Subsample
from feedmill.planning.report import Apart, ProxyReport, Report, Rounded, draws

if TYPE_CHECKING:
    from feedmill.planning.tokens import Tokens

AnyReport = TypeVar("AnyReport", bound=Report)

_TOLERANCE = Fraction(1, 100)
"""How far the recipe's own length may be from what the proxy says of it."""


@dataclass(frozen=True)
class Proxy:
    """What makes a plan a proxy.

    Attributes:
        unit: what `amount` and `of` count.
        amount, of: length of the proxy and of the target, the run that it stands for.
        plan_target: returns the root of the target's tree, whose leaves have the same numbers.
    """

    unit: Literal["tokens", "samples"]
    amount: int
    of: int
    plan_target: Callable[[], Node]

    @property
    def factor(self) -> Fraction:
        """The size of the proxy as a share of the target."""
        return Fraction(self.amount, self.of)

    @cached_property
    def target(self) -> Node:
        """The root of the target's tree."""
        return self.plan_target()

    def __str__(self) -> str:
        return f"proxy of {self.amount:,} of {self.of:,} {self.unit}"

    def compared(self, report: AnyReport, root: Node, samples: int | None) -> AnyReport:
        """Return a report with the repeats of each source in the target, at the same point of its run.

        Args:
            report: the report of the proxy.
            root: the root of the proxy's tree.
            samples: samples that it covers, of packed rows documents; None for an endless plan without a budget.
        """
        whole = {leaf: each.used for leaf, each in enumerate(report.sources)}
        whole |= {node.leaves[0]: node.available for node in subsamples(root)}
        rounded = []
        for leaf, source in enumerate(report.sources):
            exact = whole[leaf] * self.factor
            if source.used - exact > exact * _TOLERANCE:
                rounded.append(Rounded(source.name, source.used, float(exact)))
        found = ProxyReport(self.unit, self.amount, self.of, tuple(rounded))
        if samples is None:
            return replace(report, proxy=found)
        total = round(samples / self.factor)
        drawn = draws(self.target, total if self.target.length is None else min(total, self.target.length))
        sources, apart = [], []
        for number, source in enumerate(report.sources):
            sources.append(replace(source, target_repeats=drawn[number][0] / whole[number]))
            if (difference := sources[-1].repeats_apart) is not None:
                apart.append(Apart(source.name, difference))
        names = {each.name for each in rounded}
        largest = partial(max, key=lambda each: abs(each.difference), default=None)
        found = replace(
            found, largest=largest(apart), largest_of_others=largest(a for a in apart if a.source not in names)
        )
        return replace(report, sources=tuple(sources), proxy=found)


def subsamples(node: Node) -> list[Subsample]:
    """Return the nodes of a tree that draw the samples of its sources."""
    if isinstance(node, Subsample):
        return [node]
    return [found for child in node.children for found in subsamples(child)]


def scaled_length(length: int, factor: Fraction, run_length: int = 1) -> int:
    """Return a length in a proxy: whole runs, rounded down."""
    return int(length * factor / run_length) * run_length


def expected(root: Node, total: int, means: Tokens, unit: str) -> Fraction:
    """Return the samples, or the expected tokens, in the first positions of a tree.

    Raises:
        ConfigError: the tokens of a source are unknown.
    """
    if unit == "samples":
        return Fraction(total)
    leaves = {node.leaves[0]: node for node in _parts(root)}
    counts = {leaf: count for leaf, (count, _) in draws(root, total).items() if count}
    return sum((count * means.mean(leaves[leaf]) for leaf, count in counts.items()), Fraction(0))


def _parts(node: Node) -> list[Node]:
    """Return the largest parts of a tree that have one source."""
    return [node] if len(node.leaves) == 1 else [part for child in node.children for part in _parts(child)]


def samples_for(root: Node, amount: int, most: int, means: Tokens, unit: str) -> int:
    """Return the largest number of positions that have at most `amount` tokens, or samples; `most` if all do.

    Raises:
        ConfigError: one sample has more, or the tokens of a source are unknown.
    """
    if unit == "samples":
        return min(amount, most)
    low, high = 0, 1
    while high < most and expected(root, high, means, unit) <= amount:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if expected(root, middle, means, unit) <= amount else (low, middle)
    if expected(root, high, means, unit) <= amount:
        low = high
    if low < 1:
        raise ConfigError(
            f"a proxy of {amount:,} {unit} has less than one sample", kind="bad-recipe", fix="Make it larger."
        )
    return low


def is_about(own: Fraction, said: int) -> bool:
    """Return whether a length is within 1 %, or one sample, of what a recipe says of it."""
    return abs(own - said) <= max(_TOLERANCE * said, Fraction(1))
