"""Read recipes in Feedmill's own YAML and in the dialects, with the recipes they refer to, and find their sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning import dialects
from feedmill.planning.dialects import TRAIN, VALIDATION, Place, Translation
from feedmill.storage import is_local_folder, join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.yamls import Marks
    from feedmill.planning.dialects.energon import Asked
    from feedmill.planning.recipes.schema import Member, RecipeModel


_log = logging.getLogger("feedmill")
_LARGEST = 1 << 26
_RECIPES = (".yaml", ".yml", ".json")


@dataclass(eq=False)
class Parsed:
    """A validated recipe with the recipes nested in it; a `Recipe` without its methods.

    Attributes:
        model: the recipe as validated data.
        base: folder or URL that its paths are relative to.
        file: path or URL that it was read from; None for text and mappings.
        marks: the origins of its values, and what a dialect says beside them.
        nested: the recipes that its sources refer to, by place.
    """

    model: RecipeModel
    base: str
    file: str | None
    marks: Marks | Translation | None
    nested: Mapping[Place, Parsed]

    def storage(self) -> dict[str, dict[str, Any]]:
        """Return the options of object stores, by the beginnings of URLs; see `feedmill.storage.remote.options`."""
        from feedmill.storage.remote.options import options_of

        options_by_url = self.model.storage or {}
        return {url: options_of(options.model_dump(exclude_none=True)) for url, options in options_by_url.items()}

    def where(self, place: Sequence[int | str] = ()) -> str:
        """Return ``file:line`` of a value of the recipe, for error messages."""
        return place_of(self.marks, place)


def load(
    url: str, split: str | None = None, mode: str = TRAIN, chain: tuple[str, ...] = (), *, asked: Asked | None = None
) -> Parsed:
    """Read one recipe, or build one for a dataset; `chain` holds the enclosing recipes. See `Recipe.load`.

    Args:
        asked: what the caller asks of all datasets of a metadataset.
    """
    dialects.check_mode(mode, url)
    folder, name = split_url(url)
    if is_dataset(url):
        return of_dataset(url, split, mode)
    store = open_store(folder)
    size = store.stat(name).size
    if size > _LARGEST:  # probably a data file: reading and parsing it could exhaust memory
        raise ConfigError(
            f"this is not a recipe: the file has {size:,} bytes",
            file=url,
            kind="bad-recipe",
            fix="Give a recipe, or a dataset in a format that 'feedmill show' recognizes.",
        )
    return parse(store.read(name), folder, url, split, mode, (*chain, url), asked=asked)


def is_dataset(url: str) -> bool:
    """Return whether a path is a dataset rather than a recipe: a file of samples, or a folder."""
    from feedmill.formats.sniff import SUFFIXES

    return url.endswith(SUFFIXES) or is_local_folder(url) or ("://" in url and not url.endswith(_RECIPES))


def of_dataset(url: str, split: str | None, mode: str) -> Parsed:
    """Return the recipe of one dataset: endless and shuffled for training, in stored order for validation."""
    folder, name = split_url(url.rstrip("/"))
    source: dict[str, Any] = {"path": name or url}
    if mode == VALIDATION:
        split = split or "val"
    if split is not None:
        source["split"] = split
    data: dict[str, Any] = {"source": source}
    if mode == VALIDATION:
        data |= {"shuffle": "none", "epochs": 1}
    return _validated(data, folder if name else "", None, Translation(url, data))


def parse(
    source: str | bytes | Mapping[str, Any],
    base: str,
    file: str | None,
    split: str | None = None,
    mode: str = TRAIN,
    chain: tuple[str, ...] = (),
    *,
    asked: Asked | None = None,
) -> Parsed:
    """Return a recipe from text or plain data, in whichever dialect it is written. See `Recipe.parse` and `load`."""
    from feedmill.formats.yamls import Marks

    dialects.check_mode(mode, file or "recipe")
    dialect = dialects.recognize(source)
    if asked is not None and dialect != dialects.METADATASET:
        raise ConfigError(
            "subsets, subflavors and shuffle_over_epochs_multiplier apply to datasets and metadatasets",
            file=file,
            kind="unsupported",
            fix="Set them at the sources of the recipe.",
        )
    if dialect is not None:
        translation = _translate(dialect, source, base, file, split, mode, asked)
        for note in translation.notes:
            (_warn_once if file else _warn)(file or "recipe", note)
        return _validated(translation.data, base, file, translation, chain)
    marks = Marks(source, file or "recipe", ours=True) if isinstance(source, str | bytes) else None
    if split not in (None, TRAIN) or mode != TRAIN:  # a recipe is for training
        raise ConfigError(
            "'split' and 'mode' are not supported for Feedmill recipes, which set the split of each source",
            file=file,
            kind="bad-option",
            fix="Omit 'split' and 'mode', or write a separate recipe for validation.",
        )
    return _validated(source if marks is None else marks.data, base, file, marks, chain)


def _warn(file: str, note: str) -> None:
    _log.warning("%s: %s", file, note)


_warn_once = cache(_warn)


def _translate(
    dialect: str,
    source: str | bytes | Mapping[str, Any],
    base: str,
    file: str | None,
    split: str | None,
    mode: str,
    asked: Asked | None,
) -> Translation:
    from feedmill.formats.yamls import Document, read_yaml

    where = file or "recipe"
    if dialect == dialects.METADATASET:
        from feedmill.planning.dialects import energon

        document = read_yaml(source, where) if isinstance(source, str | bytes) else Document(source, where)
        wanted = split or ("val" if mode == VALIDATION else "train")
        own = asked or energon.Asked()
        return energon.translate(document, file or f"{base}/", load_document, split=wanted, mode=mode, asked=own)
    from feedmill.formats.yamls import Marks
    from feedmill.planning.dialects import megatron, nanotron, vla

    marks = Marks(source, where) if isinstance(source, str | bytes) else None
    data = source if marks is None else marks.data
    if dialect == dialects.MEGATRON:
        return megatron.translate(data, marks, where, mode=mode, split=split, base=base)
    if split is not None:
        raise ConfigError("this kind of recipe has no splits", file=file, kind="bad-option", fix="Omit 'split'.")
    if dialect == dialects.NANOTRON:
        return nanotron.translate(data, marks, where, mode=mode)
    return vla.translate(data, marks, where, mode=mode, base=base)


def load_document(url: str) -> Any:
    """Return a YAML file by Energon's rules."""
    from feedmill.formats.yamls import read_yaml

    folder, name = split_url(url)
    return read_yaml(open_store(folder).read_small(name), url)


