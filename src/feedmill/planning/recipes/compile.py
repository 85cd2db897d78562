"""Compile recipes to plans: open every dataset, and build the tree of nodes over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError, NotFound
from feedmill.planning.dealing.dealer import dealing_of
from feedmill.planning.dealing.homogeneous import check_drawn, check_skip
from feedmill.planning.mixing.blend import normalize
from feedmill.planning.nodes import Blend, Concat, EpochizedBlend, Leaf, Node, Repeat, StagedBlend, Subset
from feedmill.planning.nodes.repeat import epochs_of
from feedmill.planning.orders.recipe import in_order
from feedmill.planning.permutation import derive
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.grouping import by_field
from feedmill.planning.recipes.member import (
    Place,
    as_described,
    aux_is_there,
    aux_url,
    bounds_of,
    join_folder,
    join_parts,
    names_of,
    recipe_line,
    shuffle_as,
)
from feedmill.planning.recipes.skip import read_entries, with_skips
from feedmill.planning.recipes.sources import Open, members
from feedmill.planning.recipes.staging import check_names, stage_length
from feedmill.planning.recipes.tokenizers import check_tokenizers
from feedmill.planning.tokens import Tokens, per_sample
from feedmill.samples.open import ALL_SPLITS
from feedmill.storage import join_url, open_store
from feedmill.storage.remote.options import storage_options

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.energon.join import Part
    from feedmill.planning.recipes.fields import JoinPart, ShuffleModel
    from feedmill.planning.recipes.recipe import Recipe
    from feedmill.planning.recipes.schema import Member, RecipeModel


def compile_recipe(recipe: Recipe, open: Open, *, trust: bool = False) -> Plan:
    """Return the plan of a recipe.

    Args:
        recipe: the recipe.
        open: opens one dataset; called once for each distinct path and options.
        trust: allow joiners to run.
    """
    compiler = _Compiler(open, trust)
    seed = recipe.model.seed or 0
    root = compiler.recipe(recipe, seed, "")
    if not recipe.model.mixed_tokenizers:
        check_tokenizers(compiler.sources, compiler.names, compiler.lines)
    try:
        plan = Plan(root, compiler.sources, compiler.names, seed)
    except ConfigError as error:
        error.file = error.file or compiler.places.get(error.record or "", recipe.file)
        raise
    if recipe.model.pack is not None:
        from feedmill.planning.packing.options import Packing  # brings numba, which takes a while to load
        from feedmill.planning.packing.packed import PackedPlan

        with recipe_line(recipe, ("pack",)):
            packing = Packing(**recipe.model.pack.model_dump(exclude_none=True))
            plan = PackedPlan(plan, packing, where=recipe.where(("pack",)))
    model = recipe.model
    if model.targets is not None:
        from feedmill.planning.recipes.targets import targets_of

        with recipe_line(recipe, ("targets",)):
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
        self.tokens = Tokens(self.sources)

    def dataset(self, path: str, options: dict[str, Any]) -> Dataset:
        """Return an opened dataset, opened once for each distinct set of options."""
        known = (path, *options.items())
        if known not in self.opened:
            self.opened[known] = self.open(path, **options)
        return self.opened[known]

    def leaf(self, dataset: Dataset, name: str, line: str) -> Leaf:
        """Add a source and return its leaf; `line` is its ``file:line`` in the recipe."""
        leaf = Leaf(len(self.sources), len(dataset))
        self.sources.append(dataset)
        self.names.append(name)
        self.lines.append(line)
        return leaf

    def recipe(self, recipe: Recipe, seed: int, prefix: str) -> Node:
        """Return the node of a whole recipe, cut to its own length; `prefix` is prepended to its sources' names."""
        with storage_options(recipe.storage()):
            return self._recipe(recipe, seed, prefix)

    def _recipe(self, recipe: Recipe, seed: int, prefix: str) -> Node:
        model = recipe.model
        walk = Walk(self, recipe, seed)
        if model.order is not None:
            return walk.ordered(prefix)
        if model.blend is not None and model.homogeneous is not None and model.homogeneous.by != "source":
            return by_field(walk, model, model.homogeneous)
        if model.blend is not None:
            return walk.blend(model, (), prefix, model.shuffle, model.samples, _run_length(model))
        cap = None
        if model.blend_epochized is not None:
            name = prefix.rstrip("/")
            node: Node = walk.epochized(model.blend_epochized, ("blend_epochized",), prefix, model.shuffle)
        elif model.concat is not None:
            node = shuffle_as(walk.concat(model.concat, ("concat",), prefix), model.shuffle, seed, prefix, self.sources)
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
            return Repeat(node, model.epochs, length=model.samples, max_repeats=cap, name=name)


