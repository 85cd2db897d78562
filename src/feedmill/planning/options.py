"""Options of the verb ``plan``, and those of plans that other verbs have."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from feedmill.jobs.options import Arg, Opt, Options, Path

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.recipe import Recipe


class Samples(Options, kw_only=True):
    """A limit of what is looked at."""

    samples: Annotated[int | None, Opt("N", "Use only the first N samples of the plan.", min=0)] = None


class GlobalBatch(Options, kw_only=True):
    """Steps of a run."""

    global_batch: Annotated[int | None, Opt("G", "Samples per step over all ranks.", min=1)] = None


class ProxySize(Options, kw_only=True):
    """A small run in place of a recipe's own."""

    proxy: Annotated[
        str | None, Opt("SIZE", "Take a proxy of the recipe, as its key 'proxy': 1B/200B for 1B of 200B tokens.")
    ] = None


class PlanOptions(Samples, GlobalBatch, ProxySize):
    """Show what a recipe yields: its tree; per source samples, tokens, weights, draws, repeats and bytes to read."""

    recipe: Annotated[Path | Recipe | Plan, Arg("RECIPE", "A recipe; a path or a URL.")]
    _: KW_ONLY
    tokens: Annotated[int | None, Opt("N", "Budget in tokens; requires datasets with known lengths.", min=1)] = None
    steps: Annotated[int | None, Opt("N", "Budget in steps of --global-batch.", min=1)] = None
    world: Annotated[int | None, Opt("N", "Show how evenly sources and cost are spread over N ranks.", min=1)] = None
    batch_size: Annotated[int | None, Opt("N", "Samples per rank and step; requires --world.", "-b", min=1)] = None
    plot: Annotated[Path | None, Opt("FILE", "Draw the mixture over the budget (.png, .jpg).", "--plot-to")] = None
