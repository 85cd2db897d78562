"""What is wrong with a recipe, in words: where, what was found, and what may have been meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import (
    BaseModel,
    ValidationError,
)

from feedmill.planning.recipes.fields import (
    TAGS,
    JoinPart,
    OrderModel,
    PackModel,
    ShuffleModel,
    SkipModel,
    StageModel,
    WindowsModel,
)
from feedmill.planning.recipes.schema import Member, RecipeModel


def problems(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Each problem of a recipe: the place of the value, and what is wrong with it."""
    found = []
    for item in error.errors(include_url=False):
        place = tuple(step for step in item["loc"] if step not in TAGS)
        found.append((place, _in_words(place, item["type"], item["msg"], item["input"])))
    return found


def _in_words(place: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(place[:-1])
        near = get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key {str(place[-1])!r}; {hint}"
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    text = message.removeprefix("Value error, ")
    if kind == "value_error":
        return f"{dotted}: {text}" if dotted else text
    shown = repr(value)
    return f"{dotted or 'the recipe'}: {text[:1].lower()}{text[1:]}, found {shown[:60]}"


def _keys_at(place: tuple[int | str, ...]) -> list[str]:
    """The keys that a mapping at this place may have."""
    if not place:
        return list(RecipeModel.model_fields)
    if place[-2:-1] == ("join",):
        return list(JoinPart.model_fields)
    if place[0] == "skip":
        return list(SkipModel.model_fields)
    models: dict[str, type[BaseModel]] = {
        "shuffle": ShuffleModel,
        "order": OrderModel,
        "pack": PackModel,
        "stages": StageModel,
        "windows": WindowsModel,
    }
    owner = place[-2] if isinstance(place[-1], int) and len(place) > 1 else place[-1]
    return list(models.get(str(owner), Member).model_fields)
