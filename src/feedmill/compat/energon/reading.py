"""Which samples of a dataset Energon's functions and factories read for training or validation, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset, Order
from feedmill.planning.nodes import Leaf, Node, Repeat, Subset, shuffled
from feedmill.planning.nodes.shuffle import DEFAULT_PARALLEL
from feedmill.planning.permutation import derive
from feedmill.planning.plan import Plan

_PERCENT = 12
"""Decimals of a percentage in a recipe."""


@dataclass(kw_only=True)
class DatasetSubset:
    """A range of the samples of a split: first `absolute_range`, then `range` of what is left.

    Attributes:
        range: first and end as shares of the samples, from 0 to 1; None for all.
        absolute_range: numbers of the first sample and of the end; an end of None is that of the split.
    """

    range: tuple[float, float] | None = None
    absolute_range: tuple[int, int | None] | None = None

    def compute_subset(self, total_samples: int) -> tuple[int, int]:
        """Return the numbers of the first sample and of the end, computed as in Energon: with floats.

        Raises:
            ConfigError: the range is empty, or lies outside the samples.
        """
        first, end = 0, total_samples
        if self.absolute_range is not None:
            first, stop = self.absolute_range
            end = total_samples if stop is None else stop
        outside = not 0 <= first <= end <= total_samples
        if self.range is not None and not outside:
            size, (start, stop_share) = end - first, self.range
            first, end = first + int(size * start), first + int(size * stop_share)
        if outside or not 0 <= first < end <= total_samples:
            raise ConfigError(
                f"{self} is empty or outside the {total_samples:,} samples of the split",
                kind="bad-recipe",
                fix="Give a first and a later end: shares from 0 to 1 in 'range', sample numbers in 'absolute_range'.",
            )
        return first, end

    def bounds(self, dataset: Dataset) -> tuple[int, int]:
        """Return the numbers of the first sample and of the end in a dataset; excluded samples count, as in Energon.

        Raises:
            ConfigError: the range is empty, or lies outside the samples.
        """
        first, end = map(dataset.kept_before, self.compute_subset(dataset.stored_length))
        if first == end:
            raise ConfigError(
                f"{self} has only excluded samples", file=dataset.url, kind="bad-recipe", fix="Give a larger range."
            )
        return first, end

    def ranges(self) -> tuple[tuple[int | str, int | str], ...]:
        """Return the ranges as a recipe has them, in the order in which they apply."""
        found: list[tuple[int | str, int | str]] = []
        if self.absolute_range is not None:
            first, stop = self.absolute_range
            found.append((first, "end" if stop is None else stop))
        if self.range is not None:
            start, end = (f"{round(Decimal(repr(float(share))) * 100, _PERCENT):f}%" for share in self.range)
            found.append((start, end))
        return tuple(found)

    def config(self) -> dict[str, Any]:
        """Return the ranges as plain data."""
        return {"range": self.range, "absolute_range": self.absolute_range}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Energon's settings of a factory for the order, which those of the dataset's description override.

    Attributes:
        shuffle_over_epochs: passes of a loop for training, each a permutation; None for the stored order, -1 for a loop
            without end.
        parallel_shard_iters: shards that are read side by side; None for 16.
        max_samples_per_sequence: samples of the pieces that shards are cut into; None for whole shards.
        bounds: numbers of the first sample and of the end; None for all.

    Raises:
        ConfigError: a number is not valid.
    """

    shuffle_over_epochs: int | None = 1
    parallel_shard_iters: int | None = None
    max_samples_per_sequence: int | None = None
    bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence"):
            check_count(name, getattr(self, name), or_endless=name == "shuffle_over_epochs")

    def described(self, order: Order) -> Reading:
        """Return the settings with those of a description in place of their own, as in Energon."""
        if order == Order():
            return self
        return replace(
            self,
            shuffle_over_epochs=(order.passes or self.shuffle_over_epochs) if order.shuffles else None,
            parallel_shard_iters=order.parallel or self.parallel_shard_iters,
            max_samples_per_sequence=order.sequence or self.max_samples_per_sequence,
        )

    @property
    def shuffle(self) -> dict[str, Any] | str:
        """Return the shuffle of a recipe without a shuffle buffer."""
        if self.shuffle_over_epochs is None:
            return "none"
        given = {"parallel": self.parallel_shard_iters, "sequence": self.max_samples_per_sequence}
        return {"kind": "shards", **{name: number for name, number in given.items() if number is not None}}

    @property
    def epochs(self) -> int | None:
        """Return the passes of one loop; None for no end."""
        passes = self.shuffle_over_epochs
        return 1 if passes is None else None if passes < 0 else passes

    def count(self, dataset: Dataset) -> int:
        """Return the number of different samples."""
        return len(dataset) if self.bounds is None else self.bounds[1] - self.bounds[0]

    def plan(self, dataset: Dataset, *, training: bool, seed: int) -> Plan:
        """Return the plan of one loop over a dataset.

        Raises:
            ConfigError: the dataset is empty.
        """
        if not len(dataset):
            raise ConfigError("the dataset has no samples", file=dataset.url, kind="empty-source", fix="Remove it.")
        own, name = self.described(dataset.opened.order), dataset.url.rstrip("/").rpartition("/")[2]
        node: Node = Leaf(0, len(dataset))
        if self.bounds is not None:
            node = Subset(node, *self.bounds)
        if not training:
            return Plan(Repeat(node, 1), [dataset], [name], seed)
        if own.shuffle_over_epochs is not None:
            node = shuffled(
                node,
                "shards",
                derive(seed, "shuffle", name),
                parallel=own.parallel_shard_iters or DEFAULT_PARALLEL,
                sequence=own.max_samples_per_sequence,
                sources=[dataset],
            )
        return Plan(Repeat(node, own.epochs), [dataset], [name], seed)


def check_count(name: str, given: Any, *, or_endless: bool = False) -> None:
    """Raise `ConfigError` for a setting that is neither None nor a number from 1; with `or_endless`, nor -1."""
    if given is None or (type(given) is int and (given >= 1 or (or_endless and given == -1))):
        return
    raise ConfigError(
        f"{name}={given!r} is not a number from 1{', -1' if or_endless else ''} or None",
        kind="bad-option",
        fix="Omit it for the default.",
    )