def _validated(
    data: Any, base: str, file: str | None, marks: Marks | Translation | None, chain: tuple[str, ...] = ()
) -> Parsed:
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"a recipe must be a mapping of keys to values, this is {'empty' if data is None else type(data).__name__}",
            file=file,
            kind="bad-recipe",
            fix="Begin with a line such as 'source: my-data/' or 'blend:'.",
        )
    nested: dict[Place, Parsed] = {}
    recipe = Parsed(model_of(data, file, marks), base, file, marks, nested)
    inner = marks.nested if isinstance(marks, Translation) else {}
    for place, member in members(recipe.model):
        if place in inner:
            nested[place] = _validated(inner[place].data, base, file, inner[place], chain)
        elif member.recipe is not None:
            nested[place] = _nested(recipe, place, member.recipe, chain)
            dialects.check_files(_files(recipe), file)
    return recipe


def _files(recipe: Parsed) -> int:
    """Return the number of recipes, nested ones included, each counted as often as it is referred to."""
    return 1 + sum(map(_files, recipe.nested.values()))


def model_of(data: Mapping[str, Any], file: str | None, marks: Marks | Translation | None) -> RecipeModel:
    """Return a recipe as validated data. Raises `ConfigError` with the line of every problem."""
    from pydantic import ValidationError

    from feedmill.planning.recipes.schema import RecipeModel, problems

    try:
        return RecipeModel.model_validate(data)
    except ValidationError as error:
        raise _invalid(problems(error), marks, file) from None


def _nested(outer: Parsed, place: Place, path: str, chain: tuple[str, ...]) -> Parsed:
    url = join_url(outer.base, path)
    if url in chain:
        loop = " -> ".join(split_url(each)[1] for each in (*chain[chain.index(url) :], url))
        raise ConfigError(
            f"the recipes contain each other: {loop}",
            file=outer.where((*place, "recipe")),
            kind="bad-recipe",
            fix="Remove one of them from the other.",
        )
    dialects.check_chain(len(chain), outer.where((*place, "recipe")))
    return load(url, chain=chain)


_SHOWN = 20
"""Problems of a recipe that its error names; the others are counted."""


def _invalid(found: list[tuple[Place, str]], marks: Marks | Translation | None, file: str | None) -> ConfigError:
    """Return one error for all problems of a recipe, sorted by line."""
    if marks is not None:
        found = sorted(found, key=lambda problem: marks.line(problem[0]))
    if len(found) == 1:
        place, what = found[0]
        return ConfigError(what, file=place_of(marks, place), kind="bad-recipe")
    lines = "".join(f"\n  {place_of(marks, place)}: {what}" for place, what in found[:_SHOWN])
    lines += f"\n  and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return ConfigError(f"this recipe has {len(found):,} problems:{lines}", file=file, kind="bad-recipe")


Open = Callable[..., "Dataset"]
"""``open(path, split=..., dataset_config=..., split_config=..., decode=...)``; called with set options only."""

KINDS = ("blend", "blend_epochized", "concat", "zip")
"""Keys of lists of sources; only a source has the last."""


def kind_of(mix: Member | RecipeModel) -> str:
    """Return the key of its list of sources; 'concat' if it has none."""
    return next((kind for kind in KINDS if getattr(mix, kind, None) is not None), "concat")


def members(model: RecipeModel) -> list[tuple[tuple[int | str, ...], Member]]:
    """Return every source of a recipe with its place, including sources of inline blends and concatenations."""
    found: list[tuple[tuple[int | str, ...], Member]] = []

    def walk(place: tuple[int | str, ...], owner: Any) -> None:
        for kind in KINDS:
            for number, member in enumerate(getattr(owner, kind, None) or ()):
                found.append(((*place, kind, number), member))
                walk((*place, kind, number), member)

    if model.source is not None:
        found.append((("source",), model.source))
        walk(("source",), model.source)
    walk((), model)
    return found


def place_of(marks: Marks | Translation | None, place: Sequence[int | str]) -> str:
    """Return ``file:line`` of a value, or its path in plain data."""
    if marks is not None:
        return marks.where(place)
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    return f"recipe {dotted}".rstrip()
