"""Compile recipes to plans: open every dataset, and build the tree of nodes over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.formats.base import CountedOnRead
from feedmill.planning.dealing.dealer import dealing_of
from feedmill.planning.dealing.homogeneous import check_drawn, check_skip
from feedmill.planning.nodes import Leaf, Node, Repeat
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.grouping import by_field
from feedmill.planning.recipes.member import (
    join_folder,
    join_parts,
    names_of,
    recipe_line,
    shuffle_as,
)
from feedmill.planning.recipes.skip import read_entries, with_skips
from feedmill.planning.recipes.sources import Open, members
from feedmill.planning.recipes.tokenizers import check_tokenizers
from feedmill.planning.recipes.walk import Walk
from feedmill.planning.tokens import Tokens
from feedmill.storage.remote.options import storage_options

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.energon.join import Part
    from feedmill.planning.recipes.recipe import Recipe
    from feedmill.planning.recipes.schema import RecipeModel


def compile_recipe(recipe: Recipe, open: Open, *, trust: bool = False) -> Plan:
    """Return the plan of a recipe.

    Args:
        recipe: the recipe.
        open: opens one dataset; called once for each distinct path and options.
        trust: allow joiners to run.
    """
    compiler = Compiler(open, trust)
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
        from feedmill.planning.packing.best_fit import BUFFER_ON_READ
        from feedmill.planning.packing.options import Packing  # brings numba, which takes a while to load
        from feedmill.planning.packing.packed import PackedPlan

        with recipe_line(recipe, ("pack",)):
            options = recipe.model.pack.model_dump(exclude_none=True)
            if any(source.lengths is None and isinstance(source, CountedOnRead) for source in plan.sources):
                options.setdefault("buffer", BUFFER_ON_READ)
            packing = Packing(**options)
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
    read = [(entry, n) for n, found in enumerate(read_entries(skip, recipe.base)) for entry in found]
    plan = with_skips(plan, [entry for entry, _ in read], [recipe.where(("skip", n)) for _, n in read])
    with recipe_line(recipe, ("skip",)):
        check_skip(plan)
    return plan


class Compiler:
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
            node = shuffle_as(walk.concat(model.concat, ("concat",), prefix), model.shuffle, seed, prefix)
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


def joins(recipe: Recipe, open: Open) -> Iterator[tuple[str, str | None, list[Part]]]:
    """Yield for each join of a recipe: its ``file:line``, the folder of its prepared rows, and its opened datasets."""
    walk = Walk(Compiler(open, False), recipe, 0)
    for place, member in members(recipe.model):
        if member.join is not None:
            here = (*place, "join")
            with recipe_line(recipe, here):
                yield recipe.where(here), join_folder(recipe, member), join_parts(walk.opened, member)
    for nested in recipe.nested.values():
        yield from joins(nested, open)
