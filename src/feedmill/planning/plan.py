"""The plan: a tree of index maps bound to opened datasets. Which sample comes at position k, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, NotFound
from feedmill.planning import bounds
from feedmill.planning.columns import read_batch
from feedmill.planning.inverse import positions_of
from feedmill.planning.nodes import Blend, Concat, Leaf, Located, Node, Repeat, Skip, shuffled
from feedmill.planning.nodes.base import LONGEST, Junction
from feedmill.planning.permutation import ORDER_VERSION, derive
from feedmill.planning.report import Report, draws, report
from feedmill.planning.resuming.changes import explain, fingerprint_of, ways
from feedmill.planning.resuming.resume import Allowed, bookmark, reopened
from feedmill.planning.skip_ranges import Gaps
from feedmill.planning.tokens import Tokens
from feedmill.planning.tree import Tree, render

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset, Source
    from feedmill.formats.batches import Batch, Want
    from feedmill.planning.dealing.dealer import Dealing
    from feedmill.planning.packing.spans import LocatedSpans

IntArray = npt.NDArray[np.int64]


class Plan:
    """A pure function from positions to samples, over opened datasets. Several threads may call it.

    Args:
        node: the root of the tree; its leaves are numbered like `sources`.
        sources: the datasets.
        names: what people call them, each once.
        seed: the seed that the shuffles' keys were made from.

    Attributes:
        dealing: which rank gets which position of a global batch, where the recipe says so. It changes no global batch,
            and so is no part of the fingerprint.

    Raises:
        ConfigError: leaves and sources do not fit together, or a source is repeated more often than it may be.
    """

    def __init__(self, node: Node, sources: Sequence[Dataset], names: Sequence[str], seed: int = 0) -> None:
        if sorted(node.leaves) != list(range(len(sources))) or len(set(names)) != len(sources) or not sources:
            raise ConfigError(
                f"the plan has {len(node.leaves)} leaves, {len(sources)} sources and {len(set(names))} different names",
                kind="bad-plan",
                fix="Give each source one leaf and a name of its own.",
            )
        for leaf in _leaves(node):
            if leaf.length != len(sources[leaf.number]):
                raise ConfigError(
                    f"the plan counts on {leaf.length:,} samples, the dataset has {len(sources[leaf.number]):,}",
                    file=sources[leaf.number].url,
                    kind="bad-plan",
                )
        self.node = node
        self.sources = list(sources)
        self.names = list(names)
        self.seed = seed
        self._length = bounds.longest(node)
        self.dealing: Dealing | None = None
        self.again: Callable[[], Plan] | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Another process makes a recipe's plan again: sending the recipe is cheaper than sending what came of it."""
        if self.again is None:
            return super().__reduce_ex__(protocol)
        return _planned_again, (self.again, self.fingerprint)

    @property
    def length(self) -> int | None:
        """The number of positions, or None if the plan never ends."""
        return self._length

    @classmethod
    def over(
        cls,
        datasets: Dataset | Sequence[Dataset],
        weights: Sequence[Any] | None = None,
        *,
        shuffle: Literal["none", "global", "block"] = "block",
        seed: int = 0,
        epochs: int | float | str | None = None,
    ) -> Plan:
        """Return a plan without a recipe.

        Args:
            datasets: one dataset, or several.
            weights: their weights in a blend; without them several datasets are shuffled together as one.
            shuffle: ``none``, ``global`` or ``block``.
            seed: any integer.
            epochs: passes over the data, 2.5 as well; None for no end. A blend has no epochs.

        Raises:
            ConfigError: nothing to read, bad weights, or `epochs` with `weights`.
        """
        several = list(datasets) if isinstance(datasets, Sequence) else [datasets]
        names = unique_names([dataset.url.rstrip("/").rpartition("/")[2] for dataset in several])
        leaves = [_leaf(number, dataset) for number, dataset in enumerate(several)]
        if weights is None:
            together = leaves[0] if len(leaves) == 1 else Concat(leaves)
            order = shuffled(together, shuffle, derive(seed, "shuffle", *names))
            return cls(Repeat(order, epochs), several, names, seed)
        if epochs is not None:
            raise ConfigError(
                "a blend has no epochs: its sources end at different times",
                kind="bad-epochs",
                fix="Leave 'epochs' out and stop after as many samples as you want.",
            )
        streams = [
            Repeat(shuffled(leaf, shuffle, derive(seed, "shuffle", name)))
            for leaf, name in zip(leaves, names, strict=True)
        ]
        return cls(Blend(streams, weights), several, names, seed)

    def locate(self, positions: npt.ArrayLike) -> Located:
        """Return source, sample number and epoch of each position: int32[n], int64[n], int64[n].

        Raises:
            NotFound: a position outside ``[0, length)``.
        """
        return self.node.locate(self._checked(positions))

    def positions(self, source: int | str, index: int, within: int | None = None) -> IntArray:
        """Return all positions of one sample, in order, int64[n].

        Args:
            source: number or name of the source.
            index: number of the sample in it.
            within: look at the first N positions only; needed where the plan is endless.

        Raises:
            NotFound: no such source or sample.
            ConfigError: the plan is endless and `within` is missing, or it gives the sample millions of times.
        """
        return self.positions_of(source, [index], within)

    def positions_of(self, source: int | str, indices: Sequence[int], within: int | None = None) -> IntArray:
        """As `positions`, of several samples of a source, each named once: where any of them comes, int64[n]."""
        number = self._number(source)
        missing = [index for index in indices if not 0 <= index < len(self.sources[number])]
        if missing:
            raise NotFound(
                f"there is no sample {missing[0]} (the source has {len(self.sources[number]):,})",
                file=self.names[number],
            )
        end = self._budget(within)
        if end is None:
            raise ConfigError(
                "the plan is endless, and so are a sample's positions", kind="endless", fix="Say how far with 'within'."
            )
        return positions_of(self.node, number, self.names[number], indices, end)

    def locate_to_read(self, positions: npt.ArrayLike) -> Located | LocatedSpans:
        """Return what `read` has to know of positions, for who needs it too."""
        return self.locate(positions)

    def locate_ahead(self, positions: npt.ArrayLike) -> Located | None:
        """`locate`, for many positions that are read later, some at a time: a call costs as much as thousands of
        positions. None if reading asks for something else."""
        return self.locate(positions)

    def read(self, positions: npt.ArrayLike, located: Located | None = None) -> list[Any]:
        """Return the samples at these positions, in that order, by one bulk read per source in stored order.

        Args:
            positions: int64[n].
            located: what `locate_to_read` or `locate_ahead` gave for them.
        """
        located = self._located(positions, located)
        order = np.lexsort((located.index, located.source))
        samples: list[Any] = [None] * len(order)
        for rows in _runs(order, located.source):
            found = self.sources[located.source[rows[0]]].read(located.index[rows])
            for row, sample in zip(rows.tolist(), found, strict=True):
                samples[row] = sample
        return samples

    def _located(self, positions: npt.ArrayLike, located: Located | None) -> Located:
        return self.node.locate(self._checked(positions)) if located is None else located

    def read_batch(self, positions: npt.ArrayLike, want: Want, located: Located | None = None) -> Batch | None:
        """The samples at these positions as a batch, or the parts of one, see `Dataset.read_batch`; None if their
        datasets have no short way to that, or it does not fit together."""
        return read_batch(self.sources, self._located(positions, located), want)

    def locate_sample(self, source: int, index: int) -> Source:
        """Return where a sample of a source is stored."""
        return self.sources[source].locate(index)

    def bookmark(self, position: int) -> dict[str, Any]:
        """Return what a state keeps beside position and fingerprint, so that the plan may change."""
        return bookmark(self, position)

    def reopened(self, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:
        """Return the position at which a run resumes whose state was saved with another plan; see
        `feedmill.planning.resuming.resume`. Raises ConfigError if that is not allowed."""
        return reopened(self, state, allowed, proven)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Return what determines the order, part by part: the seed, each source's path in the tree, and its data.

        Where the plan stops is not among them: a run may be made longer.
        """
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        parts = {"order": f"version {ORDER_VERSION}", "seed": str(self.seed)}
        if self.skip is not None:
            parts["skip"] = self.skip.said
        paths = dict(ways(self.node.child if isinstance(self.node, Skip) else self.node))
        for number, (name, dataset) in enumerate(zip(self.names, self.sources, strict=True)):
            parts[f"source {name}"] = paths[number]
            parts[f"data of {name}"] = f"{len(dataset)} samples {dataset.fingerprint()}"
        return parts

    @property
    def fingerprint(self) -> str:
        """Return one hash of the whole plan: equal fingerprints mean the same order of the same samples."""
        return fingerprint_of(self.fingerprints)

    @property
    def skip(self) -> Gaps | None:
        """The positions that the plan's skip list removes, or None."""
        return self.node.gaps if isinstance(self.node, Skip) else None

    def position_of(self, unskipped: int) -> int:
        """Return the position of an unskipped position: `trace` shows both, `Loader(..., start=)` counts this one.

        Args:
            unskipped: a position as it counts without the plan's skip list. For one that is skipped, the position of
                the next one that is not.

        Raises:
            NotFound: it lies outside the plan; its end, behind the last position, is allowed.
        """
        skipped = 0 if self.skip is None else self.skip.skipped(unskipped)
        end = None if self.length is None else self.length + (0 if self.skip is None else self.skip.count)
        if unskipped < 0 or (end is not None and unskipped > end):
            raise NotFound(
                f"there is no unskipped position {unskipped:,}: the plan has {'no end' if end is None else f'{end:,}'}",
                kind="no-such-position",
                fix="Give a position as 'feedmill trace' shows it under 'unskipped'.",
            )
        return unskipped - skipped

    def skipping(self, ranges: Iterable[tuple[int, int]], said: str = "") -> Plan:
        """Return this plan without some ranges ``(first, stop)`` of its positions; later positions move up.

        Raises:
            ConfigError: a range is empty or outside the plan, or nothing would be left.
        """
        plan = Plan(Skip(self.node, ranges, said), self.sources, self.names, self.seed)
        plan.dealing = self.dealing
        return plan

    def explain_change(self, old: Mapping[str, str]) -> list[str]:
        """What differs between this plan and the one whose `fingerprints` were `old`, a phrase for each difference."""
        return explain(old, self.fingerprints)

    def report(self, samples: int | None = None) -> Report:
        """Return weights, draws and repeats of each source, for the first `samples` positions or the whole plan."""
        return report(self.node, self.names, self.length, self._budget(samples), self._means.mean_where_known)

    def drawn(self, samples: int) -> list[int]:
        """Return how many samples the first `samples` positions draw from each source; as `report` has it."""
        counts = draws(self.node, samples)
        return [counts[leaf][0] for leaf in range(len(self.sources))]

    @cached_property
    def _means(self) -> Tokens:
        return Tokens(self.sources)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the plan is endless and has no len(); plan.length is None")
        return self.length

    def __str__(self) -> str:
        size = "endless" if self.length is None else f"{self.length:,} samples"
        return render((f"plan, {size}, seed {self.seed}", [self._tree(self.node)]))

    def __repr__(self) -> str:
        size = "endless" if self.length is None else self.length
        return f"<Plan: {size}, {len(self.sources)} sources, {self.fingerprint}>"

    def _tree(self, node: Node) -> Tree:
        """One line per source or junction; the nodes that rearrange it stand on its line."""
        words = []
        while not isinstance(node, Leaf | Junction):
            words.append(node.describe())
            node = node.children[0]
        if isinstance(node, Leaf):
            return ", ".join([f"{self.names[node.number]}: {node.describe()}", *reversed(words)]), []
        return ", ".join([node.describe(), *reversed(words)]), [self._tree(child) for child in node.children]

    def _checked(self, positions: npt.ArrayLike) -> IntArray:
        given = np.asarray(positions)
        if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
            raise ConfigError(
                f"positions are whole numbers in one row, not {given.dtype} of shape {given.shape}", kind="bad-position"
            )
        row = given.astype(np.int64).reshape(-1)
        if len(row):
            low, high = int(given.min()), int(given.max())
            end = self.length
            if end is None:
                end = LONGEST - (self.skip.count if self.skip else 0)
            if low < 0 or high >= end:
                raise NotFound(
                    f"there is no position {low if low < 0 else high} (the plan has {end:,})",
                    kind="no-such-position",
                    fix="Positions count from 0; 'samples' or 'epochs' in the recipe say where they end.",
                )
        return row

    def _budget(self, samples: int | None) -> int | None:
        if samples is None:
            return self.length
        most = LONGEST if self.length is None else self.length
        if not 0 <= samples <= most:
            raise ConfigError(
                f"{samples:,} samples are asked for, the plan has {most:,}",
                kind="bad-budget",
                fix="Ask for fewer, or let the recipe give more: samples, epochs, max_repeats.",
            )
        return samples

    def source(self, source: int | str) -> Dataset:
        """Return a source's dataset, by number or name. Raises `NotFound`."""
        return self.sources[self._number(source)]

    def _number(self, source: int | str) -> int:
        known = self.names.index(source) if source in self.names else source
        if isinstance(known, str) or not 0 <= known < len(self.sources):
            raise NotFound(
                f"there is no source {source!r}", kind="no-such-source", fix=f"There are: {', '.join(self.names)}."
            )
        return known


def _planned_again(again: Callable[[], Plan], fingerprint: str) -> Plan:
    plan = again()
    if plan.fingerprint != fingerprint:
        raise ConfigError(
            "the recipe's data has changed since the main process has opened it",
            kind="changed",
            fix="Start the run again.",
        )
    return plan


def unique_names(wanted: Sequence[str]) -> list[str]:
    """Return the names, with ``-2``, ``-3``, ... after those that came before.

    >>> unique_names(["docs", "code", "docs"])
    ['docs', 'code', 'docs-2']
    """
    taken: dict[str, int] = {}  # name -> the last number that was tried behind it
    names = []
    for name in wanted:
        name = free = name or "source"
        while free in taken:
            taken[name] += 1
            free = f"{name}-{taken[name]}"
        taken[free] = 1
        names.append(free)
    return names


def _runs(order: IntArray, source: npt.NDArray[np.int32]) -> list[IntArray]:
    """Rows in the order of their sources, source by source."""
    return np.split(order, np.flatnonzero(np.diff(source[order])) + 1) if len(order) else []


def _leaf(number: int, dataset: Dataset) -> Leaf:
    if not len(dataset):
        raise ConfigError("the dataset has no samples", file=dataset.url, kind="empty-source", fix="Leave it out.")
    return Leaf(number, len(dataset))


def _leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    for child in node.children:
        yield from _leaves(child)
