"""Compile recipes to plans: open every dataset, and build the tree of nodes over them.

A blend in runs of samples with one value of a field has one source per value (`by_field`). The stages of a recipe
become weights per source and lengths in samples (`stage_length`). An `order` is that of another tool (`in_order`).
``targets`` says how a loader makes inputs and targets of the plan's rows (`targets_of`). All token data of a recipe
must be made with the same tokenizer (`check_tokenizers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError, NotFound, did_you_mean, suggestion
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.format import ALL_SPLITS, TRAIN_OR_ALL
from feedmill.formats.sniff import sniff
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.bounds import longest
from feedmill.planning.dealing.dealer import bad_batches, check_drawn, check_skip, dealing_of
from feedmill.planning.dialects import Place
from feedmill.planning.mixing.blend import exact_sum, exact_weight, normalize
from feedmill.planning.nodes import (
    Blend,
    Concat,
    EpochizedBlend,
    Interleaved,
    Leaf,
    Node,
    Repeat,
    StagedBlend,
    Subsample,
    Subset,
)
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.nodes.blend import Caps, common_group
from feedmill.planning.nodes.repeat import epochs_of
from feedmill.planning.orders.modalities import ModalitiesSampler
from feedmill.planning.orders.nanoset import BlendableDataset, Nanoset
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.permutation import derive
from feedmill.planning.plan import Plan
from feedmill.planning.proxy import Proxy, expected, is_about, samples_for, scaled_length
from feedmill.planning.recipes.cells import drawn_cells, rule_of, selected, staged
from feedmill.planning.recipes.member import (
    as_described,
    aux_is_there,
    aux_url,
    bounds_of,
    grouped_range,
    join_folder,
    join_parts,
    moved_range,
    names_of,
    no_whole_group,
    ordered,
    recipe_line,
    rounded,
    shuffle_as,
    whole_groups,
    within,
)
from feedmill.planning.recipes.read import Open, members
from feedmill.planning.recipes.skip import read_entries, with_skips
from feedmill.planning.tokens import Identity, Tokens, identities, per_sample, per_sample_of_many, refuse_apart
from feedmill.samples.cells import CellDataset, CellTokens
from feedmill.samples.counted import CountedDataset
from feedmill.samples.open import open as open_dataset
from feedmill.samples.views import SelectedDataset
from feedmill.storage import join_url, open_store
from feedmill.storage.remote.options import storage_options

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.energon.join import JoinSide
    from feedmill.planning.recipes.fields import (
        HomogeneousModel,
        JoinPart,
        PackModel,
        ShuffleModel,
        StageModel,
        TargetsModel,
    )
    from feedmill.planning.recipes.read import Parsed
    from feedmill.planning.recipes.schema import Member, RecipeModel
    from feedmill.planning.recipes.statistics import StatisticsReport
    from feedmill.samples.fim import FillInMiddle
    from feedmill.samples.targets import Targets

logger = logging.getLogger("feedmill")


def compile_recipe(recipe: Parsed, open: Open, *, trust: bool = False) -> Plan:
    """Return the plan of a recipe.

    Args:
        recipe: the recipe.
        open: opens one dataset; called once for each distinct path and options.
        trust: allow joiners to run.
    """
    compiler = _Compiler(open, trust)
    seed = recipe.model.seed or 0
    proxy = None if recipe.model.proxy is None else _proxy(recipe, compiler)
    root = compiler.recipe(recipe, seed, "")
    if proxy is not None:
        root = _ended(root, recipe, proxy, compiler)
    compiler.check_lacking(recipe)
    if compiler.normalizing:
        from feedmill.planning.recipes.statistics import scaled  # most recipes have no robots

        with recipe_line(recipe, ("episodes",) if recipe.model.episodes else ()):
            scaled(recipe, compiler.sources, compiler.names, root, compiler.normalizing)
    loss = compiler.means[LOSS_TOKENS]
    if loss.used and recipe.model.targets is not None and recipe.model.targets.mask is not None:
        raise _masked_twice(recipe)
    if not recipe.model.mixed_tokenizers:
        check_tokenizers(compiler.sources, compiler.names, compiler.lines)
    try:
        plan = Plan(root, compiler.sources, compiler.names, seed)
    except ConfigError as error:
        error.file = error.file or compiler.places.get(error.record or "", recipe.file)
        raise
    plan.loss, plan.proxy = loss if loss.used else None, proxy
    plan.units = compiler.means.get(recipe.model.unit)
    if recipe.model.pack is not None:
        with recipe_line(recipe, ("pack",)):
            packing = packing_of(recipe.model.pack, recipe.model.stages or (), root)
            if packing.rows is not None:
                packing = replace(packing, rows=compiler.scaled(packing.rows))
            plan = PackedPlan(plan, packing, where=recipe.where(("pack",)))
    else:
        _warn_of_refused(plan)
    model = recipe.model
    if model.targets is not None:
        with recipe_line(recipe, ("targets",)):
            if getattr(plan, "of_samples", False):
                raise ConfigError(
                    "'targets' is for rows of tokens, and a source with 'lengths' makes them rows of samples",
                    kind="bad-recipe",
                    fix="Remove it, and pass collate=fm.tokens.collate_rows(...) to the loader, which makes labels.",
                )
            plan.transform, plan.collate = targets_of(model.targets, 0 if model.pack is None else model.pack.pad)
    asked = [key for key in ("batch", "balance", "deal") if getattr(model, key) is not None]
    if asked:
        with recipe_line(recipe, (asked[0],)):
            plan.dealing = dealing_of(plan, model.deal, model.balance and model.balance.model_dump(), model.batch)
    if model.homogeneous is not None:
        with recipe_line(recipe, ("homogeneous",)):
            check_drawn(plan, compiler.groups or names_of(model.blend or []))
    skip = model.skip
    if not skip:
        return plan
    read = [(entry, n) for n, found in enumerate(read_entries(skip, recipe.base, plan)) for entry in found]
    plan = with_skips(plan, [entry for entry, _ in read], [recipe.where(("skip", n)) for _, n in read])
    with recipe_line(recipe, ("skip",)):
        check_skip(plan)
    return plan


def _proxy(recipe: Parsed, compiler: _Compiler) -> Proxy:
    """Return the proxy of a recipe, and let the compiler draw from a share of each source.

    Raises:
        ConfigError: the length of the run that it stands for is unknown, or less than its own.
    """
    asked = recipe.model.proxy
    assert asked is not None
    of, again = asked.of, partial(_target, recipe, compiler)
    if of is None:
        with recipe_line(recipe, ("proxy",)):
            root, means = again()
            rows = None if recipe.model.pack is None else recipe.model.pack.rows
            end = longest(root)
            if end is None or rows is not None:
                where = "never ends" if rows is None else "ends after a number of rows"
                raise ConfigError(
                    f"the proxy lacks 'of', the length of the run that it stands for: the recipe {where}",
                    kind="bad-recipe",
                    fix=f"Write it as {{{asked.unit}: {asked.amount}, of: LENGTH}}.",
                )
            of = round(expected(root, end, means["tokens"], asked.unit))
            if of < asked.amount:
                raise ConfigError(
                    f"a proxy of {asked.amount:,} {asked.unit} is larger than the recipe's own run of {of:,}",
                    kind="bad-recipe",
                    fix="Make the proxy smaller, or give the recipe a later end.",
                )
    proxy = Proxy(asked.unit, asked.amount, of, lambda: again()[0])
    compiler.factor = proxy.factor
    return proxy


def _target(recipe: Parsed, compiler: _Compiler) -> tuple[Node, Mapping[str, Tokens]]:
    """Return the tree of the run that a proxy stands for, over the same datasets, and the means of its nodes."""
    other = _Compiler(compiler.open, compiler.trust)
    other.opened = compiler.opened
    return other.recipe(recipe, recipe.model.seed or 0, ""), other.means


def _ended(root: Node, recipe: Parsed, proxy: Proxy, compiler: _Compiler) -> Node:
    """Return the tree of a proxy, cut to its length if the recipe never ends.

    Raises:
        ConfigError: the recipe ends elsewhere than the proxy says, or the tokens of a source are unknown.
    """
    asked, means = recipe.model.proxy, compiler.means["tokens"]
    if recipe.model.pack is not None and recipe.model.pack.rows is not None:
        return root  # the rows end it
    with recipe_line(recipe, ("proxy",)):
        if root.length is not None:
            if asked is not None and asked.of is not None:
                _check_own_length(recipe, compiler, proxy, expected(root, root.length, means, proxy.unit))
            return root
        length = samples_for(root, proxy.amount, LONGEST, means, proxy.unit)
        if isinstance(root, Interleaved):
            return root.cut(length)
        if isinstance(root, Repeat):
            return Repeat(root.child, length=length, max_repeats=root.max_repeats, name=root.name)
        return Repeat(root, length=length)


def _check_own_length(recipe: Parsed, compiler: _Compiler, proxy: Proxy, own: Fraction) -> None:
    """Raise `ConfigError` if a recipe ends elsewhere than its proxy says; `own` is the proxy's own length."""
    if is_about(own, proxy.amount):
        return
    root, means = _target(recipe, compiler)  # small sources are rounded up, so passes over them are longer
    assert root.length is not None
    whole = expected(root, root.length, means["tokens"], proxy.unit)
    if not is_about(whole, proxy.of):
        share = proxy.amount / proxy.of
        raise ConfigError(
            f"the recipe ends after about {round(whole):,} {proxy.unit}, and the proxy is of a run of {proxy.of:,}",
            kind="bad-recipe",
            fix=f"Remove 'of', which is by default where the recipe ends: {share:.3g} of it is a proxy of"
            f" {round(whole * share):,} {proxy.unit}. Or correct one of them.",
        )


