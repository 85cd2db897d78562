"""The key ``targets`` of recipes: how a loader makes inputs and targets of the plan's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.errors import ConfigError
from feedmill.samples.fim import FillInMiddle
from feedmill.samples.targets import LossMask, Targets

if TYPE_CHECKING:
    from feedmill.planning.recipes.fields import TargetsModel


def targets_of(model: TargetsModel, pad: int) -> tuple[FillInMiddle | None, Targets]:
    """Return the transform and the collate function of ``targets``.

    Args:
        model: the value of the key.
        pad: id that fills rows up.

    Raises:
        ConfigError: the values contradict each other.
    """
    given = model.model_dump(exclude_none=True, exclude={"mask", "fim"})
    if model.fim is not None and model.mask is not None:
        raise ConfigError(
            "'fim' and 'mask' cannot be combined: rearranged documents have no answers between markers",
            kind="bad-targets",
            fix="Store the mask beside the tokens, see docs/targets.md; masked documents are not rearranged.",
        )
    mask = None if model.mask is None else LossMask(**model.mask.model_dump())
    fim = None if model.fim is None else FillInMiddle(**model.fim.model_dump(), pad=pad)
    return fim, Targets(**given, mask=mask, pad=pad)
