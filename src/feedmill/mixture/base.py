"""The recipe whose weights vary: its sources, what is at hand of each, its stages, and the same with other weights.

Sources are the members of its outermost blend, or the cells of a blend of cells. A member that is a mixture itself
keeps its own weights, and counts as one source. Weights, sizes and the length of a run count what the
recipe's `unit` says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.member import names_of
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.writing import moved
from feedmill.planning.tokens import Tokens

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BaseRecipe:
    """A recipe with a blend.

    Attributes:
        recipe: the recipe.
        plan: its plan.
    """

    recipe: Recipe
    plan: Plan

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BaseRecipe:
        """Read a recipe and open its datasets.

        Raises:
            ConfigError: it has no blend of several sources.
            FeedmillError: as `Recipe.load` and `Recipe.plan` do.
        """
        recipe = Recipe.load(path)
        blend = recipe.model.blend or []
        if len(blend) < 2 and not any(member.cells for member in blend):
            raise ConfigError(
                "the recipe has no weights to vary: expected a 'blend' of at least 2 sources at its top",
                file=recipe.file,
                kind="bad-recipe",
                fix="List its sources under 'blend', see docs/recipes.md.",
            )
        if recipe.model.order is not None:
            raise ConfigError(
                f"the order {recipe.model.order.kind!r} of another tool has no mixtures to propose",
                file=recipe.file,
                kind="unsupported",
                fix="Remove 'order' from the recipe.",
            )
        # The weights of the file may repeat a source more often than it allows: others are proposed. And what is at
        # hand is that of the large run, of which a proxy draws from a part.
        other = dict.fromkeys(("samples", "pack", "skip", "targets", "proxy"))
        base = cls(recipe, recipe.restated(other).plan())
        if len(base.plan.names) < 2:
            raise ConfigError(
                f"all documents are in the cell {base.plan.names[0]}: there are no weights to vary",
                file=recipe.file,
                kind="bad-recipe",
                fix="Choose other columns for the cells.",
            )
        return base

    @property
    def file(self) -> str:
        """Path or URL of the recipe."""
        return self.recipe.file or "recipe"

    @property
    def unit(self) -> str:
        """What weights and sizes count."""
        return self.recipe.model.unit

    @cached_property
    def names(self) -> list[str]:
        """The sources."""
        if self.cells is None:
            return names_of(self.recipe.model.blend or [])
        return [self.plan.names[child.leaves[0]] for child in self._blend.children]

    @property
    def cells(self) -> Any:
        """The member whose cells are the sources; None for other blends."""
        blend = self.recipe.model.blend or []
        return blend[0] if len(blend) == 1 else None

    @property
    def max_repeats(self) -> list[int | None]:
        """The recipe's own limit on repeats of each source."""
        if self.cells is not None:
            return [self.cells.max_repeats] * len(self.names)
        return [member.max_repeats for member in self.recipe.model.blend or []]

    @cached_property
    def _blend(self) -> Any:
        node = self.plan.node
        while len(node.children) == 1:
            node = node.children[0]
        return node

    @cached_property
    def at_hand(self) -> Floats:
        """Units of each source, float64[sources]: those of one pass over it."""
        totals = Tokens(self.plan.sources, self.unit)
        return np.array([float(totals.at_hand(child)) for child in self._blend.children])

    @property
    def natural(self) -> Floats:
        """Share of each source in what is at hand, float64[sources]."""
        shares: Floats = self.at_hand / self.at_hand.sum()
        return shares

    @cached_property
    def weights(self) -> Floats:
        """The recipe's own weights as shares, float64[stages, sources]."""
        if self.recipe.model.stages is None:
            children = self._blend.children
            rows = [tuple(Tokens(self.plan.sources, self.unit).shares(children, self._blend.shares(1)[0]))]
        else:
            stages = self.plan.report(0).stages[: len(self.recipe.model.stages)]
            rows = [tuple(end for _, end in stage.ramp) if stage.ramp else stage.asked for stage in stages]
        return np.array([[float(share) for share in row] for row in rows])

    @property
    def ramps(self) -> list[bool]:
        """Whether each stage moves to its weights from those of the stage before."""
        stages = self.recipe.model.stages
        return [False] if stages is None else [stage.ramp is not None for stage in stages]

    def parts(self, target: int) -> Floats:
        """Return which part of a run of `target` units each stage is, float64[stages]; they add up to 1.

        Raises:
            ConfigError: the stages are longer than the run, or their lengths are not known in units.
        """
        stages = self.recipe.model.stages
        if stages is None:
            return np.ones(1)
        lengths: list[float] = []
        for number, stage in enumerate(stages):
            length: float | None
            if self.unit == "samples" and stage.tokens is None:
                length = stage.samples
                if stage.steps is not None:
                    length = stage.steps * (self.recipe.model.global_batch or 0)
            else:
                length = stage.tokens if self.unit == "tokens" else None
                if length is None and number < len(stages) - 1:
                    raise ConfigError(
                        f"stage {number + 1} has no length in {self.unit}, which the weights of the recipe count:"
                        " repeats at the target's size cannot be computed",
                        file=self.recipe.where(("stages", number)),
                        kind="bad-recipe",
                        fix=f"Give its length in {self.unit}, or another 'unit'.",
                    )
            lengths.append(target - sum(lengths) if length is None else float(length))
        reach = np.cumsum(lengths)
        if lengths[-1] <= 0 or (len(reach) > 1 and reach[-2] >= target):
            raise ConfigError(
                f"the run ends in its first stages: they have {sum(lengths[:-1]):,.0f} {self.unit}, the target"
                f" {target:,}",
                file=self.recipe.where(("stages",)),
                kind="bad-option",
                fix="Pass the size of the whole target run as --target, or shorten the stages.",
            )
        lengths[-1] = target - sum(lengths[:-1])
        return np.array(lengths) / target

    def reweighted(self, weights: Sequence[Sequence[Any]], folder: str) -> dict[str, Any]:
        """Return the recipe with other weights, as the plain data of a file in a folder.

        Args:
            weights: of each stage, by source; as they are written.
            folder: folder or URL of the file.
        """
        data = moved(self.recipe, folder)
        if data.get("stages") is None and self.cells is not None:
            labels = [name[name.index("[") + 1 : -1] for name in self.names]
            data["blend"][0]["cells"]["weights"] = dict(zip(labels, weights[0], strict=True))
            return data
        if data.get("stages") is None:
            for member, weight in zip(data["blend"], weights[0], strict=True):
                member["weight"] = weight
            return data
        for stage, row in zip(data["stages"], weights, strict=True):
            stage["weights"] = dict(zip(self.names, row, strict=True))
        return data
