"""The sources of a validated recipe and their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.planning.dialects import Translation
    from feedmill.planning.recipes.marks import Marks, Place
    from feedmill.planning.recipes.schema import Member, RecipeModel

Open = Callable[..., "Dataset"]
"""``open(path, split=..., dataset_config=..., split_config=..., decode=...)``; called with set options only."""

KINDS = ("blend", "blend_epochized", "concat")
"""Keys of lists of sources."""


def kind_of(mix: Member | RecipeModel) -> str:
    """Return the key of its list of sources; 'concat' if it has none."""
    return next((kind for kind in KINDS if getattr(mix, kind) is not None), "concat")


def members(model: RecipeModel) -> list[tuple[tuple[int | str, ...], Member]]:
    """Return every source of a recipe with its place, including sources of inline blends and concatenations."""
    found: list[tuple[tuple[int | str, ...], Member]] = []

    def walk(place: tuple[int | str, ...], owner: Any) -> None:
        for kind in KINDS:
            for number, member in enumerate(getattr(owner, kind) or ()):
                found.append(((*place, kind, number), member))
                walk((*place, kind, number), member)

    if model.source is not None:
        found.append((("source",), model.source))
        walk(("source",), model.source)
    walk((), model)
    return found


def place_of(marks: Marks | Translation | None, place: Place) -> str:
    """Return ``file:line`` of a value, or its path in plain data."""
    if marks is not None:
        return marks.where(place)
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    return f"recipe {dotted}".rstrip()
