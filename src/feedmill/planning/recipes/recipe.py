"""Recipes: declarative descriptions of a mixture, read from Feedmill's own YAML or a dialect. See docs/recipes.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import Tree, render
from feedmill.planning.recipes import read
from feedmill.planning.recipes.read import Open, Parsed, kind_of
from feedmill.storage import join_url, split_url

if TYPE_CHECKING:
    from feedmill.formats.yamls import Marks
    from feedmill.planning.dialects import Translation
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.schema import Member, RecipeModel
    from feedmill.planning.recipes.statistics import StatisticsReport
    from feedmill.storage.cache.settings import DataCache


class Recipe(Parsed):
    """A validated recipe with the recipes nested in it; created by `load` or `parse`.

    Attributes:
        model: the recipe as validated data.
        base: folder or URL that its paths are relative to.
        file: path or URL that it was read from; None for text and mappings.
        marks: the origins of its values, and what a dialect says beside them.
        nested: the recipes that its sources refer to, by place.
    """

    nested: dict[tuple[int | str, ...], Recipe]

    def __init__(
        self,
        model: RecipeModel,
        *,
        base: str = "",
        file: str | None = None,
        marks: Marks | Translation | None = None,
        nested: Mapping[tuple[int | str, ...], Recipe] | None = None,
    ) -> None:
        if isinstance(model, Mapping | str | os.PathLike):
            raise _not_made_of(model)
        super().__init__(model, base, file, marks, dict(nested or {}))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | Mapping[str, Any], *, split: str | None = None, mode: str = "train"
    ) -> Recipe:
        """Read a recipe, and the recipes it refers to, from a path or URL.

        Args:
            path: a Feedmill recipe, a recipe in a dialect (docs/dialects.md), or a dataset, which becomes the only
                source of a recipe. The data of a recipe is taken as by `parse`.
            split: split of a metadataset or dataset; default ``train``, or ``val`` for validation.
            mode: ``train``; or ``validation``, which reads a metadataset's datasets in sequence, once, unshuffled.

        Raises:
            NotFound: no such file or split.
            ConfigError: it is not a valid recipe; the message lists the line of every problem.
        """
        if isinstance(path, Mapping):
            return cls.parse(path, split=split, mode=mode)
        if not isinstance(path, str | os.PathLike):
            raise _not_made_of(path)
        return cls._of(read.load(_absolute(os.fspath(path)), split, mode))

    @classmethod
    def parse(
        cls,
        recipe: str | bytes | Mapping[str, Any],
        *,
        base: str | os.PathLike[str] = ".",
        split: str | None = None,
        mode: str = "train",
    ) -> Recipe:
        """Return a recipe from YAML text or plain data; paths are relative to `base`. See `load`."""
        return cls._of(read.parse(recipe, _absolute(os.fspath(base)), None, split, mode))

    @classmethod
    def _of(cls, parsed: Parsed) -> Recipe:
        nested = {place: cls._of(inner) for place, inner in parsed.nested.items()}
        return cls(parsed.model, base=parsed.base, file=parsed.file, marks=parsed.marks, nested=nested)

    def restated(self, words: Mapping[str, Any]) -> Recipe:
        """Return the recipe with other values for top-level keys. Raises `ConfigError` if they are invalid for it."""
        data = {**self.model.model_dump(exclude_unset=True), **words}
        model = read.model_of(data, self.file, self.marks)
        return Recipe(model, base=self.base, file=self.file, marks=self.marks, nested=self.nested)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON schema of recipes, for use in editors."""
        from feedmill.planning.recipes.schema import RecipeModel

        return RecipeModel.model_json_schema()

    @cached_property
    def fingerprint(self) -> str:
        """Return a short hash of the recipe and its nested recipes.

        Comments, the order of keys, and keys that repeat a default do not affect it.
        """
        data = _as_json(self.model.model_dump(exclude_defaults=True, exclude={"cache", "storage"}))
        inner = {repr(place): recipe.fingerprint for place, recipe in self.nested.items()}
        text = json.dumps([data, inner], sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def plan(
        self, open: Open | None = None, *, trust: bool = False, proxy: str | int | Mapping[str, Any] | None = None
    ) -> Plan:
        """Open the datasets and bind the recipe to them.

        Args:
            open: opens one dataset; `feedmill.open` by default.
            trust: allow the recipe to run code (joiners) and, with `feedmill.open`, the datasets to run theirs.
            proxy: plan a small run that stands for this one, as with this value of the recipe's key ``proxy``: tokens,
                ``"1B/200B"`` for 1B of 200B tokens, or a mapping.

        Raises:
            TrustError: the recipe refers to code and `trust` is False.
            ConfigError: a source is empty, a subset lies outside its source, or a source would be repeated more often
                than its `max_repeats`. The message contains the line.
        """
        from feedmill.planning.recipes.compile import compile_recipe

        if self.model.rollouts is not None:
            raise ConfigError(
                "rollouts have no plan: what a step draws depends on the groups that are there by then",
                file=self.file,
                kind="bad-plan",
                fix="Use fm.loading.RolloutLoader, or 'feedmill trace RECIPE --step N' for a step that was drawn.",
            )
        if proxy is not None:
            return self.restated({"proxy": proxy}).plan(open, trust=trust)
        again = partial(self.plan, open, trust=trust)
        if open is None:
            from feedmill.samples.open import open as open_dataset

            open = partial(open_dataset, trust=True) if trust else open_dataset
        from feedmill.storage.cache.settings import using_cache

        cache = self._cache()
        with using_cache(cache):
            plan = compile_recipe(self, open, trust=trust)
        plan.again, plan.cache = again, cache
        return plan

    def statistics(
        self, open: Open | None = None, *, trust: bool = False, progress: bool | None = True
    ) -> StatisticsReport:
        """Compute the statistics of the robot episodes that the recipe trains on, and write them beside it.

        Plans of a recipe with ``normalize`` need them; see docs/formats/lerobot.md. What was computed before is not
        computed again: another source costs its own size, and other weights cost nothing.

        Args:
            open, trust: see `plan`.
            progress: show a progress bar.

        Raises:
            ConfigError: no source has robot episodes with such features.
            DataError: a value is missing or not finite.
        """
        from feedmill.planning.recipes.compile import compile_statistics
        from feedmill.samples.open import open as open_dataset
        from feedmill.storage.cache.settings import using_cache

        with using_cache(self._cache()):
            return compile_statistics(self, open or open_dataset, trust=trust, progress=progress)

    def _cache(self) -> DataCache | None:
        """Return the settings of `cache`, or None. Raises `ConfigError`."""
        settings = self.model.cache
        if settings is None:
            return None
        from feedmill.planning.recipes.member import recipe_line
        from feedmill.storage.cache.settings import DataCache

        with recipe_line(self, ("cache",)):
            folder = None if settings.dir is None else join_url(self.base, settings.dir)
            if folder is not None and "://" in folder:
                raise ConfigError(
                    f"the cache folder {folder} is not on this machine", kind="bad-cache", fix="Give an absolute path."
                )
            return DataCache.of(settings.size, folder, settings.unit)

    def __str__(self) -> str:
        return render(self._tree("recipe" if self.file is None else split_url(self.file)[1]))

    def __repr__(self) -> str:
        return f"<Recipe: {self.file or 'from data'}, {self.fingerprint}>"

    def _tree(self, label: str) -> Tree:
        model = self.model
        words = [label if model.seed is None else f"{label}: seed {model.seed}"]
        if model.samples is not None:
            words.append(f"{model.samples:,} samples")
        if model.epochs is not None:
            words.append(f"{model.epochs} epochs")
        words.append(f"order {model.order.kind}" if model.order else f"shuffle {_shuffle_words(model.shuffle)}")
        if model.proxy is not None:
            of = "" if model.proxy.of is None else f" of {model.proxy.of:,}"
            words.append(f"proxy of {model.proxy.amount:,}{of} {model.proxy.unit}")
        if model.pack is not None:
            words.append(f"pack {model.pack.method} {model.pack.seq_len:,}")
        if model.source is not None:
            return ", ".join(words), [self._member(model.source, ("source",))]
        if model.rollouts is not None:
            own = model.rollouts.model_dump(exclude_unset=True, exclude={"path"})
            return words[0], [(f"{model.rollouts.path}: {', '.join(f'{k} {v}' for k, v in own.items())}", [])]
        kind = kind_of(model)
        words += [*_mix_words(model), kind]
        return ", ".join(words), [self._member(each, (kind, i)) for i, each in enumerate(getattr(model, kind))]

    def _member(self, member: Member, place: tuple[int | str, ...]) -> Tree:
        words = [] if member.weight is None else [f"weight {member.weight}"]
        words += [f"{name} {getattr(member, name)}" for name in _SHOWN if getattr(member, name) is not None]
        words += [f"subset [{first}, {end}]" for first, end in member.ranges]
        words += [f"{key} {value}" for key, value in (member.subflavors or {}).items()]
        if member.shuffle is not None:
            words.append(f"shuffle {_shuffle_words(member.shuffle)}")
        if member.windows is not None:
            length = member.windows.seq_len or member.windows.block_size
            words.append(
                f"windows of {', '.join(member.windows.frames or ()) if length is None else format(length, ',')}"
            )
        if member.episodes is not None:
            words.append(f"episodes with {', '.join(sorted(member.episodes.model_fields_set))}")
        words += _mix_words(member)
        kind = "join" if member.join is not None else kind_of(member)
        title = member.name or member.path or member.recipe or kind
        if member.name and (member.path or member.recipe):
            title = f"{member.name} ({member.path or member.recipe})"
        label = f"{title}: {', '.join(words)}" if words else title
        if place in self.nested:
            return label, self.nested[place]._tree("recipe")[1]
        if member.join is not None:
            parts = member.join.items() if isinstance(member.join, dict) else enumerate(member.join)
            return label, [(f"{key}: {part.path}, {part.nonmatch}", []) for key, part in parts]
        inner = getattr(member, kind) or []
        return label, [self._member(each, (*place, kind, i)) for i, each in enumerate(inner)]


def _not_made_of(given: Any) -> ConfigError:
    """Return the error for a recipe that is made in another way than by `load` of a file or `parse` of data."""
    path = isinstance(given, str | os.PathLike)
    return ConfigError(
        f"a recipe is not made of a {type(given).__name__} in this way",
        kind="bad-recipe",
        fix="Use fm.Recipe.load(path)."
        if path
        else "Use fm.Recipe.parse(data) for data, fm.Recipe.load(path) for a file.",
    )


_SHOWN = ("split", "lengths", "dataset_config", "split_config", "repetitions", "epochs", "max_repeats")


def _as_json(value: Any) -> Any:
    """Return a value as JSON data; types that JSON lacks, such as dates and bytes in subflavors, become text."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _mix_words(mix: Member | RecipeModel) -> list[str]:
    words = [] if mix.unit == "samples" else [f"weights per {mix.unit.removesuffix('s')}"]
    return words if mix.stages is None else [*words, f"{len(mix.stages)} stages"]


def _shuffle_words(shuffle: Any) -> str:
    if shuffle.kind == "block":
        own = {"block", "window"} & shuffle.model_fields_set
        return f"block {shuffle.block or 'by size'} x {shuffle.window}" if own else "block"
    cut = "" if shuffle.sequence is None else f" in sequences of {shuffle.sequence:,}"
    return f"shards x {shuffle.parallel}{cut}" if shuffle.kind == "shards" else str(shuffle.kind)


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)
