"""The weights of a recipe by their place in its tree: shown, and changed.

A place is the numbers of members from the root, joined by dots: ``0.2`` is the third member of the first one's blend.
``s1`` before the last number is a stage of that blend: ``s1.0`` is the first source in the second stage. Members of a
recipe that another one names are counted as if they were members of the source that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from feedmill.errors import ConfigError
from feedmill.planning.dialects import Place
from feedmill.planning.recipes.member import names_of
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.writing import as_yaml
from feedmill.storage.local import LocalStore
from feedmill.web.library import OpenItem
from feedmill.web.state import State

WEIGHT = "w."
"""Beginning of the parameters of an address that change a weight: ``w.0.2=0.3``."""


def recipe_tree(recipe: Recipe, original: Recipe, stage: int) -> list[dict[str, Any]]:
    """Return the sources of the recipe's blends in order: depth, label, weight, and the parameter that changes it.

    Args:
        recipe: the recipe whose weights are shown.
        original: the same without changes.
        stage: the stage whose weights are shown, from 1, for blends with stages.
    """
    rows: list[dict[str, Any]] = []

    def walk(inside: tuple[Recipe, Recipe], mix: Any, before: Any, way: Place, place: str, depth: int) -> None:
        members, old = _members(mix), _members(before)
        stages = mix.stages if mix.blend and mix.stages else None
        if stages and not all(isinstance(stage.weights, dict) for stage in (*stages, *before.stages)):
            stages = None  # they are in files
        if any(member.cells is not None for member in members):
            stages = None  # those of cells are many: the table of sources has them
        number_of = min(stage, len(stages)) - 1 if stages else 0
        names = names_of(members) if stages else []
        for number, (member, was) in enumerate(zip(members, old, strict=True)):
            here = (*way, _kind(mix), number)
            nested = [one.nested.get(here) for one in inside]
            inner = _members(member if nested[0] is None else nested[0].model)
            if stages:
                weight = stages[number_of].weights.get(names[number], 0)
                past = before.stages[number_of].weights.get(names[number], 0)
                param = f"{WEIGHT}{place}s{number_of}.{number}"
            else:
                weight, past, param = member.weight, was.weight, f"{WEIGHT}{place}{number}"
            rows.append(
                {
                    "depth": depth,
                    "label": member.name or member.path or member.recipe or "blend",
                    "of": len(inner) or None,
                    "stage": number_of + 1 if stages else None,
                    "weight": None if weight is None else str(weight),
                    "share": None if weight is None else _weight_value(weight),
                    "before": None if past is None else str(past),
                    "param": None if weight is None else param,
                }
            )
            if nested[0] is not None and nested[1] is not None:
                walk((nested[0], nested[1]), nested[0].model, nested[1].model, (), f"{place}{number}.", depth + 1)
            elif inner:
                walk(inside, member, was, here, f"{place}{number}.", depth + 1)

    walk((recipe, original), recipe.model, original.model, (), "", 0)
    return rows


def _kind(mix: Any) -> str:
    return next((name for name in ("blend", "blend_epochized", "concat") if getattr(mix, name)), "source")


def _members(mix: Any) -> Sequence[Any]:
    found = getattr(mix, _kind(mix), None)
    return found if isinstance(found, list | tuple) else () if found is None else (found,)


def members_at(recipe: Recipe, place: Place) -> Sequence[Any]:
    """Return the members of a source of a recipe, by its place; of the recipe itself for an empty one."""
    mix: Any = recipe.model
    for number in place[1::2]:
        mix = _members(mix)[int(number)]
    return _members(mix)


def _weight_value(weight: Any) -> float:
    text = str(weight)
    return float(Fraction(text[:-1]) / 100) if text.endswith("%") else float(Fraction(text))


def changed_recipe(recipe: Recipe, state: State) -> Recipe | None:
    """Return a recipe with the weights of an address; None if it has none."""
    asked = {name.removeprefix(WEIGHT): value for name, value in state.items() if name.startswith(WEIGHT)}
    return changed_weights(recipe, asked)


def changed_weights(recipe: Recipe, weights: Mapping[str, str]) -> Recipe | None:
    """Return the recipe with other weights, by place; None if there are none.

    Raises:
        ConfigError: the recipe has no such place, or a weight is invalid.
    """
    if not weights:
        return None
    data = recipe.model.model_dump(exclude_unset=True)
    inner: dict[Place, dict[str, str]] = {}
    for place, text in weights.items():
        try:
            Fraction(text.rstrip("%"))
        except (ValueError, ZeroDivisionError):
            raise ConfigError(
                f"{text[:40]!r} is not a weight", kind="bad-address", fix="Use 0.3, 30% or 1/3."
            ) from None
        found = _in_nested(recipe, place)
        if found is not None:
            inner.setdefault(found[0], {})[found[1]] = text
            continue
        if data.get("blend") is None:
            raise ConfigError("the recipe has no blend whose weights could be changed", kind="bad-address")
        _set(recipe, data, place, text)
    nested = {where: changed_weights(recipe.nested[where], asked) for where, asked in inner.items()}
    words = {name: data[name] for name in ("blend", "stages") if data.get(name) is not None}
    changed = recipe.restated(words)
    changed.nested.update({where: one for where, one in nested.items() if one is not None})
    return changed


def _in_nested(recipe: Recipe, place: str) -> tuple[Place, str] | None:
    """Return the nested recipe in which a place is, by its own place, and the rest of the place; None if in none."""
    way: Place = ()
    mix: Any = recipe.model
    numbers = place.split(".")
    for depth, number in enumerate(numbers[:-1]):
        if not number.isdigit() or int(number) >= len(_members(mix)):
            return None  # of a stage, or no place
        way = (*way, _kind(mix), int(number))
        if way in recipe.nested:
            return way, ".".join(numbers[depth + 1 :])
        mix = _members(mix)[int(number)]
    return None


def _set(recipe: Recipe, data: dict[str, Any], place: str, text: str) -> None:
    """Change one weight in the plain data of a recipe."""
    missing = ConfigError(f"the recipe has no source {place[:40]!r}", kind="bad-address")
    mix, model = data, recipe.model
    *way, last = place.split(".")
    stage = _count(way.pop()[1:], missing) if way and way[-1].startswith("s") else None
    for number in way:
        mix, model = _member(mix, number, missing), _member(model, number, missing)
    chosen = _member(mix, last, missing)
    if stage is None:
        chosen["weight"] = _as_written(text)
        return
    if not mix.get("stages") or stage >= len(mix["stages"]):
        raise ConfigError(f"the recipe has no stage {stage + 1:,} there", kind="bad-address")
    mix["stages"][stage]["weights"][names_of(model.blend or [])[int(last)]] = _as_written(text)


def _as_written(text: str) -> float | str:
    """Return a weight as a file would have it: a number where its text is the same, otherwise the text."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if repr(number) == text else text


