"""The recipe whose weights vary: its sources, what is at hand of each, its stages, and the same with other weights.

Sources are the members of its outermost blend. A member that is a mixture itself keeps its own weights, and counts as
one source. Weights, sizes and the length of a run count what the recipe's `unit` says.
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
from feedmill.planning.mixing.blend import normalize
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.cells import weights_of
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
        if recipe.model.blend is None or len(recipe.model.blend) < 2:
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
        # The weights of the file may repeat a source more often than it allows: others are proposed.
        return cls(recipe, recipe.restated({"samples": None, "pack": None, "skip": None, "targets": None}).plan())

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
        return names_of(self.recipe.model.blend or [])

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
        return self.at_hand / self.at_hand.sum()

    @cached_property
    def weights(self) -> Floats:
        """The recipe's own weights as shares, float64[stages, sources]."""
        model = self.recipe.model
        if model.stages is None:
            rows: list[list[Any]] = [[1 if one.weight is None else one.weight for one in model.blend or []]]
        else:
            found = [weights_of(stage.weights, self.recipe.base) for stage in model.stages]
            rows = [[weights.get(name, 0) for name in self.names] for weights in found]
        return np.array([[float(share) for share in normalize(row)] for row in rows])

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

    def mean_weights(self, weights: Floats) -> Floats:
        """Return the mean weights over each stage, float64[..., stages, sources]: of a ramp those of its middle."""
        mean = weights.copy()
        for stage, ramp in enumerate(self.ramps):
            if ramp:
                mean[..., stage, :] = (weights[..., stage - 1, :] + weights[..., stage, :]) / 2
        return mean

    def repeats(self, weights: Floats, target: int) -> Floats:
        """Return how often a run of `target` units repeats each source, float64[..., sources].

        Args:
            weights: float64[..., stages, sources], shares that add up to 1.
            target: units of the run.
        """
        drawn = np.einsum("s,...sd->...d", self.parts(target), self.mean_weights(weights))
        repeats: Floats = drawn * target / self.at_hand
        return repeats

    def reweighted(self, weights: Sequence[Sequence[Any]], folder: str) -> dict[str, Any]:
        """Return the recipe with other weights, as the plain data of a file in a folder.

        Args:
            weights: of each stage, by source; as they are written.
            folder: folder or URL of the file.
        """
        data = moved(self.recipe, folder)
        if data.get("stages") is None:
            for member, weight in zip(data["blend"], weights[0], strict=True):
                member["weight"] = weight
            return data
        for stage, row in zip(data["stages"], weights, strict=True):
            stage["weights"] = dict(zip(self.names, row, strict=True))
        return data