def _masked_twice(recipe: Parsed) -> ConfigError:
    """Return the error for weights per loss token, and markers that select these tokens only when rows are read."""
    return ConfigError(
        "'unit: loss_tokens' counts stored masks, and 'targets' has a 'mask' of markers, which is applied when rows are"
        " read",
        file=recipe.where(("targets", "mask")),
        kind="bad-recipe",
        fix="Store the mask: 'feedmill tokens merge --learn-between BEGIN,END' writes it from the markers. Then remove"
        " 'mask'.",
    )


def _warn_of_refused(plan: Plan) -> None:
    """Log the samples without a length of a plan that is not packed: they are yielded, and cost nothing."""
    for name, dataset in zip(plan.names, plan.sources, strict=True):
        if isinstance(dataset, CountedDataset) and dataset.counts.refused:
            reasons = "; ".join(f"{each.reason}: {each.samples:,}" for each in dataset.counts.refused)
            logger.warning("samples of %r without a length count as 0 tokens: %s", name, reasons)


def compile_statistics(
    recipe: Parsed, open: Open, *, trust: bool = False, progress: bool | None = True
) -> StatisticsReport:
    """Compute the statistics of a recipe of robot episodes, see `feedmill.planning.recipes.statistics.collect`."""
    from feedmill.planning.recipes.statistics import collect

    compiler = _Compiler(open, trust)
    root = compiler.recipe(recipe, recipe.model.seed or 0, "")
    compiler.check_lacking(recipe)
    return collect(recipe, compiler.sources, compiler.names, root, progress=progress)


_PLAIN_OPTIONS = {"dataset_config", "split_config", "decode", "episodes"}
"""Options of `feedmill.open` that leave a dataset its splits."""


