"""Passes of Energon's ``shuffle_over_epochs_multiplier`` as repetitions of a recipe.

With a number *n*, one loop over a dataset is *n* passes in Energon, also where ``repetitions`` count the loops. A last
fraction of a loop is that fraction of a single pass.
"""

from __future__ import annotations

from math import floor
from typing import Any

from feedmill.errors import ConfigError
from feedmill.planning.dialects import Place, Translation


def fold_passes(result: Translation) -> None:
    """Let the recipe's repetitions count all passes of its datasets."""
    data, passes = result.data, result.passes
    only = passes.get(("source",), 1)
    if only > 1:  # an epoch of a single source has all its passes
        data["blend_epochized"] = [{**data.pop("source"), "repetitions": only}]
        of_source = [(place[1:], at) for place, at in result.origins.items() if place[:1] == ("source",)]
        result.origins |= {("blend_epochized", 0, *inner): at for inner, at in of_source}
    elif "blend_epochized" in data:
        _fold_members(result, data["blend_epochized"], ("blend_epochized",), whole=True, nested=False)


def _fold_members(result: Translation, members: list[Any], place: Place, *, whole: bool, nested: bool) -> None:
    for number, member in enumerate(members):
        here, given = (*place, number), member.get("repetitions", 1)
        if isinstance(given, bool) or not isinstance(given, int | float):
            continue  # an error of the schema
        own = whole and given == floor(given)
        if "blend_epochized" in member:
            _fold_members(result, member["blend_epochized"], (*here, "blend_epochized"), whole=own, nested=True)
        times = result.passes.get(here, 1)
        if times == 1:
            continue
        if times < 0 or (nested and not own):
            raise ConfigError(
                "draws with replacement (-1) never end, so that 'blend_epochized' has no epochs"
                if times < 0
                else "'shuffle_over_epochs_multiplier' cannot be combined with nested fractions of 'repetitions'",
                file=result.where(here),
                kind="not-supported",
                fix="Remove 'shuffle_over_epochs_multiplier'.",
            )
        member["repetitions"] = floor(given) * times + (given - floor(given))
