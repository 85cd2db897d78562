"""Plans: a tree of index maps bound to opened datasets. Maps positions to samples, and samples to positions.

Below the class are its parts: the trees of `Plan.over`, the checks of positions as users give them, the search for the
positions of samples, and the reading of batches from several datasets as columns, without building sample objects.
`report` and `resuming` know nodes, and nothing of this module; what deals, packs and compiles is above it.

What is read for cells is the dataset that they are cells of (`Bases`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, NotFound, integer, suggesting
from feedmill.formats.base import Dataset
from feedmill.formats.batches import Batch, Columns, Shifted, Want
from feedmill.jobs.buffers import empty
from feedmill.notebooks import Showable
from feedmill.planning import bounds
from feedmill.planning.nodes import Blend, Concat, Leaf, Located, Node, Repeat, Skip, shuffled
from feedmill.planning.nodes.base import LONGEST, leaves_of, render, tree_of, unique_names
from feedmill.planning.nodes.repeat import epochs_of
from feedmill.planning.nodes.skip import Gaps
from feedmill.planning.permutation import ORDER_VERSION, derive
from feedmill.planning.resuming.changes import explain, fingerprint_of, ways

if TYPE_CHECKING:
    import feedmill
    from feedmill.formats.cells import CellTable
    from feedmill.formats.offsets import Extents
    from feedmill.formats.sample import Source
    from feedmill.planning.dealing.rules import Dealing
    from feedmill.planning.packing.spans import LocatedSpans
    from feedmill.planning.proxy import Proxy
    from feedmill.planning.report import Report
    from feedmill.planning.resuming.resume import Allowed
    from feedmill.planning.tokens import Tokens
    from feedmill.storage.cache.settings import DataCache


IntArray = npt.NDArray[np.int64]
_REPORTS = 8  # reports that a plan keeps: what is shown of it asks for the same ones several times


class Plan(Showable):
    """A pure function from positions to samples over opened datasets. Thread-safe.

    Args:
        node: the root of the tree; its leaves are numbered like `sources`.
        sources: the datasets.
        names: their display names, which must be unique.
        seed: the seed from which the shuffle keys were derived.

    Attributes:
        dealing: how the positions of a global batch are dealt to ranks, if the recipe specifies it. It does not change
            the contents of any global batch, so it is not part of the fingerprint.
        cache: where remote data is kept on this machine, if the recipe specifies it; None: as in the environment.
        reads_apart: whether each sample, and each row of a column, depends only on its own position, so that several
            batches may be read in one call.
        loss: mean loss tokens of its nodes, if the recipe's weights count them; `report` then shows them.
        proxy: what makes it a small run that stands for a large one, if the recipe says so.
        transform, collate: how a loader makes batches by default, if the recipe specifies it (``targets``). They do not
            change which samples come when, so they are not part of the fingerprint.

    Raises:
        ConfigError: leaves and sources do not match, or a source is repeated more often than its limit allows.
    """

    reads_apart: ClassVar[bool] = True

    def __init__(self, node: Node, sources: Sequence[Dataset] = (), names: Sequence[str] = (), seed: int = 0) -> None:
        if not isinstance(node, Node):
            raise TypeError(
                f"a plan is not made of a {type(node).__name__} in this way. Use fm.Plan.over(dataset), or"
                " fm.Recipe.load(path).plan()."
            )
        if sorted(node.leaves) != list(range(len(sources))) or len(set(names)) != len(sources) or not sources:
            raise ConfigError(
                f"the plan has {len(node.leaves)} leaves, {len(sources)} sources and {len(set(names))} different names",
                kind="bad-plan",
                fix="Give each source one leaf and a unique name.",
            )
        for leaf in leaves_of(node):
            if leaf.length != len(sources[leaf.number]):
                raise ConfigError(
                    f"the plan expects {leaf.length:,} samples, the dataset has {len(sources[leaf.number]):,}",
                    file=sources[leaf.number].url,
                    kind="bad-plan",
                )
        self.node = node
        self.sources = list(sources)
        self.names = list(names)
        self.seed = seed
        self._length = bounds.longest(node)
        self.dealing: Dealing | None = None
        self.cache: DataCache | None = None
        self.loss: Tokens | None = None
        self.units: Tokens | None = None
        self.proxy: Proxy | None = None
        self.transform: Callable[..., Any] | None = None
        self.collate: Callable[[list[Any]], Any] | None = None
        self.again: Callable[[], Plan] | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Rebuild a recipe's plan in the receiving process: pickling the recipe is cheaper than pickling the plan."""
        if self.again is None:
            return super().__reduce_ex__(protocol)
        return _planned_again, (self.again, self.fingerprint)

    @property
    def length(self) -> int | None:
        """The number of positions, or None if the plan never ends."""
        return self._length

    @cached_property
    def bases(self) -> Bases:
        """The datasets that are read for the sources: cells of one dataset are read together."""
        return Bases(self.sources)

    @classmethod
    @suggesting(
        num_workers="workers are an option of fm.Loader.",
        batch_size="the batch size is an option of fm.Loader.",
        split="open the dataset with fm.open(path, split=...).",
    )
    def over(
        cls,
        datasets: Dataset | str | os.PathLike[str] | Sequence[Dataset | str | os.PathLike[str]],
        weights: Sequence[Any] | None = None,
        *,
        shuffle: ShuffleKind | Mapping[str, Any] | None = None,
        seed: int = 0,
        epochs: int | float | str | None = None,
    ) -> Plan:
        """Return a plan without a recipe.

        Args:
            datasets: one or more datasets, or their paths or URLs.
            weights: their weights in a blend. Without weights, several datasets are shuffled together as one.
            shuffle: ``none``, ``global``, ``block`` or ``shards``; or, as in a recipe, a mapping with the options of a
                kind: ``{"kind": "shards", "parallel": 4}``. By default ``block``, unless the description of a dataset
                keeps the stored order (``shuffle_over_epochs: null``).
            seed: any integer.
            epochs: passes over the data, which may be fractional (2.5); None for an endless plan. Not allowed for a
                blend of several datasets.

        Raises:
            ConfigError: a dataset is empty or something else, weights are invalid, the seed is not a whole number, or
                both `epochs` and `weights` are given.
        """
        seed = integer("seed", seed)
        return cls(*tree_over(datasets, weights, shuffle, seed, epochs), seed)

    def locate(self, positions: npt.ArrayLike) -> Located:
        """Return source, sample number and epoch of each position: int32[n], int64[n], int64[n].

        Raises:
            NotFound: a position outside ``[0, length)``.
        """
        return self.node.locate(self._checked(positions))

    def next_uses(self, located: Located) -> IntArray:
        """Return the position at which the plan yields each located sample again, int64[n]; -1 if there is none.

        This is a hint, for caches: -1 also if the next occurrence is skipped. In Nanotron's order, whose epochs of a
        source overlap, it may be a later occurrence, or -1.
        """
        positions, rounds = self.node.positions(Located(located.source, located.index, located.epoch + 1))
        end = LONGEST if self.length is None else self.length
        return np.where((positions >= 0) & (positions < end) & (rounds == 0), positions, -1)

    def positions(self, source: int | str, index: int, within: int | None = None) -> IntArray:
        """Return all positions of one sample, in order, int64[n].

        Args:
            source: number or name of the source.
            index: number of the sample in it.
            within: search only the first N positions. Required if the plan is endless.

        Raises:
            NotFound: no such source or sample.
            ConfigError: the plan is endless and `within` is missing, or the plan yields the sample millions of times.
        """
        return self.positions_of(source, [index], within)

    def positions_of(self, source: int | str, indices: Sequence[int], within: int | None = None) -> IntArray:
        """Return all positions of several samples of a source, in order, int64[n]; `indices` must not repeat.

        See `positions` for the other arguments and the errors.
        """
        number = self._source_number(source)
        missing = [index for index in indices if not 0 <= index < len(self.sources[number])]
        if missing:
            raise NotFound(
                f"there is no sample {missing[0]} (the source has {len(self.sources[number]):,})",
                file=self.names[number],
            )
        end = self._budget(within)
        if end is None:
            raise ConfigError(
                "an endless plan has no last position of a sample", kind="endless", fix="Give a limit with 'within'."
            )
        return positions_of(self.node, number, self.names[number], indices, end)

    def locate_to_read(self, positions: npt.ArrayLike) -> Located | LocatedSpans:
        """Return the locations that `read` needs for these positions, so that a caller can share them."""
        return self.locate(positions)

    def locate_ahead(self, positions: npt.ArrayLike) -> Located | None:
        """Locate many positions at once for later reads: a call has the fixed cost of locating thousands of positions.

        Return None if `read` does not use locations of this kind.
        """
        return self.locate(positions)

    def read(self, positions: npt.ArrayLike, located: Located | None = None) -> list[Any]:
        """Return the samples at these positions, in that order, with one bulk read per source in stored order.

        Args:
            positions: int64[n].
            located: the result of `locate_to_read` or `locate_ahead` for them, if known.
        """
        located = self.bases.read_from(self._located(positions, located))
        order = np.lexsort((located.index, located.source))
        samples: list[Any] = [None] * len(order)
        for rows in _runs(order, located.source):
            read_samples = self.bases.datasets[located.source[rows[0]]].read(located.index[rows])
            for row, sample in zip(rows.tolist(), read_samples, strict=True):
                samples[row] = sample
        return samples

    def _located(self, positions: npt.ArrayLike, located: Located | None) -> Located:
        return self.node.locate(self._checked(positions)) if located is None else located

    def read_batch(self, positions: npt.ArrayLike, want: Want, located: Located | None = None) -> Batch | None:
        """Return the samples at these positions as a batch or as its columns; see `Dataset.read_batch`.

        Return None if a dataset has no batch reader, or if the columns of several datasets do not match.
        """
        located = self.bases.read_from(self._located(positions, located))
        return read_batch(self.bases.datasets, located, want)

    @property
    def is_remote(self) -> bool:
        """Return whether a source reads its samples from a remote store."""
        return any(source.is_remote for source in self.sources)

    def extents(self, positions: npt.ArrayLike, located: Located | None = None) -> list[Extents]:
        """Return the byte ranges that `read` will ask remote stores for; see `Dataset.extents`.

        Args:
            positions: int64[n].
            located: as for `read`.
        """
        located = self.bases.read_from(self._located(positions, located))
        ranges: list[Extents] = []
        for rows in _runs(np.argsort(located.source, kind="stable"), located.source):
            source = self.bases.datasets[located.source[rows[0]]]
            ranges += [extents.of_samples(rows) for extents in source.extents(located.index[rows])]
        return ranges

    def locate_sample(self, source: int, index: int) -> Source:
        """Return where a sample of a source is stored."""
        return self.sources[source].locate(index)

    def bookmark(self, position: int) -> dict[str, Any]:
        """Return what a state stores besides position and fingerprint, so that a run can resume with a changed plan."""
        from feedmill.planning.resuming.resume import bookmark

        return bookmark(self, position)

    def reopened(self, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:
        """Return the position at which a run resumes from a state that was saved with a different plan.

        See `feedmill.planning.resuming.resume`.

        Raises:
            ConfigError: the change is not allowed.
        """
        from feedmill.planning.resuming.resume import reopened

        return reopened(self, state, allowed, proven)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Return the components of the fingerprint: the seed, each source's path in the tree, and its data.

        The length of the plan is not included, so a run can be extended.
        """
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        parts = {"order": f"version {ORDER_VERSION}", "seed": str(self.seed)}
        if self.skip is not None:
            parts["skip"] = self.skip.text
        paths = dict(ways(self.node.child if isinstance(self.node, Skip) else self.node))
        for number, (name, dataset) in enumerate(zip(self.names, self.sources, strict=True)):
            parts[f"source {name}"] = paths[number]
            parts[f"data of {name}"] = f"{len(dataset)} samples {dataset.fingerprint()}"
        return parts

    @property
    def fingerprint(self) -> str:
        """Return one hash of the whole plan. Plans with equal fingerprints yield the same samples in the same order."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self.fingerprints)

    @property
    def skip(self) -> Gaps | None:
        """The positions that the plan's skip list removes, or None."""
        return self.node.gaps if isinstance(self.node, Skip) else None

    def position_of(self, unskipped: int) -> int:
        """Return the position in the plan of an unskipped position. `trace` shows both; `Loader(start=)` takes it.

        Args:
            unskipped: a position counted without the plan's skip list. If it is skipped, the position of the next one
                that is not skipped is returned.

        Raises:
            NotFound: it lies outside the plan. The end, one after the last position, is allowed.
        """
        skipped = 0 if self.skip is None else self.skip.skipped(unskipped)
        end = None if self.length is None else self.length + (0 if self.skip is None else self.skip.count)
        if unskipped < 0 or (end is not None and unskipped > end):
            raise NotFound(
                f"there is no unskipped position {unskipped:,}: the plan has {'no end' if end is None else f'{end:,}'}",
                kind="no-such-sample",
                fix="Give a position that 'feedmill trace' shows under 'unskipped'.",
            )
        return unskipped - skipped

    def skipping(self, ranges: Iterable[tuple[int, int]], text: str = "") -> Plan:
        """Return this plan without the given ranges ``(first, stop)`` of positions; later positions move up.

        Args:
            ranges: the ranges, in any order; they may overlap.
            text: a text that identifies the skip list in fingerprints; by default it is made from `ranges`.

        Raises:
            ConfigError: a range is empty or outside the plan, or no position would remain.
        """
        plan = Plan(Skip(self.node, ranges, text), self.sources, self.names, self.seed)
        plan.dealing, plan.cache, plan.loss, plan.proxy = self.dealing, self.cache, self.loss, self.proxy
        plan.units = self.units
        plan.transform, plan.collate = self.transform, self.collate
        return plan

    def as_dataset(
        self, *, transform: Callable[..., Any] | None = None, samples: int | None = None, seed: int | None = None
    ) -> feedmill.loading.PlanDataset:
        """Return the plan as a map-style dataset, for a torch `DataLoader` and other libraries; see `PlanDataset`."""
        import feedmill  # the loaders are in a room above this one

        return feedmill.loading.PlanDataset(self, transform=transform, samples=samples, seed=seed)

    def explain_change(self, old: Mapping[str, str]) -> list[str]:
        """Return one phrase for each difference between this plan and the plan whose `fingerprints` were `old`."""
        return explain(old, self.fingerprints)

    def report(self, samples: int | None = None) -> Report:
        """Return weights, draws and repeats of each source for the first `samples` positions, or for the whole plan."""
        total = self._budget(samples)
        known: dict[int | None, Report] = self.__dict__.setdefault("_reports", {})
        if total not in known:
            if len(known) >= _REPORTS:
                known.clear()
            from feedmill.planning.report import report

            loss = None if self.loss is None else self.loss.mean_where_known
            found = report(self.node, self.names, self.length, total, self._means.mean_where_known, loss, self.units)
            known[total] = found if self.proxy is None else self.proxy.compared(found, self.node, total)
        return known[total]

    def drawn(self, samples: int) -> list[int]:
        """Return how many samples the first `samples` positions draw from each source; see `report`."""
        from feedmill.planning.report import draws

        counts = draws(self.node, samples)
        return [counts[leaf][0] for leaf in range(len(self.sources))]

    @cached_property
    def _means(self) -> Tokens:
        from feedmill.planning.tokens import Tokens

        return Tokens(self.sources)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(
                "the plan is endless and has no len(), plan.length is None: give it an end with 'epochs' or 'samples'"
            )
        return self.length

    def __getitem__(self, position: object) -> Any:
        """Raise TypeError: positions are read in bulk."""
        raise TypeError(
            "a Plan is not indexed: read samples with plan.read([position]), or give a torch DataLoader"
            " plan.as_dataset()"
        )

    def __str__(self) -> str:
        size = "endless" if self.length is None else f"{self.length:,} samples"
        proxy = "" if self.proxy is None else f", {self.proxy}"
        return render((f"plan, {size}, seed {self.seed}{proxy}", [tree_of(self.node, self.names)]))

    def __repr__(self) -> str:
        size = "endless" if self.length is None else self.length
        return f"<Plan: {size}, {len(self.sources)} sources, {self.fingerprint}>"

    def _checked(self, positions: npt.ArrayLike) -> IntArray:
        end = self.length
        return inside(positions, LONGEST - (self.skip.count if self.skip else 0) if end is None else end)

    def _budget(self, samples: int | None) -> int | None:
        """Return a number of positions from the first one: `samples`, by default all; None for an endless plan.

        Raises:
            ConfigError: the plan has fewer.
        """
        if samples is None:
            return self.length
        most = LONGEST if self.length is None else self.length
        if not 0 <= samples <= most:
            raise ConfigError(
                f"{samples:,} samples are requested, the plan has {most:,}",
                kind="bad-option",
                fix="Request fewer, or raise 'samples', 'epochs' or 'max_repeats' in the recipe.",
            )
        return samples

    def source(self, source: int | str) -> Dataset:
        """Return a source's dataset by number or name.

        Raises:
            NotFound: no such source.
        """
        return self.sources[self._source_number(source)]

    def _source_number(self, source: int | str) -> int:
        known = self.names.index(source) if source in self.names else source
        if isinstance(known, str) or not 0 <= known < len(self.sources):
            raise NotFound(
                f"there is no source {source!r}", kind="no-such-source", fix=f"Its sources: {', '.join(self.names)}."
            )
        return known


def _planned_again(again: Callable[[], Plan], fingerprint: str) -> Plan:
    plan = again()
    if plan.fingerprint != fingerprint:
        raise ConfigError(
            "the recipe's data has changed since the main process opened it",
            kind="changed",
            fix="Restart the run.",
        )
    return plan


def _runs(order: IntArray, source: npt.NDArray[np.int32]) -> list[IntArray]:
    """Return the rows grouped by source."""
    if not len(order):
        return []
    of_rows = source[order]
    cuts = [0, *(np.flatnonzero(of_rows[1:] != of_rows[:-1]) + 1).tolist(), len(order)]
    return [order[first:behind] for first, behind in itertools.pairwise(cuts)]


ShuffleKind = Literal["none", "global", "block", "shards"]


def tree_over(
    datasets: Dataset | str | os.PathLike[str] | Sequence[Dataset | str | os.PathLike[str]],
    weights: Sequence[Any] | None,
    shuffle: ShuffleKind | Mapping[str, Any] | None,
    seed: int,
    epochs: int | float | str | None,
) -> tuple[Node, list[Dataset], list[str]]:
    """Return the tree of a plan over datasets, which are opened if they are paths, the datasets, and their names.

    Arguments, errors: `Plan.over`.
    """
    from feedmill.formats.base import Dataset
    from feedmill.samples.open import open as open_dataset

    given = list(datasets) if isinstance(datasets, Sequence) and not isinstance(datasets, str) else [datasets]
    several = [open_dataset(item) if isinstance(item, str | os.PathLike) else item for item in given]
    others = [item for item in several if not isinstance(item, Dataset)]
    if others:
        raise ConfigError(
            f"{type(others[0]).__name__} is not a dataset",
            kind="bad-plan",
            fix="Give datasets, their paths, or a list of them.",
        )
    options = None if shuffle is None else _shuffle_options(shuffle)
    names = unique_names([dataset.url.rstrip("/").rpartition("/")[2] for dataset in several])
    leaves = [_leaf(number, dataset) for number, dataset in enumerate(several)]
    if weights is None:
        together = leaves[0] if len(leaves) == 1 else Concat(leaves)
        asked = options or _usual_shuffle(several)
        order = shuffled(together, key=derive(seed, "shuffle", *names), sources=several, **asked)
        return Repeat(order, epochs), several, names
    if epochs is not None and len(leaves) > 1:
        raise ConfigError(
            "a blend has no epochs: its sources end at different times",
            kind="bad-option",
            fix="Omit 'epochs', and stop after the number of samples you need.",
        )
    streams = [
        Repeat(
            shuffled(leaf, key=derive(seed, "shuffle", name), sources=several, **(options or _usual_shuffle([dataset])))
        )
        for leaf, name, dataset in zip(leaves, names, several, strict=True)
    ]
    length = None if epochs is None else epochs_of(epochs, leaves[0].length)[1]
    return Blend(streams, weights, length=length), several, names


def _usual_shuffle(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the shuffle of datasets if none is asked for: ``none`` for a single one whose description says so."""
    stored = len(datasets) == 1 and not datasets[0].opened.order.shuffles
    return {"kind": "none" if stored else "block"}


def _shuffle_options(shuffle: ShuffleKind | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `shuffled` of what a recipe takes as well: a kind, or a mapping with its options."""
    if not isinstance(shuffle, Mapping):
        return {"kind": shuffle}
    from pydantic import ValidationError

    from feedmill.planning.recipes.fields import ShuffleModel  # slow to import

    try:
        return ShuffleModel.model_validate(dict(shuffle)).model_dump()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"the shuffle {dict(shuffle)!r:.80} is invalid{f' at {where!r}' if where else ''}: {problem['msg']}",
            kind="bad-recipe",
            fix="Write it as in a recipe, such as {'kind': 'block', 'block': 256} or {'kind': 'shards'}.",
        ) from None


def _leaf(number: int, dataset: Dataset) -> Leaf:
    if not len(dataset):
        raise ConfigError("the dataset has no samples", file=dataset.url, kind="empty-source", fix="Remove it.")
    return Leaf(number, len(dataset))


def inside(positions: npt.ArrayLike, end: int) -> npt.NDArray[np.int64]:
    """Return positions as int64[n].

    Raises:
        ConfigError: they are not integers in one dimension.
        NotFound: one of them is outside ``[0, end)``.
    """
    given = np.asarray(positions)
    if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
        raise ConfigError(
            f"positions must be a 1-D integer array, not {given.dtype} of shape {given.shape}", kind="bad-option"
        )
    row = given.astype(np.int64).reshape(-1)
    if len(row):
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= end:
            raise NotFound(
                f"there is no position {low if low < 0 else high} (the plan has {end:,})",
                kind="no-such-sample",
                fix="Positions count from 0; 'samples' or 'epochs' in the recipe set where they end.",
            )
    return row


_MOST_TIMES = 10**7
_TOGETHER = 1 << 18
"""Occurrences that are looked up per call: few calls, and a few MB of memory."""


def positions_of(root: Node, leaf: int, name: str, indices: Sequence[int], end: int) -> IntArray:
    """Return all positions before `end` at which a plan yields given samples of one leaf: int64[n], ascending.

    Args:
        root: the plan's root.
        leaf: the leaf's number.
        name: its display name.
        indices: sample numbers in the leaf, without duplicates.
        end: search positions before this one.

    Raises:
        ConfigError: a sample occurs millions of times.
    """
    again = bounds.reach(root, leaf, end)
    if again > _MOST_TIMES and len(indices):
        raise ConfigError(
            f"{end:,} positions contain sample {indices[0]} of {name} up to {again:,} times",
            kind="too-large",
            fix=f"Search fewer positions: at most {_MOST_TIMES:,} occurrences of a sample can be listed.",
        )
    epochs = np.arange(again)
    step = max(1, _TOGETHER // max(again, 1))
    chunks = [np.zeros(0, np.int64)]
    for begin in range(0, len(indices), step):
        part = np.array(indices[begin : begin + step], np.int64)
        source = np.full(len(part) * again, leaf, np.int32)
        positions, rounds = root.positions(Located(source, np.repeat(part, again), np.tile(epochs, len(part))))
        chunks.append(positions[(positions >= 0) & (positions < end) & (rounds == 0)])
    return np.sort(np.concatenate(chunks))


def read_batch(sources: Sequence[Dataset], located: Located, want: Want) -> Batch | None:
    """Return the located samples as `Dataset.read_batch` returns them, in the given order.

    Samples of several sources can only be read as columns. Return None if one of the sources has no column reader, or
    if the columns of two sources do not match. Raises as `Dataset.read` does.
    """
    numbers = [0] if len(sources) == 1 else np.flatnonzero(np.bincount(located.source, minlength=1)).tolist() or [0]
    if len(numbers) == 1:
        return sources[numbers[0]].read_batch(located.index, want)
    if want == "fields" or any(sources[number].read_batch(located.index[:0], "columns") is None for number in numbers):
        return None
    order = np.argsort(located.source, kind="stable")
    if isinstance(want, Shifted):
        batch = _joined(_source_columns(sources, located, order, want), len(order))
        if batch is not None:  # every source has made targets, or none has
            return batch
    return _joined(_source_columns(sources, located, order, "columns"), len(order))


def _source_columns(sources: Sequence[Dataset], located: Located, order: Any, want: Want) -> list[tuple[Any, Columns]]:
    """Return the rows and the columns of each source."""
    parts = []
    for rows in _runs(order, located.source):
        columns = sources[int(located.source[rows[0]])].read_batch(located.index[rows], want)
        parts.append((rows, columns if isinstance(columns, dict) else {}))
    return parts


def _joined(parts: Sequence[tuple[Any, Columns]], count: int) -> Columns | None:
    first = parts[0][1]
    if not first or any(list(columns) != list(first) for _, columns in parts):
        return None
    out: Columns = {}
    for name, values in first.items():
        columns = [(rows, part[name]) for rows, part in parts]
        if isinstance(values, list):
            out[name] = _joined_list(columns, count)
        elif all(column.shape[1:] == values.shape[1:] and column.dtype == values.dtype for _, column in columns):
            out[name] = merged = empty((count, *values.shape[1:]), values.dtype)
            for rows, column in columns:
                merged[rows] = column
        else:
            return None
    return out


def _joined_list(columns: Sequence[tuple[Any, Any]], count: int) -> list[Any]:
    out: list[Any] = [None] * count
    for rows, column in columns:
        for row, value in zip(rows.tolist(), column, strict=True):
            out[row] = value
    return out


Int64s = npt.NDArray[np.int64]


class Bases:
    """The datasets that are read for the sources of a plan: for all cells of a dataset, this dataset.

    Args:
        sources: the datasets of a plan.

    Attributes:
        datasets: the datasets to read, each once; without cells, the sources.
        home: int32[sources], the number of each source's dataset.
    """

    def __init__(self, sources: Sequence[Dataset]) -> None:
        self.datasets: list[Dataset] = []
        self.home = np.empty(len(sources), np.int32)
        self._cells = np.full(len(sources), -1, np.int64)
        self._tables: dict[int, CellTable] = {}
        known: dict[tuple[int, int], int] = {}
        for number, source in enumerate(sources):
            cell: Any = source if getattr(source, "is_cell", False) else None
            if cell is not None:
                key = id(cell.dataset), id(cell.table)
                if key in known:
                    self.home[number], self._cells[number] = known[key], cell.number
                    continue
                known[key] = len(self.datasets)
                self._cells[number] = cell.number
                self._tables[len(self.datasets)] = cell.table
            self.home[number] = len(self.datasets)
            self.datasets.append(source if cell is None else cell.dataset)

    def __bool__(self) -> bool:
        """Return whether there are cells."""
        return bool(self._tables)

    def read_from(self, located: Any) -> Any:
        """Return located samples of the sources as located samples of `datasets`; `Located` both."""
        if not self._tables:
            return located
        home, cells = self.home[located.source], self._cells[located.source]
        if len(self.datasets) == 1:
            return replace(located, source=home, index=self._tables[0].select(cells, located.index))
        index = located.index.copy()
        for number, table in self._tables.items():
            rows = np.flatnonzero(home == number)
            if len(rows):
                index[rows] = table.select(cells[rows], index[rows])
        return replace(located, source=home, index=index)

    def used(self) -> Iterator[tuple[Dataset, CellTable | None, Int64s]]:
        """Yield each dataset with the table of its cells and the numbers of those that are sources, int64[n]."""
        for number, dataset in enumerate(self.datasets):
            mine = self._cells[self.home == number]
            yield dataset, self._tables.get(number), mine


def split_by_source(plan: Plan) -> list[tuple[Plan, int]]:
    """Return one plan for each source, in order, with the number of the source.

    Raises:
        ConfigError: the plan is endless, or mixes its sources.
    """
    if plan.length is None:
        raise ConfigError("an endless plan cannot be split by source", kind="endless", fix="Set 'epochs'.")
    found: list[tuple[Plan, int]] = []
    begin = 0
    for source, length in _source_runs(plan.node):
        end = begin + length
        outside = [(first, stop) for first, stop in ((0, begin), (end, plan.length)) if stop > first]
        found.append((plan.skipping(outside, f"all but {plan.names[source]}") if outside else plan, source))
        begin = end
    return found


def _source_runs(node: Node) -> list[tuple[int, int]]:
    """Return the source and length of each run of positions."""
    if len(node.leaves) == 1:
        return [(node.leaves[0], node.finite("splitting a plan by source"))]
    if isinstance(node, Concat):
        return [run for child in node.children for run in _source_runs(child)]
    if isinstance(node, Repeat) and node.child.length == node.length:  # one epoch; a shuffle would mix them
        return _source_runs(node.child)
    raise ConfigError(
        "the plan mixes its sources", kind="bad-plan", fix="Use a validation plan, whose sources follow one another."
    )
