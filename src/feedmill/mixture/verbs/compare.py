"""Compare recipes: shares, repeats at a size, distances, and which sources exceed their limits.

Datasets that several recipes name are opened once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.mixture.options import Compare
from feedmill.mixture.swarm import is_swarm, read_swarm
from feedmill.planning.forecast import samples_for_tokens
from feedmill.planning.nodes.base import unique_names
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.storage import is_local_folder


@dataclass
class CompareReport(VerbReport):
    """Report of `compare`.

    Attributes:
        samples, tokens: the size that was asked for; both None for the recipes' own sizes.
        unit: what shares count: tokens if all sources have lengths, else samples.
        sources: names of the sources of all recipes.
        recipes: of each its name, ``path``, ``samples`` of its plan, ``shares``, ``repeats`` and ``at_most`` (limit)
            by source, None where the recipe lacks it or it is unknown; ``distance`` from the first recipe (half the sum
            of the differences of shares) and ``beyond``: sources that are repeated more often than they may be.
    """

    samples: int | None
    tokens: int | None
    unit: str
    sources: list[str]
    recipes: list[dict[str, Any]]


@verb(Compare)
def compare(options: Compare) -> CompareReport:
    """Recipes and swarms may be given; a swarm stands for the recipes of its runs.

    Raises:
        ConfigError: there is nothing to compare, or a recipe has no end and no size is given.
        FeedmillError: as `Recipe.load` and `Recipe.plan` do.
    """
    if options.samples is not None and options.tokens is not None:
        raise ConfigError("two sizes are given", kind="bad-option", fix="Pass one of --samples and --tokens.")
    paths = _paths([os.fspath(path) for path in options.recipes])
    open_once = _Opened()
    plans: list[tuple[Plan, int, list[float | None]]] = []
    for path in paths:
        recipe = Recipe.load(path)
        plan = recipe.restated({"samples": None, "epochs": recipe.model.epochs}).plan(open_once)
        plans.append((plan, _size(plan, recipe, options, path), _limits(plan, options.max_repeats)))
    reports = [plan.report(size) for plan, size, _ in plans]
    in_tokens = all(source.tokens is not None for report in reports for source in report.sources)
    names = list(dict.fromkeys(source.name for report in reports for source in report.sources))
    titles = unique_names([path.rpartition("/")[2].removesuffix(".yaml") for path in paths])
    rows: list[dict[str, Any]] = []
    first: np.ndarray[Any, Any] | None = None
    for title, path, report, (_, size, caps) in zip(titles, paths, reports, plans, strict=True):
        drawn = {one.name: (one.tokens if in_tokens else one.drawn) or 0 for one in report.sources}
        total = sum(drawn.values()) or 1
        shares = np.array([drawn.get(name, 0) / total for name in names])
        first = shares if first is None else first
        most = dict(zip((one.name for one in report.sources), caps, strict=True))
        repeats = {one.name: one.repeats for one in report.sources}
        rows.append(
            {
                "name": title,
                "path": path,
                "samples": size,
                "shares": {name: drawn[name] / total if name in drawn else None for name in names},
                "repeats": {name: repeats.get(name) for name in names},
                "at_most": {name: most.get(name) for name in names},
                "distance": float(np.abs(shares - first).sum() / 2),
                "beyond": [
                    name
                    for name, limit in most.items()
                    if limit is not None and (repeats[name] or 0) > limit + 1e-9 and (repeats[name] or 0) > 0
                ],
            }
        )
    return CompareReport(options.samples, options.tokens, "tokens" if in_tokens else "samples", names, rows)


class _Opened:
    """Opens each dataset once for all recipes."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def __call__(self, path: str, **options: Any) -> Any:
        from feedmill.samples.open import open as open_dataset

        key = repr((path, sorted(options.items(), key=str)))
        if key not in self.known:
            self.known[key] = open_dataset(path, **options)
        return self.known[key]


def _paths(given: Sequence[str]) -> list[str]:
    """Return the recipes that are named, those of swarms included."""
    paths: list[str] = []
    for path in given:
        if (is_local_folder(path) or not path.endswith((".yaml", ".yml"))) and is_swarm(path):
            swarm = read_swarm(path)
            paths += [swarm.path(run) for run in swarm.runs]
        else:
            paths.append(path)
    if len(paths) < 2:
        raise ConfigError(
            "one recipe has nothing to be compared with",
            file=paths[0] if paths else None,
            kind="bad-option",
            fix="Pass several recipes, or the folder of a swarm; 'feedmill plan' shows one.",
        )
    return paths


def _size(plan: Plan, recipe: Recipe, options: Compare, path: str) -> int:
    """Return the samples of a recipe's plan that are counted."""
    if options.tokens is not None:
        return samples_for_tokens(plan, options.tokens)
    if options.samples is not None:
        return options.samples if plan.length is None else min(options.samples, plan.length)
    size = recipe.model.samples or plan.length
    if size is None:
        raise ConfigError(
            "the recipe has no end, so its shares have no size",
            file=path,
            kind="bad-option",
            fix="Pass --tokens N or --samples N.",
        )
    return size


def _limits(plan: Plan, most: float | None) -> list[float | None]:
    """Return how often each source may be repeated: the number given, or that of the recipe."""
    if most is not None:
        return [most] * len(plan.names)
    from feedmill.planning.nodes import Repeat

    found: list[float | None] = [None] * len(plan.names)

    def walk(node: Any, limit: float | None) -> None:
        if isinstance(node, Repeat) and node.max_repeats:
            limit = node.max_repeats if limit is None else min(limit, node.max_repeats)
        if not node.children:
            found[node.number] = limit
        for child in node.children:
            walk(child, limit)

    walk(plan.node, None)
    return found
