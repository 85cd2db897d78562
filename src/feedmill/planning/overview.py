"""The plan of what a user gives (a dataset, a recipe, or a path), and its summary before a run.

Implements ``feedmill plan``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError
from feedmill.jobs.options import verb
from feedmill.notebooks import Showable
from feedmill.planning.given import bound_plan
from feedmill.planning.options import PlanOptions
from feedmill.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanReport(Showable):
    """Summary of a recipe's plan.

    Attributes:
        plan: the plan itself; not in `as_dict`.
        facts: fingerprint, length, budget, tokens, bytes; ``sources``, with samples, tokens, weights, draws, repeats
            and bytes to read of each; ``packing``, ``proxy``, ``max_repeats`` and ``ranks`` if they apply.
    """

    plan: Plan
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return dict(self.facts)


@verb(PlanOptions)
def plan(options: PlanOptions) -> PlanReport:
    """At most one budget can be given: samples, tokens or steps. By default, it is the whole of a finite plan.

    Raises:
        ConfigError: options that contradict each other, or a plot of an endless plan.
        FeedmillError: as `Recipe.load` and `Recipe.plan` do.
    """
    bound, path = bound_plan(options.recipe, proxy=options.proxy)
    budget = _budget(bound, options)
    ranks = _ranks(bound, options.world, options.batch_size, budget)
    if options.plot is not None:
        _draw(bound, budget, os.fspath(options.plot))
    drawn = None if options.plot is None else str(options.plot)
    return PlanReport(bound, {"recipe": path, **_facts(bound, budget), "ranks": ranks, "plot": drawn})


def _budget(plan: Any, options: PlanOptions) -> int | None:
    """Return the budget in samples: the one given, otherwise the plan's length, which may be None."""
    samples, tokens, steps, global_batch = options.samples, options.tokens, options.steps, options.global_batch
    if sum(value is not None for value in (samples, tokens, steps)) > 1:
        raise ConfigError("more than one budget is given", fix="Give one of --samples, --tokens and --steps.")
    if (steps is None) != (global_batch is None):
        raise ConfigError("--steps and --global-batch go together", fix="Give both, or neither.")
    if tokens is not None:
        from feedmill.planning.forecast import samples_for_tokens

        return samples_for_tokens(plan, tokens)
    if steps is not None and global_batch is not None:
        return steps * global_batch
    return samples if samples is not None else plan.length


def _ranks(plan: Any, world: int | None, batch: int | None, budget: int | None) -> dict[str, Any] | None:
    """Return how evenly the ranks are loaded, or None if `world` is not given."""
    by_budget = batch is None and plan.dealing is not None and plan.dealing.budget is not None
    if (world is None) != (batch is None) and not (by_budget and world is not None):
        raise ConfigError("--world and --batch-size go together", fix="Give both, or neither.")
    if world is None:
        return None
    from feedmill.planning.dealing.evenness import spread

    return spread(plan, world, batch, budget).as_dict()


def _facts(plan: Any, budget: int | None) -> dict[str, Any]:
    from feedmill.planning import bounds
    from feedmill.planning.forecast import documents, needs
    from feedmill.planning.remote_reads import remote_reads

    reported = plan.report(budget)
    report = reported.as_dict()
    rows = [{**source, **need.as_dict()} for source, need in zip(report["sources"], needs(plan, budget), strict=True)]
    reach = documents(reported)
    limits = [] if reach is None else bounds.limits(plan.node, reach)
    keys = ("name", "max_repeats", "samples", "drawn_at_most", "stage")
    if (packing := report.get("packing")) is not None:
        best_fit = plan.packing.method == "best_fit"
        packing["buffer"] = plan.map.largest_buffer(reported.total) if best_fit and reported.total else None
        packing["passes_apart"] = best_fit and plan.packing.buffer is None
    return {
        "fingerprint": plan.fingerprint,
        "length": plan.length,
        "budget": budget,
        "unit": report["unit"],
        "tokens": report["packing"]["tokens"] if "packing" in report else _sum(row["drawn_tokens"] for row in rows),
        "bytes": _sum(row["drawn_bytes"] for row in rows),
        "proxy": report.get("proxy"),
        "skipped": 0 if plan.skip is None else plan.skip.count,
        "sources": rows,
        "groups": [_group(group.as_dict(), rows) for group in reported.groups],
        "packing": packing,
        "remote": remote_reads(plan, budget),
        "max_repeats": [dict(zip(keys, limit[:5], strict=True)) for limit in limits],
        "notes": [
            f"{name} has no {', '.join(lacking)}: all padding; if it has them under other names, use 'rename'"
            for name, source in zip(plan.names, plan.sources, strict=True)
            if (lacking := getattr(source, "lacking", None))  # of `EpisodeSamples`
        ],
    }


def _group(group: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a group of cells with the sums of what its cells need."""
    mine = [row for row in rows if row["name"].startswith(f"{group['prefix']}[")]
    known = [row["epochs"] for row in mine if row["epochs"] is not None]
    needs = {key: _sum(row[key] for row in mine) for key in ("tokens", "drawn_tokens", "drawn_bytes")}
    return {**group, **needs, "epochs": max(known, default=None)}


def _sum(values: Any) -> int | None:
    known = list(values)
    return None if None in known else sum(known)


def _draw(plan: Any, budget: int | None, path: str) -> None:
    from feedmill.planning.forecast import mixture
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.samples.chart import draw_mixture

    if budget is None:
        raise ConfigError("an endless plan cannot be plotted", fix="Give a budget: --samples, --tokens or --steps.")
    found = mixture(plan, budget)
    packed = isinstance(plan, PackedPlan)
    unit, of = ("rows", "tokens") if packed else ("samples", "samples")
    draw_mixture(found.names, found.ends, found.shares, found.epochs, path, unit=unit, of=of)