def _run_length(model: RecipeModel) -> int:
    return 1 if model.homogeneous is None else model.homogeneous.samples


class Walk:
    """Builder of the nodes of one recipe."""

    def __init__(self, compiler: _Compiler, recipe: Recipe, seed: int) -> None:
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
        streams = []
        for number, (member, name) in enumerate(zip(members, names, strict=True)):
            here = (*place, "blend", number)
            node = self.member(member, here, prefix + name, member.shuffle or shuffle)
            if node.length is not None or member.epochs or member.max_repeats:
                node = self.repeat(node, member, here, prefix + name, member.epochs)
            streams.append(node)
        if mix.stages is not None:
            return self.stages(mix, place, names, streams, samples, run_length)
        if mix.epochs is not None:  # of a single source: the schema allows no other
            samples = self.passes(mix, place, streams[0])
        weights: Sequence[Any] = [1 if member.weight is None else member.weight for member in members]
        if mix.unit == "tokens":
            weights = per_sample(weights, lambda i: self.mean(streams[i], (*place, "blend", i)))
        with recipe_line(self.file, (*place, "blend") if samples is None else ("samples",)):
            return Blend(streams, weights, length=samples, run_length=run_length)

    def passes(self, mix: Member | RecipeModel, place: Place, stream: Node) -> int:
        """Return the samples of a blend of one source: of all passes for a recipe, of one for a member."""
        with recipe_line(self.file, (*place, "epochs")):
            whole = stream.child if isinstance(stream, Repeat) else stream
            return epochs_of(1 if place else mix.epochs, whole.finite("counting epochs"))[1]

    def stages(
        self,
        mix: Member | RecipeModel,
        place: Place,
        names: Sequence[str],
        streams: Sequence[Node],
        samples: int | None,
        run_length: int,
    ) -> Node:
        """Return a blend whose weights change."""
        stages = mix.stages or []
        here = (*place, "stages")
        with recipe_line(self.file, here):
            check_names(stages, names, lambda *inner: self.file.where((*here, *inner)))

        def mean(source: int) -> Fraction:
            return self.mean(streams[source], (*place, "blend", source))

        parts = []
        for number, stage in enumerate(stages):
            weights = [stage.weights.get(name, 0) for name in names]
            with recipe_line(self.file, (*here, number, "weights")):
                shares = per_sample(weights, mean) if mix.unit == "tokens" else normalize(weights)
            with recipe_line(self.file, (*here, number)):
                length = stage_length(stage, shares, mean, self.file.model.global_batch, run_length)
                parts.append((length, shares))
        with recipe_line(self.file, here if samples is None else ("samples",)):
            return StagedBlend(streams, parts, length=samples, run_length=run_length)

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

    def mean(self, node: Node, place: Place) -> Fraction:
        """Return the mean tokens per sample of a member."""
        with recipe_line(self.file, place):
            return self.compiler.tokens.mean(node)

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
        from feedmill.planning.orders.megatron_build import blended, cut

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
            return Repeat(node, times, max_repeats=member.max_repeats, name=name)

    def member(self, member: Member, place: Place, name: str, shuffle: ShuffleModel | None) -> Node:
        """Return one epoch of a member in its own order, or an endless node."""
        if member.blend is not None:
            return self.blend(member, place, f"{name}/", shuffle or self.file.model.shuffle)
        if member.blend_epochized is not None:
            inner = shuffle or self.file.model.shuffle
            return self.epochized(member.blend_epochized, (*place, "blend_epochized"), f"{name}/", inner)
        if member.concat is not None:
            node = self.concat(member.concat, (*place, "concat"), f"{name}/")
        elif member.recipe is not None:
            nested = self.file.nested[place]
            if nested.model.skip:
                raise ConfigError(
                    "a nested recipe cannot have 'skip': its positions count in the whole stream",
                    file=nested.where(("skip",)),
                    kind="bad-skip",
                    fix="Move it to the outermost recipe, with the source's full name.",
                )
            for key in ("deal", "balance", "batch", "homogeneous", "targets"):
                if getattr(nested.model, key) is not None:
                    raise ConfigError(
                        f"a nested recipe cannot have {key!r}: it applies to whole batches",
                        file=nested.where((key,)),
                        kind="nested-deal",
                        fix="Move it to the outermost recipe.",
                    )
            if nested.model.pack is not None:
                raise ConfigError(
                    f"the nested recipe {member.recipe} has 'pack': packed rows cannot be blended or packed again",
                    file=self.file.where((*place, "recipe")),
                    kind="nested-pack",
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
        with recipe_line(self.file, (*place, "shuffle")):
            return shuffle_as(node, shuffle, self.seed, name, self.compiler.sources)

    def dataset(self, member: Member, place: Place, name: str) -> Node:
        """Open the dataset or join of a member and return its leaf, cut to its subset."""
        leaf = self.compiler.leaf(self.source(member, place), name, self.file.where(place))
        if not member.ranges:
            return leaf
        with recipe_line(self.file, (*place, "subset")):
            return Subset(leaf, *bounds_of(self.file, member, self.compiler.sources[leaf.number]))

    def source(self, member: Member, place: Place) -> Dataset:
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
        options: dict[str, Any] = {key: value for key, value in given.items() if value not in (None, ALL_SPLITS)}
        windows = getattr(wanted, "windows", None)
        if windows is not None:
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
        with _opened_twice(path):
            dataset = compiler.dataset(path, options)
            if wanted.split is None and "train" in dataset.splits:
                # A recipe is for training: omitting 'split' must not include validation data.
                dataset = compiler.dataset(path, {**options, "split": "train"})
        attached = {**(wanted.subflavors or {}), **(subflavors or {})}
        aux = getattr(wanted, "aux", None)
        if attached or aux:
            urls = {key: aux_url(self.file.base, url) for key, url in (aux or {}).items()}
            dataset = dataset.opened_as(subflavors={**(dataset.subflavors or {}), **attached}, aux=urls)
            for key, url in urls.items():
                if not aux_is_there(url):
                    raise NotFound(
                        f"the auxiliary data {key!r} is missing", file=url, kind="no-aux", fix="Check its path."
                    )
        return dataset

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


def _opened_twice(path: str) -> AbstractContextManager[None]:
    """Return a context in which the small files of a remote dataset are requested once."""
    if "://" not in path:
        return nullcontext()
    from feedmill.storage.remote.object_store import preloaded_once

    return preloaded_once()


def joins(recipe: Recipe, open: Open) -> Iterator[tuple[str, str | None, list[Part]]]:
    """Yield for each join of a recipe: its ``file:line``, the folder of its prepared rows, and its opened datasets."""
    walk = Walk(_Compiler(open, False), recipe, 0)
    for place, member in members(recipe.model):
        if member.join is not None:
            here = (*place, "join")
            with recipe_line(recipe, here):
                yield recipe.where(here), join_folder(recipe, member), join_parts(walk.opened, member)
    for nested in recipe.nested.values():
        yield from joins(nested, open)