def _member(mix: Any, number: str, missing: ConfigError) -> Any:
    members = (mix.get("blend") if isinstance(mix, dict) else mix.blend) or ()
    at = _count(number, missing)
    if at >= len(members):
        raise missing
    return members[at]


def _count(text: str, missing: ConfigError) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise missing
    return int(text)


def whole_text(recipe: Recipe) -> str:
    """Return a recipe as YAML, followed by the recipes that it names."""
    inner = [one for one in recipe.nested.values() if one.file != recipe.file]
    return as_yaml(recipe) + "".join(f"# {os.path.basename(one.file or '')}\n{whole_text(one)}" for one in inner)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.ya?ml", re.ASCII)


def proposed_name(path: str) -> str:
    """Return a name for a copy that does not exist yet: ``mix-2.yaml`` beside ``mix.yaml``."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "recipe"
    suffix = suffix if suffix in (".yaml", ".yml") else ".yaml"
    number = 2
    while os.path.lexists(os.path.join(folder, f"{stem}-{number}{suffix}")):
        number += 1
    return f"{stem}-{number}{suffix}"


def save_copy(thing: OpenItem, state: State, name: str) -> str:
    """Write the recipe with the weights of the address beside it, under a name that does not exist. Return its path.

    Args:
        thing: a recipe on this machine.
        state: the address of the page, whose weights the copy has.
        name: name of the file, without a folder.

    Raises:
        ConfigError: the server is read-only, nothing is changed, the name is invalid, or the file exists.
        StorageError: it cannot be written.
    """
    if not thing.edit:
        raise ConfigError("this server is read-only", kind="read-only", fix="Start it with --edit.")
    if thing.kind != "recipe" or "://" in thing.path:
        raise ConfigError("only copies of recipes on this machine are written", file=thing.path, kind="read-only")
    if not _NAME.fullmatch(name):
        fix = "Use letters, digits, '.', '_' and '-', and end with .yaml."
        raise ConfigError(f"{name[:40]!r} is not a name for a recipe", kind="bad-name", fix=fix)
    changed = changed_recipe(thing.recipe, state)
    if changed is None:
        raise ConfigError("no weight is changed: there is nothing to save", kind="bad-address")
    path = os.path.join(os.path.dirname(thing.path), name)
    if os.path.lexists(path):
        raise _exists(path)
    _save(changed, thing.recipe, thing.path, path)
    return path


def _save(changed: Recipe, original: Recipe, source: str, path: str) -> None:
    """Write a changed recipe as a file, after copies of the recipes that it names and that are changed, too."""
    data = changed.model.model_dump(exclude_unset=True)
    for place, inner in changed.nested.items():
        if inner.fingerprint == original.nested[place].fingerprint:
            continue
        if inner.file is None or "://" in inner.file or inner.file == changed.file:
            raise ConfigError("the changed recipe cannot be written as a file beside it", file=source, kind="read-only")
        name = proposed_name(inner.file)
        _save(inner, original.nested[place], inner.file, os.path.join(os.path.dirname(inner.file), name))
        member: Any = data
        for step in place:
            member = member[step]
        member.setdefault("name", names_of(members_at(changed, place[:-2]))[int(place[-1])])  # orders depend on it
        member["recipe"] = os.path.join(os.path.dirname(member["recipe"]), name)
    final = changed.restated(
        {key: data[key] for key in ("blend", "blend_epochized", "concat", "source") if key in data}
    )
    text = as_yaml(final)
    if Recipe.parse(text, base=os.path.dirname(path) or ".").fingerprint != final.fingerprint:
        raise ConfigError("the changed recipe cannot be written as a file beside it", file=source, kind="read-only")
    _create(path, f"# A copy of {os.path.basename(source)} with other weights.\n{text}".encode())


def _exists(path: str) -> ConfigError:
    return ConfigError("the file exists", file=path, kind="exists", fix="Give another name.")


def _create(path: str, data: bytes) -> None:
    """Write a file as a whole under a name that must not exist."""
    folder, name = os.path.split(path)
    if not LocalStore(folder).put_new(name, data):
        raise _exists(path)