def _key(path: str, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells one opened dataset from another."""
    return path, *((key, str(value) if isinstance(value, dict) else value) for key, value in options.items())


class _Compiler:
    """The datasets, names and nodes collected while walking a recipe and those nested in it."""

    def __init__(self, open: Open, trust: bool) -> None:
        self.open, self.trust = open, trust
        self.opened: dict[tuple[Any, ...], Dataset] = {}
        self.sources: list[Dataset] = []
        self.names: list[str] = []
        self.lines: list[str] = []
        self.places: dict[str, str] = {}
        self.groups: list[str] = []  # the children of a blend by the values of a field
        self.means = {unit: Tokens(self.sources, unit) for unit in ("tokens", LOSS_TOKENS, "hours", "episodes")}
        self.normalizing: dict[int, str] = {}  # source whose features are normalized -> by which statistics
        self.has_robots = False
        self.factor = Fraction(1)  # of a proxy, its size as a share of the run that it stands for

    def scaled(self, length: int) -> int:
        """Return a length in a proxy: rounded down, and at least 1."""
        return max(1, scaled_length(length, self.factor))

    def dataset(self, path: str, options: dict[str, Any]) -> Dataset:
        """Return an opened dataset, opened once for each distinct set of options."""
        known = _key(path, options)
        if known not in self.opened:
            self.opened[known] = self.open(path, **options)
        return self.opened[known]

    @property
    def opens_datasets(self) -> bool:
        """Return whether sources are opened by `feedmill.open`, not by a function of the caller."""
        return getattr(self.open, "func", self.open) is open_dataset

    def training(self, path: str, options: dict[str, Any]) -> Dataset:
        """Return the split ``train`` of a dataset; all of it if it has no such split."""
        train = {**options, "split": "train"}
        if self.opens_datasets and options.keys() <= _PLAIN_OPTIONS:
            if _key(path, train) in self.opened:
                return self.dataset(path, train)
            dataset = self.dataset(path, {**options, "split": TRAIN_OR_ALL})
            if dataset.split == "train":
                self.opened[_key(path, train)] = dataset
            return dataset
        with _opened_twice(path):
            dataset = self.dataset(path, options)
            return self.dataset(path, train) if "train" in dataset.splits else dataset

    def leaf(self, dataset: Dataset, name: str, line: str) -> Leaf:
        """Add a source and return its leaf; `line` is its ``file:line`` in the recipe."""
        leaf = Leaf(len(self.sources), len(dataset))
        self.sources.append(dataset)
        self.names.append(name)
        self.lines.append(line)
        return leaf

    def check_lacking(self, recipe: Parsed) -> None:
        """Raise `ConfigError` for a feature in `sizes` that no source has: a wrong name, if `parts` lacks it too."""
        if not self.has_robots:
            return
        from feedmill.samples.robotics.episodes import EpisodeSamples

        robots = [one for one in self.sources if isinstance(one, EpisodeSamples)]
        there = {name for one in robots for name in one.stored_names}
        for one in robots:
            for name in one.lacking:
                if name not in there and name not in (one.options.parts or ()):
                    meant = did_you_mean(name, sorted(there))
                    raise ConfigError(
                        f"episodes: sizes: no source has a column or camera {name!r}{meant}",
                        file=recipe.file or recipe.where(),
                        kind="bad-recipe",
                        fix="Correct the name, or list it in 'parts' if all of it shall be padding.",
                    )

    def recipe(self, recipe: Parsed, seed: int, prefix: str) -> Node:
        """Return the node of a whole recipe, cut to its own length; `prefix` is prepended to its sources' names."""
        with storage_options(recipe.storage()):
            return self._recipe(recipe, seed, prefix)

    def _recipe(self, recipe: Parsed, seed: int, prefix: str) -> Node:
        model = recipe.model
        walk = Walk(self, recipe, seed)
        if model.order is not None:
            return walk.ordered(prefix)
        if model.blend is not None and model.homogeneous is not None and model.homogeneous.by != "source":
            return by_field(walk, model, model.homogeneous)
        if model.blend is not None:
            samples = None if model.samples is None else self.scaled(model.samples)
            return walk.blend(model, (), prefix, model.shuffle, samples, _run_length(model))
        cap = None
        if model.blend_epochized is not None:
            name = prefix.rstrip("/")
            node: Node = walk.epochized(model.blend_epochized, ("blend_epochized",), prefix, model.shuffle)
        elif model.concat is not None:
            node = walk.concat(model.concat, ("concat",), prefix)
            with recipe_line(recipe, ("shuffle",) if "shuffle" in model.model_fields_set else ("concat",)):
                node = shuffle_as(node, model.shuffle, seed, prefix, self.sources)
            name = prefix.rstrip("/")
        else:
            assert model.source is not None  # the schema requires one of the three
            name = prefix + names_of([model.source])[0]
            node = walk.member(model.source, ("source",), name, model.source.shuffle or model.shuffle)
            cap = model.source.max_repeats
            self.places[name] = recipe.where(("source", "max_repeats"))
        if node.length is None and model.samples is None and model.epochs is None and cap is None:
            return node
        with recipe_line(recipe, ("epochs",) if model.epochs else ("source",)):
            length = None if model.samples is None else self.scaled(model.samples)
            return whole_groups(Repeat(node, model.epochs, length=length, max_repeats=cap, name=name), name)


def _run_length(model: RecipeModel) -> int:
    return 1 if model.homogeneous is None else model.homogeneous.samples


class Walk:
    """Builder of the nodes of one recipe."""

    def __init__(self, compiler: _Compiler, recipe: Parsed, seed: int) -> None:
        self.compiler, self.file, self.seed = compiler, recipe, seed

    def blend(
        self,
        mix: Member | RecipeModel,
        place: Place,
        prefix: str,
        shuffle: ShuffleModel,
        samples: int | None = None,
        run_length: int = 1,
    ) -> Node:
        """Return a blend of members by weight, each of them a separate stream."""
        members = mix.blend or []
        names = names_of(members)
        if len(members) == 1 and members[0].cells is not None:
            return self.cells(mix, members[0], (*place, "blend", 0), prefix, names[0], shuffle, samples, run_length)
        streams: list[Node] = []
        for number, (member, name) in enumerate(zip(members, names, strict=True)):
            here = (*place, "blend", number)
            node = self.member(member, here, prefix + name, member.shuffle or shuffle)
            ends = node.length is not None or member.epochs or member.max_repeats
            if ends and member.cells is None:  # each cell is repeated by itself
                node = self.repeat(node, member, here, prefix + name, member.epochs)
            streams.append(node)
        if mix.stages is not None:
            stages = staged(mix.stages, self.file, (*place, "stages"), (), None)
            return self.stages(mix, stages, place, names, streams, samples, run_length)
        if mix.epochs is not None:  # of a single source: the schema allows no other
            samples = self.passes(mix, place, streams[0])
        weights: Sequence[Any] = [1 if member.weight is None else member.weight for member in members]
        if mix.unit != "samples":
            weights = per_sample(weights, lambda i: self.mean(streams[i], (*place, "blend", i), mix.unit))
        run_length, in_groups = group_runs(streams, run_length)
        with recipe_line(self.file, (*place, "blend") if samples is None else ("samples",)):
            make = partial(Blend, streams, weights, run_length=run_length, in_groups=in_groups)
            return in_whole_groups(make, streams, samples)

    def cells(
        self,
        mix: Member | RecipeModel,
        member: Member,
        place: Place,
        prefix: str,
        name: str,
        shuffle: ShuffleModel,
        samples: int | None = None,
        run_length: int = 1,
    ) -> Node:
        """Return a blend of the cells of a dataset, each of them a separate stream.

        Args:
            mix: what has the `stages` and the `unit`: the blend of these cells alone, or the member itself.
            member: the member with the cells.
            place: its place.
            name: its name.
        """
        assert member.cells is not None
        of = member.cells.of
        dataset = self.opened_source(of, (*place, "cells", "of"))
        stages = mix.stages if mix is not member else None
        drawn = drawn_cells(dataset, member.cells, name, self.file, place, stages is not None)
        if not prefix and mix is not member:
            self.compiler.groups = drawn.names
        streams: list[Node] = []
        documents: list[int] = []
        for cell, own in zip(drawn.datasets, drawn.names, strict=True):
            whole: Leaf | Subset = self.compiler.leaf(self.counted(cell, of), prefix + own, self.file.where(place))
            if of.ranges:
                with recipe_line(self.file, (*place, "cells", "of", "subset")):
                    whole = self.subset(whole, member, own, within(of.ranges, len(cell)), self.compiler.sources[-1])
            documents.append(whole.length)
            node = self.drawn(whole, prefix + own)
            order = member.shuffle or as_described(shuffle, dataset)
            if member.curriculum is not None:
                with recipe_line(self.file, (*place, "curriculum")):
                    node = ordered(node, member, order, self.seed, prefix + own, self.compiler.sources)
            else:
                node = shuffle_as(node, order, self.seed, prefix + own, self.compiler.sources)
            streams.append(self.repeat(node, member, place, prefix + own, member.epochs))
        if stages is not None:
            above = place[:-2]
            found = staged(stages, self.file, (*above, "stages"), drawn.columns, drawn)
            return self.stages(mix, found, above, drawn.names, streams, samples, run_length)
        with recipe_line(self.file, (*place, "cells", "weights")):
            if drawn.weights is None:  # in any unit, the natural shares are those of documents
                weights: Sequence[Any] = documents
            elif mix is not member and mix.unit != "samples":
                weights = per_sample_of_many(drawn.weights, lambda i: self.mean(streams[i], place, mix.unit))
            else:
                weights = drawn.weights
        with recipe_line(self.file, place if samples is None else ("samples",)):
            return Blend(streams, weights, length=samples, run_length=run_length)

    def passes(self, mix: Member | RecipeModel, place: Place, stream: Node) -> int:
        """Return the samples of a blend of one source: of all passes for a recipe, of one for a member."""
        with recipe_line(self.file, (*place, "epochs")):
            whole = stream.child if isinstance(stream, Repeat) else stream
            return epochs_of(1 if place else mix.epochs, whole.finite("counting epochs"))[1]

    def stages(
        self,
        mix: Member | RecipeModel,
        stages: Sequence[StageModel],
        place: Place,
        names: Sequence[str],
        streams: Sequence[Node],
        samples: int | None,
        run_length: int,
    ) -> Node:
        """Return a blend whose weights change. The weights of `stages` are mappings of the names."""
        here = (*place, "stages")
        with recipe_line(self.file, here):
            check_names(stages, names, lambda *inner: self.file.where((*here, *inner)))

        for number, stage in enumerate(stages):
            if stage.seq_len is not None and (place or self.file.model.pack is None):
                raise ConfigError(
                    f"stage {number + 1} has a 'seq_len', and its samples are not packed into rows",
                    file=self.file.where((*here, number, "seq_len")),
                    kind="bad-recipe",
                    fix="Use it in the stages of the outermost recipe, beside 'pack'.",
                )

        def mean(source: int, unit: str = "tokens") -> Fraction:
            return self.mean(streams[source], (*place, "blend", source), unit)

        run_length, in_groups = group_runs(streams, run_length)
        parts: list[tuple[int | None, Sequence[Fraction], str | None]] = []
        whole = 0  # of the stages so far, without a proxy
        for number, stage in enumerate(stages):
            assert isinstance(stage.weights, dict)  # `staged` has read the files
            weights = [stage.weights.get(name, 0) for name in names]
            with recipe_line(self.file, (*here, number, "weights")):
                of_units = per_sample_of_many if (mix.blend or [])[0].cells is not None else per_sample
                in_units = mix.unit != "samples"
                shares = of_units(weights, partial(mean, unit=mix.unit)) if in_units else normalize(weights)
            with recipe_line(self.file, (*here, number)):
                average = (
                    shares if stage.ramp is None else [(a + b) / 2 for a, b in zip(parts[-1][1], shares, strict=True)]
                )
                length = stage_length(stage, average, mean, self.file.model.global_batch, run_length)
                if length is not None and self.compiler.factor != 1:
                    start, whole = scaled_length(whole, self.compiler.factor, run_length), whole + length
                    length = scaled_length(whole, self.compiler.factor, run_length) - start
                    if not length:
                        raise ConfigError(
                            f"stage {number + 1} has less than one {_unit(run_length)} in the proxy",
                            kind="bad-recipe",
                            fix="Make the proxy larger, or merge the stage with another one.",
                        )
                parts.append((length, shares, stage.ramp))
        caps = [caps_of(stage, names, self.file.where((*here, n, "max_repeats"))) for n, stage in enumerate(stages)]
        with recipe_line(self.file, here if samples is None else ("samples",)):
            make = partial(StagedBlend, streams, parts, run_length=run_length, in_groups=in_groups, caps=caps)
            return in_whole_groups(make, streams, samples)

    def epochized(self, members: Sequence[Member], place: Place, prefix: str, shuffle: ShuffleModel) -> Node:
        """Return an epochized blend: each epoch holds every member `repetitions` times."""
        nodes, names = [], [prefix + name for name in names_of(members)]
        for number, (member, name) in enumerate(zip(members, names, strict=True)):
            here = (*place, number)
            node = self.member(member, here, name, member.shuffle or shuffle)
            with recipe_line(self.file, (*here, "repetitions")):
                epochs_of(member.repetitions or 1, node.finite("an epochized blend"))
            self.compiler.places[name] = self.file.where((*here, "max_repeats"))
            nodes.append(node)
        with recipe_line(self.file, place):
            return EpochizedBlend(
                nodes,
                [member.repetitions or 1 for member in members],
                max_repeats=[member.max_repeats for member in members],
                names=names,
            )

    def mean(self, node: Node, place: Place, unit: str = "tokens") -> Fraction:
        """Return the mean tokens, or units of another kind, per sample of a member."""
        with recipe_line(self.file, place):
            return self.compiler.means[unit].mean(node)

    def concat(self, members: Sequence[Member], place: Place, prefix: str) -> Node:
        """Return the members one after another, each in stored order unless it sets its own `shuffle`."""
        parts = []
        for number, (member, name) in enumerate(zip(members, names_of(members), strict=True)):
            here = (*place, number)
            node = self.member(member, here, prefix + name, member.shuffle)
            if member.epochs or member.max_repeats:
                node = self.repeat(node, member, here, prefix + name, member.epochs or 1)
            with recipe_line(self.file, here):
                node.finite("a concatenation")
            parts.append(node)
        with recipe_line(self.file, place):
            return Concat(parts)

    def zip(self, members: Sequence[Member], place: Place, prefix: str) -> Node:
        """Return the first sample of each member, then the second of each, and so on.

        Raises:
            ConfigError: the members have different numbers of samples.
        """
        names = names_of(members)
        parts = [self.member(each, (*place, n), prefix + names[n], None) for n, each in enumerate(members)]
        sizes = [part.finite("a zip") for part in parts]
        with recipe_line(self.file, place):
            if len(set(sizes)) > 1:
                found = ", ".join(f"{name!r} has {size:,}" for name, size in zip(names, sizes, strict=True))
                raise ConfigError(
                    f"the sources of a zip have different numbers of samples: {found}",
                    kind="bad-recipe",
                    fix="Use outputs of one run, in which sample i of each belongs to sample i of the others.",
                )
            leaves = [self.compiler.sources[part.number] for part in parts if isinstance(part, Leaf)]
            if len(leaves) == len(parts):
                refuse_apart(leaves, names)
            return Blend(parts, [1] * len(parts), length=sum(sizes))

    def ordered(self, prefix: str) -> Node:
        """Return the node of a recipe with an `order` of another tool; its members are in stored order."""
        model = self.file.model
        kind = "blend" if model.blend else "concat" if model.concat else "source"
        if kind == "concat":
            nodes: list[Node] = [self.concat(model.concat or [], (kind,), prefix)]
        else:
            members = model.blend or ([model.source] if model.source else [])
            places: list[Place] = [(kind, i) if model.blend else (kind,) for i in range(len(members))]
            if model.order is not None and model.order.kind == "megatron":
                return self.megatron(members, places, prefix)
            named = zip(members, places, names_of(members), strict=True)
            nodes = [self.member(member, place, prefix + name, None) for member, place, name in named]
        with recipe_line(self.file, ("order",)):
            return Repeat(in_order(model, nodes), model.epochs, length=model.samples)

    def megatron(self, members: Sequence[Member], places: Sequence[Place], prefix: str) -> Node:
        """Return the node of a recipe in Megatron-LM's order, which decides how the datasets are cut into samples."""
        from feedmill.planning.orders.megatron import blended, cut

        opened = [self.source(member, place) for member, place in zip(members, places, strict=True)]
        with recipe_line(self.file, ("order",)):
            datasets = cut(self.file.model, opened, self.file.base)
        named = zip(datasets, places, names_of(members), strict=True)
        leaves = [self.compiler.leaf(dataset, prefix + name, self.file.where(place)) for dataset, place, name in named]
        with recipe_line(self.file, ("order",)):
            return blended(self.file.model, datasets, leaves, self.file.base)

    def repeat(self, node: Node, member: Member, place: Place, name: str, times: Any) -> Node:
        """Return the member repeated `times` times; None repeats it without end."""
        self.compiler.places[name] = self.file.where((*place, "max_repeats"))
        with recipe_line(self.file, (*place, "epochs") if member.epochs else place):
            return whole_groups(Repeat(node, times, max_repeats=member.max_repeats, name=name), name)

    def member(self, member: Member, place: Place, name: str, shuffle: ShuffleModel | None) -> Node:
        """Return one epoch of a member in its own order, or an endless node."""
        if member.blend is not None:
            return self.blend(member, place, f"{name}/", shuffle or self.file.model.shuffle)
        if member.blend_epochized is not None:
            inner = shuffle or self.file.model.shuffle
            return self.epochized(member.blend_epochized, (*place, "blend_epochized"), f"{name}/", inner)
        if member.cells is not None:
            above = name.rpartition("/")
            inner = shuffle or self.file.model.shuffle
            return self.cells(member, member, place, above[0] + above[1], above[2], inner)
        if member.concat is not None:
            node = self.concat(member.concat, (*place, "concat"), f"{name}/")
        elif member.zip is not None:
            from feedmill.planning.recipes.fields import GroupsModel

            node = self.zip(member.zip, (*place, "zip"), f"{name}/")
            member = member.model_copy(update={"groups": GroupsModel(size=len(member.zip), by=None, within="stored")})
        elif member.recipe is not None:
            nested = self.file.nested[place]
            if nested.model.skip:
                raise ConfigError(
                    "a nested recipe cannot have 'skip': its positions count in the whole stream",
                    file=nested.where(("skip",)),
                    kind="bad-skip",
                    fix="Move it to the outermost recipe, with the source's full name.",
                )
            for key in ("deal", "balance", "batch", "homogeneous", "targets", "proxy"):
                if getattr(nested.model, key) is not None:
                    raise ConfigError(
                        f"a nested recipe cannot have {key!r}: it applies to"
                        f" {'the whole run' if key == 'proxy' else 'whole batches'}",
                        file=nested.where((key,)),
                        kind="bad-recipe",
                        fix="Move it to the outermost recipe.",
                    )
            if nested.model.pack is not None:
                raise ConfigError(
                    f"the nested recipe {member.recipe} has 'pack': packed rows cannot be blended or packed again",
                    file=self.file.where((*place, "recipe")),
                    kind="bad-recipe",
                    fix="Move its 'pack' to the top of the outermost recipe.",
                )
            # A recipe defines its own order; only an explicit 'shuffle' of the member shuffles its output again.
            shuffle = member.shuffle
            own = nested.model.seed
            seed = self.seed if own is None else derive(self.seed, "recipe", name, own)
            node = self.compiler.recipe(nested, seed, f"{name}/")
        else:
            node = self.dataset(member, place, name)
            if member.shuffle is None:
                shuffle = as_described(shuffle, self.compiler.sources[-1])
        if member.curriculum is not None or member.groups is not None:
            key = "zip" if member.zip else "groups" if member.groups else "curriculum"
            with recipe_line(self.file, (*place, key)):
                if member.groups is not None and self.compiler.factor != 1:
                    raise ConfigError(
                        f"{key!r} and 'proxy' cannot be combined: a proxy draws single samples of a source",
                        kind="bad-recipe",
                        fix="Plan a small run of groups with a 'subset'.",
                    )
                return ordered(node, member, shuffle, self.seed, name, self.compiler.sources)
        with recipe_line(self.file, (*place, "shuffle")):
            return shuffle_as(node, shuffle, self.seed, name, self.compiler.sources)

    def dataset(self, member: Member, place: Place, name: str) -> Node:
        """Open the dataset or join of a member and return its leaf, cut to its subset."""
        leaf = self.compiler.leaf(self.source(member, place), name, self.file.where(place))
        layers = [model for model in (member.episodes, self.file.model.episodes) if model is not None]
        if layers and self.episodes(member).get("normalize"):
            said = next((layer for layer in layers if "statistics" in layer.model_fields_set), layers[0])
            self.compiler.normalizing[leaf.number] = said.statistics
        if not member.ranges:
            return self.drawn(leaf, name)
        dataset = self.compiler.sources[leaf.number]
        with recipe_line(self.file, (*place, "subset")):
            cut = self.subset(leaf, member, name, bounds_of(self.file, member, dataset), dataset)
        return self.drawn(cut, name)

    def drawn(self, node: Leaf | Subset, name: str) -> Node:
        """Return the samples of a source that are drawn from: all of them, or for a proxy its share, rounded up."""
        size = ceil(node.length * self.compiler.factor)
        return node if size == node.length else Subsample(node, derive(self.seed, "proxy", name), size)

    def subset(
        self, leaf: Leaf | Subset, member: Member, name: str, bounds: tuple[int, int], dataset: Dataset
    ) -> Subset:
        """Return a subset of a dataset: of whole groups, if the member has groups."""
        start, stop = bounds
        if member.groups is not None:
            start, stop = grouped_range(member.groups, dataset, start, stop)
        if (start, stop) != bounds:
            logger.warning("%s: %s", name, moved_range(*bounds, start, stop))
        return Subset(leaf, start, stop)

    def source(self, member: Member, place: Place) -> Dataset:
        """Return the opened dataset or join of a member, or the documents of it that its `where` selects.

        Raises:
            ConfigError, EmptyResult: it has no samples, or none is selected.
        """
        dataset = self.opened_source(member, place)
        if member.where:
            dataset = selected(dataset, rule_of(member), self.file, place)
        return self.counted(dataset, member)

    def counted(self, dataset: Dataset, member: Member) -> Dataset:
        """Return the samples with their tokens, if the member names `lengths`."""
        if member.lengths is not None:
            model = (self.file.model.lengths or {})[member.lengths]
            where = ("lengths", member.lengths)
            try:
                with recipe_line(self.file, where):
                    dataset = dataset.lengths_by(**model.options(self.file.base))
            except FeedmillError as error:
                if error.file != self.file.where(where):  # the folder of the processor, or the dataset
                    error.what = f"{error.what} (lengths of {self.file.where(where)})"
                raise
        return dataset

    def opened_source(self, member: Member, place: Place) -> Dataset:
        """Return the opened dataset or join of a member. Raises `ConfigError` if it has no samples."""
        dataset = self.opened(member) if member.join is None else self.joined(member, place)
        if not len(dataset):
            raise ConfigError(
                f"the dataset {member.path or dataset.url} has no samples",
                file=self.file.where((*place, "path" if member.join is None else "join")),
                kind="empty-source",
                fix="Remove it, choose another split, or run 'feedmill prepare' again.",
            )
        return dataset

    def opened(self, wanted: Member | JoinPart, subflavors: Mapping[str, Any] | None = None) -> Dataset:
        """Return the dataset of a source or of one part of a join, with the subflavors and auxiliary data attached."""
        compiler = self.compiler
        assert wanted.path is not None
        given = {"split": wanted.split, "dataset_config": wanted.dataset_config, "split_config": wanted.split_config}
        unset = (None,) if compiler.opens_datasets else (None, ALL_SPLITS)
        options: dict[str, Any] = {key: value for key, value in given.items() if value not in unset}
        windows = getattr(wanted, "windows", None)
        episodes = self.episodes(wanted)
        if episodes:
            compiler.has_robots = True
            options["episodes"] = episodes
        elif windows is not None:
            options |= windows.options()
        tokenize = getattr(wanted, "tokenize", None)
        if tokenize is not None:
            options["tokenize"] = tokenize.options(self.file.base)
        column = getattr(wanted, "tokens", None)
        if column is not None:
            options["tokens"] = column
        decode = wanted.decode or self.file.model.decode
        if decode is not None:
            options["decode"] = decode.decoder(trust=compiler.trust)
        path = join_url(self.file.base, wanted.path)
        # A recipe is for training: omitting 'split' must not include validation data.
        dataset = compiler.training(path, options) if wanted.split is None else compiler.dataset(path, options)
        attached = {**(wanted.subflavors or {}), **(subflavors or {})}
        aux = getattr(wanted, "aux", None)
        if attached or aux:
            urls = {key: aux_url(self.file.base, url) for key, url in (aux or {}).items()}
            dataset = dataset.opened_as(subflavors={**(dataset.subflavors or {}), **attached}, aux=urls)
            for key, url in urls.items():
                if not aux_is_there(url):
                    raise NotFound(
                        f"the auxiliary data {key!r} is missing", file=url, kind="bad-recipe", fix="Check its path."
                    )
        return dataset

    def episodes(self, wanted: Member | JoinPart) -> dict[str, Any]:
        """Return how the frames of a source's episodes become samples; nothing for what has none."""
        own = getattr(wanted, "episodes", None)
        windows = getattr(wanted, "windows", None)
        frames = None if windows is None else windows.frames
        given = self.file.model.episodes
        if own is None and frames is None and (given is None or not hasattr(wanted, "episodes")):
            return {}
        assert wanted.path is not None
        if own is None and frames is None and not is_episodes(join_url(self.file.base, wanted.path)):
            return {}  # the recipe's keys are for its robots
        layers = [model.model_dump(exclude_unset=True, by_alias=True) for model in (given, own) if model is not None]
        merged = {name: value for layer in layers for name, value in layer.items()}  # null takes back the recipe's
        made = {name: value for name, value in merged.items() if value is not None}
        if frames is not None:
            made["windows"] = frames
        made.pop("statistics", None)
        return made

    def joined(self, member: Member, place: Place) -> Dataset:
        """Return the dataset of a join."""
        from feedmill.formats.energon.join import joined_samples
        from feedmill.samples.joined import JoinedDataset, build_joiner

        joiner = build_joiner(member.joiner, at=self.file.where((*place, "joiner")), trust=self.compiler.trust)
        with recipe_line(self.file, (*place, "join")):
            parts = join_parts(self.opened, member)
            folder = join_folder(self.file, member)
            rows = joined_samples(parts, None if folder is None else open_store(folder))
        names = list(member.join) if isinstance(member.join, dict) else None
        return JoinedDataset([part.dataset for part in parts], rows, names=names, joiner=joiner)


def is_episodes(url: str) -> bool:
    """Return whether a path is a dataset of robot episodes."""
    return sniff(url).format.family == "episodes"


def _opened_twice(path: str) -> AbstractContextManager[None]:
    """Return a context in which the small files of a remote dataset are requested once."""
    if "://" not in path:
        return nullcontext()
    from feedmill.storage.remote.object_store import preloaded_once

    return preloaded_once()


def joins(recipe: Parsed, open: Open) -> Iterator[tuple[str, str | None, list[JoinSide]]]:
    """Yield for each join of a recipe: its ``file:line``, the folder of its prepared rows, and its opened datasets."""
    walk = Walk(_Compiler(open, False), recipe, 0)
    for place, member in members(recipe.model):
        if member.join is not None:
            here = (*place, "join")
            with recipe_line(recipe, here):
                yield recipe.where(here), join_folder(recipe, member), join_parts(walk.opened, member)
    for nested in recipe.nested.values():
        yield from joins(nested, open)


MOST_VALUES = 1024
"""Maximum number of values per source; a field with more is continuous and cannot group samples."""


def by_field(walk: Walk, model: RecipeModel, wanted: HomogeneousModel) -> Node:
    """Return a blend of values in ascending order, each of them a blend of the sources' samples with that value.

    The sources are named ``NAME[FIELD=VALUE]``. A value's weight is the sum over sources of the source's weight times
    the value's share of its samples, as an exact fraction. Within a value, the sources are weighted by these products.

    Raises:
        ConfigError: a source is token data, lacks the field, or has too many values of it.
    """
    by, members = wanted.by, model.blend or []
    streams: list[dict[int, tuple[Fraction, Node]]] = []  # of each member: value -> its share, and its samples
    for number, (member, name) in enumerate(zip(members, names_of(members), strict=True)):
        here = ("blend", number)
        with recipe_line(walk.file, here):
            found = {}
            if walk.episodes(member).get("normalize"):
                raise bad_batches("'normalize' and batches of one value of a field", "Use homogeneous by 'source'.")
            for value, share, selected in _split(walk.source(member, here), member, by):
                own = f"{name}[{by}={value}]"
                leaf = walk.compiler.leaf(selected, own, walk.file.where(here))
                shuffle = member.shuffle or as_described(model.shuffle, selected)
                node = shuffle_as(walk.drawn(leaf, own), shuffle, walk.seed, own, walk.compiler.sources)
                if node.length is not None or member.epochs or member.max_repeats:
                    node = walk.repeat(node, member, here, own, member.epochs)
                found[value] = share, node
            streams.append(found)
    weights = [1 if member.weight is None else member.weight for member in members]
    with recipe_line(walk.file, ("blend",)):
        shares = normalize(weights)
        if model.unit != "samples":
            shares = per_sample(weights, lambda i: _mean(walk, streams[i], i, model.unit))
        totals: dict[int, Fraction] = {}
        groups: list[Node] = []
        for value in sorted({value for found in streams for value in found}):
            having = [number for number, found in enumerate(streams) if value in found]
            parts = [shares[number] * streams[number][value][0] for number in having]
            totals[value] = sum(parts, Fraction(0))
            # If all sources of a value have weight 0, it is never drawn, and its inner weights do not matter.
            groups.append(Blend([streams[n][value][1] for n in having], parts if totals[value] else [1] * len(having)))
        walk.compiler.groups = [f"{by}={value}" for value in totals]
    with recipe_line(walk.file, ("blend",) if model.samples is None else ("samples",)):
        length = None if model.samples is None else walk.compiler.scaled(model.samples)
        return Blend(groups, list(totals.values()), length=length, run_length=wanted.samples)


def _split(dataset: Dataset, member: Member, by: str) -> Iterator[tuple[int, Fraction, SelectedDataset]]:
    """Yield each value of the field in ascending order, with its share of the member's samples, and these samples."""
    if isinstance(dataset, TokenDataset | WindowDataset | CellTokens):
        raise bad_batches(f"{dataset.url} is token data, which has no fields", "Use homogeneous by 'source'.")
    values = dataset.costs(by)
    if values is None:
        fields = ", ".join(dataset.cost_fields) or "none"
        raise bad_batches(
            f"{dataset.url} has no numeric field {by!r} (its numeric fields: {fields})",
            dataset.costs_advice(by),
        )
    start, stop = 0, len(dataset)
    if member.ranges:
        cut = Subset(Leaf(0, stop), *within(member.ranges, stop))  # rejects an empty range
        start, stop = cut.start, cut.start + cut.length
    found, group, counts = np.unique(values[start:stop], return_inverse=True, return_counts=True)
    if len(found) > MOST_VALUES:
        raise bad_batches(
            f"{dataset.url} has {len(found):,} values of {by!r}, from {found[0]:,} to {found[-1]:,}: batches of one"
            f" value allow at most {MOST_VALUES:,}",
            "Store a field with a bucket number, and use that field.",
        )
    order, end = np.argsort(group, kind="stable"), 0
    for value, count in zip(found.tolist(), counts.tolist(), strict=True):
        numbers, end = order[end : end + count] + start, end + count
        yield value, Fraction(count, stop - start), SelectedDataset(dataset, numbers, f"{by}={value}")


def _mean(walk: Walk, streams: dict[int, tuple[Fraction, Node]], number: int, unit: str) -> Fraction:
    """Return the mean tokens, or units of another kind, per sample of a member."""
    return sum((share * walk.mean(node, ("blend", number), unit) for share, node in streams.values()), Fraction(0))


def group_runs(streams: Sequence[Node], run_length: int) -> tuple[int, bool]:
    """Return the run length of a blend, and whether it only keeps groups of samples together."""
    together = common_group(streams)
    if len(streams) == 1 or run_length > 1 or together is None or together == 1:
        return run_length, False  # `Interleaved` rejects what tears groups apart
    return together, True


def in_whole_groups(make: Callable[..., Node], streams: Sequence[Node], samples: int | None) -> Node:
    """Return a blend of some length that ends with a whole group.

    Args:
        make: returns the blend of a length.
        streams: its children.
        samples: the length in the recipe.
    """
    if samples is None or all(stream.group == 1 for stream in streams):
        return make(length=samples)
    free = make(length=None)
    if samples > (free.length or samples):
        return make(length=samples)  # an error that says how many there are
    length = free.whole(samples)
    if not length:
        raise no_whole_group(free, samples)
    if length < samples:
        logger.warning("%s", rounded("the blend", samples, length, free))
    return make(length=length)


def check_names(stages: Sequence[StageModel], names: Sequence[str], where: Callable[..., str]) -> None:
    """Check that the names in the stages match the sources.

    Args:
        stages: the stages of the recipe.
        names: the blend's sources.
        where: returns ``file:line`` of a value by its place in the list of stages.

    Raises:
        ConfigError: a weight for a source that does not exist, or a source without a weight in any stage.
    """
    for number, stage in enumerate(stages):
        for name in stage.weights:
            if name not in names:
                raise ConfigError(
                    f"stage {number + 1} has a weight for {name!r}, which is not a source of this blend",
                    file=where(number, "weights", name),
                    kind="no-such-source",
                    fix=suggestion(name, names, f"Its sources are: {', '.join(names)}."),
                )
        for name in stage.max_repeats if isinstance(stage.max_repeats, dict) else ():
            if name not in names:
                raise ConfigError(
                    f"stage {number + 1} limits the repeats of {name!r}, which is not a source of this blend",
                    file=where(number, "max_repeats", name),
                    kind="no-such-source",
                    fix=suggestion(name, names, f"Its sources are: {', '.join(names)}."),
                )
    silent = [name for name in names if not any(name in stage.weights for stage in stages)]
    if silent:
        raise ConfigError(
            f"no stage has a weight for {', '.join(map(repr, silent))}",
            kind="bad-recipe",
            fix="Give it a weight in a stage; 0 leaves it out.",
        )


def packing_of(pack: PackModel, stages: Sequence[StageModel], root: Node) -> Packing:
    """Return the packing of a recipe; stages with a `seq_len` have rows of another width.

    Raises:
        ConfigError: a value is out of range, or an option needs another `seq_len`.
    """
    given = pack.model_dump(exclude_none=True)
    given["values"] = tuple(pack.values or ())
    if not isinstance(root, StagedBlend) or not stages:
        return Packing(**given)
    given["seq_len"] = width = stages[0].seq_len or pack.seq_len
    later = []
    for start, stage in zip(root.stages.starts[1:], stages[1:], strict=False):
        if (stage.seq_len or pack.seq_len) != width:
            width = stage.seq_len or pack.seq_len
            later.append((start, width))
    return Packing(**given, later=tuple(later))


def caps_of(stage: StageModel, names: Sequence[str], where: str) -> Caps | None:
    """Return how often a stage may repeat the sources with these names; None if it has no limit."""
    given = stage.max_repeats
    if given is None:
        return None
    by_name = given if isinstance(given, dict) else dict.fromkeys(names, given)
    return Caps({names.index(name): most for name, most in by_name.items()}, where)


def stage_length(
    stage: StageModel,
    shares: Sequence[Fraction],
    mean: Callable[[int], Fraction],
    global_batch: int | None,
    run_length: int = 1,
) -> int | None:
    """Return the length of a stage in samples; None if it is open-ended.

    Steps are multiplied by the global batch. Tokens are divided by their mean per sample and rounded to the nearest
    whole run.

    Args:
        stage: the stage of the recipe.
        shares: weight of each source per sample.
        mean: returns the mean tokens per sample of a source.
        global_batch: samples per step.
        run_length: samples of one source at a time.

    Raises:
        ConfigError: steps without a global batch, or too few tokens for one sample.
    """
    if stage.samples is not None:
        return stage.samples
    if stage.steps is not None:
        if global_batch is None:
            raise ConfigError(
                f"a stage of {stage.steps:,} steps needs a batch size",
                kind="bad-recipe",
                fix="Set 'global_batch' at the top of the recipe, or give 'samples'.",
            )
        return stage.steps * global_batch
    if stage.tokens is None:
        return None
    per_sample = exact_sum([share * mean(i) for i, share in enumerate(shares) if share])
    samples = round(stage.tokens / per_sample / run_length) * run_length
    if samples < 1:
        raise ConfigError(
            f"{stage.tokens:,} tokens are less than one {_unit(run_length)}, which has"
            f" {float(per_sample * run_length):.4g} on average in this stage",
            kind="bad-recipe",
            fix=f"Give at least 'tokens: {ceil(per_sample * run_length)}'.",
        )
    return samples


def _unit(run_length: int) -> str:
    return "sample" if run_length == 1 else f"run of {run_length:,} samples"


def targets_of(model: TargetsModel, pad: int) -> tuple[FillInMiddle | None, Targets]:
    """Return the transform and the collate function of ``targets``.

    Args:
        model: the value of the key.
        pad: id that fills rows up.

    Raises:
        ConfigError: the values contradict each other.
    """
    from feedmill.samples.fim import FillInMiddle
    from feedmill.samples.targets import LossMask, Targets

    given = model.model_dump(exclude_none=True, exclude={"mask", "fim"})
    if model.fim is not None and model.mask is not None:
        raise ConfigError(
            "'fim' and 'mask' cannot be combined: rearranged documents have no answers between markers",
            kind="bad-recipe",
            fix="Store the mask beside the tokens, see docs/targets.md; masked documents are not rearranged.",
        )
    mask = None if model.mask is None else LossMask(**model.mask.model_dump())
    fim = None if model.fim is None else FillInMiddle(**model.fim.model_dump(), pad=pad)
    return fim, Targets(**given, mask=mask, pad=pad)


def check_tokenizers(sources: Sequence[Dataset], names: Sequence[str], places: Sequence[str]) -> None:
    """Raise an error if sources are known to be made with different tokenizers.

    Args:
        sources, names: the datasets of a plan and their names.
        places: ``file:line`` of each in the recipe.

    Raises:
        ConfigError: with the names of two sources and their tokenizers.
    """
    known: dict[tuple[str, str], tuple[Identity, str]] = {}  # one file per tokenizer is enough; there may be many
    seen: set[int] = set()  # hundreds of cells may be of one dataset
    for dataset, name, place in zip(sources, names, places, strict=True):
        stored = dataset.dataset if isinstance(dataset, CellDataset) else dataset
        if id(stored) in seen:
            continue
        seen.add(id(stored))
        for identity in identities(stored):
            if identity[:2] in known:
                continue
            for other, its_name in known.values():
                if identity.differs(other):
                    raise _mixed(other, its_name, identity, name, place)
            known[identity[:2]] = identity, name


def _mixed(first: Identity, its_name: str, second: Identity, name: str, place: str) -> ConfigError:
    return ConfigError(
        f"the source {its_name!r} was tokenized with {first} and {name!r} with {second}: the same id means different"
        f" tokens ({first.file}, {second.file})",
        file=place,
        kind="mixed-tokenizers",
        fix="Tokenize both with the same tokenizer. If the two are the same under different names, set"
        " 'mixed_tokenizers: true' at the top of the recipe.",
    )


def in_order(model: RecipeModel, nodes: Sequence[Node]) -> Node:
    """Return one epoch of a recipe's sources, each in stored order, in the order of another tool.

    Raises:
        ConfigError: the order is impossible for these sources; see `Nanoset`, `BlendableDataset`, `ModalitiesSampler`.
    """
    order, seed = model.order, model.seed
    assert order is not None and seed is not None  # the schema requires both
    if order.kind != "modalities":
        given = [member.weight for member in model.blend or () if member.weight is not None]
        # A number keeps its own rounding: the order depends on its last bit.
        weights = [float(weight if isinstance(weight, int | float) else exact_weight(weight)) for weight in given]
        if order.kind == "nanoset":
            return Nanoset(nodes, weights or None, seed)
        assert model.samples is not None  # as above
        return BlendableDataset(nodes, weights or [1.0] * len(nodes), model.samples)
    (node,) = nodes
    return ModalitiesSampler(
        node,
        order.ranks or 1,
        shuffle=order.shuffle,
        seed=seed,
        epoch=order.epoch,
        drop_last=order.drop_last,
        skip=order.skip,
        batch_size=order.batch_size,
    )
