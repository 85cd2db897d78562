"""Fit the losses of a swarm's runs, and write the mixture with the lowest predicted loss as a recipe."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.options import verb
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.mixture.base import BaseRecipe, Floats
from feedmill.mixture.limits import Limits
from feedmill.mixture.losses import Losses, doubts, read_losses
from feedmill.mixture.options import Fit
from feedmill.mixture.swarm import Swarm, read_swarm
from feedmill.planning.recipes.writing import text_of
from feedmill.storage import open_store, split_url

KIND, VERSION = "feedmill fit", 1
_FEWEST = 8
_POOL, _REDRAWN = 20_000, 2_000
_RARE, _RARELY = 1e-3, 0.1
"""A source whose share no run had above the first, or above the second part of equal shares, was not tried."""


@dataclass
class FitReport(JobReport):
    """Report of `fit`, which is also the file beside the recipe.

    Attributes:
        path, report: the recipe, and the file with this report.
        swarm, losses: the folder of the swarm, and the table of losses.
        metrics: weight of each column of losses; they add up to 1.
        unit, target: what weights count, and the size of the target run; None if unknown.
        runs: number of runs that were fitted.
        within: runs that were matched by a part of their names.
        left_out: runs that were not used, by reason.
        models: ``law`` and ``trees``: error of held-out runs (root mean square) with its 95 % interval, rank
            correlation (Spearman), part of the variance explained; ``left_out``: why a model was not fitted.
        chosen: the model that proposes.
        predicted, interval: loss of the proposed mixture, and the interval in which that of a run with it lies in 95 of
            100 cases; of the law, if its form is right.
        natural: predicted loss of the shares of what is at hand, if they keep the limits.
        best_run: name and loss of the best run.
        proposal: weights by stage and source.
        sources: of each its name, ``at_hand``, ``share`` in the whole run, ``natural`` share, ``lowest`` and
            ``highest`` share in the swarm, ``repeats`` in the target run and at most, ``max_repeats``.
        law: coefficients of the law by column: ``c``, and ``t`` by stage and source.
        points: of each run its name, loss, and what the models predict for it without it.
        notes: what the user should know about the proposal.
    """

    path: str
    report: str
    swarm: str
    losses: str
    metrics: dict[str, float]
    unit: str
    target: int | None
    runs: int
    within: int
    left_out: dict[str, Any]
    models: dict[str, dict[str, Any]]
    chosen: str
    predicted: float
    interval: list[float]
    natural: float | None
    best_run: dict[str, Any]
    proposal: list[dict[str, float]]
    sources: list[dict[str, Any]]
    law: dict[str, Any]
    points: list[dict[str, Any]]
    notes: list[str]


@verb(Fit)
def fit(options: Fit) -> FitReport:
    """Nothing is taken from the datasets but their sizes. The same options give the same files.

    Raises:
        ConfigError: there are too few runs, all losses are equal, the limits cannot be kept, or the output exists.
        DataError: a run cannot be used, or the swarm is damaged; see `feedmill.mixture.losses`.
        MissingExtra: scikit-learn or SciPy is not installed.
    """
    skip = skips(on_error_policy(options.on_error))
    swarm = read_swarm(options.swarm)
    path = os.fspath(options.output)
    if not path.endswith((".yaml", ".yml")):
        raise ConfigError(
            "the output is a recipe, whose name ends in .yaml", file=path, kind="bad-option", fix="Pass -o best.yaml."
        )
    path = _absolute(path)
    folder, name = split_url(path)
    beside = f"{name.rpartition('.')[0]}.json"
    store = open_store(folder)
    for each in (name, beside):
        if store.exists(each) and not options.overwrite:
            raise ConfigError(
                "the file exists", file=store.locate(each), kind="exists", fix="Pass another --output, or --overwrite."
            )
    losses = read_losses(options.losses, swarm.runs, options.metric, exclude=options.exclude, skip=skip)
    _check(losses, swarm, options)
    base = BaseRecipe.load(swarm.path(swarm.runs[0]))
    if base.names != list(swarm.names):
        raise DataError(
            "the recipes of the swarm have other sources than its table",
            file=swarm.path(swarm.runs[0]),
            kind="bad-data",
        )
    limits = Limits.of(base, _of_swarm(options, swarm))
    report, weights = _fitted(swarm, losses, base, limits, options, path, store.locate(beside))
    text = f"# The best mixture for the losses in {os.path.basename(report.losses)}.\n"
    data = base.reweighted(weights, folder)
    if data.pop("proxy", None) is not None:
        report.notes.append("the recipe is that of the large run: the key 'proxy' of the swarm's runs is not in it")
    recipe = (text + text_of(data)).encode()

    def plan(dry: DryRun) -> FitReport:
        dry.writes(store, name, len(recipe))
        dry.writes(store, beside)
        return report

    def execute() -> FitReport:
        facts = {"kind": KIND, "version": VERSION, **report.as_dict()}
        del facts["dry_run"]
        facts |= {key: _from(folder, facts[key]) for key in ("swarm", "losses", "path", "report")}
        store.write_bytes(beside, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
        store.write_bytes(name, recipe)
        return report

    return perform(plan, execute)


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _from(folder: str, path: str) -> str:
    """Return a path as a file in the folder names it, so that both can be moved together."""
    return path if "://" in path or "://" in folder else os.path.relpath(path, folder)


def _check(losses: Losses, swarm: Swarm, options: Fit) -> None:
    """Raise `ConfigError` if nothing can be learned from these losses."""
    where = os.fspath(options.losses)
    if len(losses.runs) < _FEWEST:
        raise ConfigError(
            f"{len(losses.runs)} of {len(swarm.runs)} runs have losses: at least {_FEWEST} are needed",
            file=where,
            kind="bad-option",
            fix="Train more runs of the swarm, or make a larger one with 'feedmill mixture propose'.",
        )
    mean = losses.mean
    if np.ptp(mean) <= 1e-9 * max(abs(float(mean.mean())), 1e-300):
        raise ConfigError(
            f"all {len(mean)} losses are {mean[0]:g}: they do not depend on the mixture",
            file=where,
            kind="bad-option",
            fix="Check the column (--metric), and that each run was trained on its own recipe.",
        )


def _of_swarm(options: Fit, swarm: Swarm) -> Fit:
    """Return the options with the limits of the swarm where no others are given."""
    facts = swarm.facts
    given: dict[str, Any] = {}
    if options.target is None:
        given["target"] = facts["target"]
    if not options.min_share:
        given["min_share"] = [f"{one['name']}={one['low']}" for one in facts["sources"]]
    if not options.max_share:
        given["max_share"] = [f"{one['name']}={one['high']}" for one in facts["sources"]]
    caps = {one["max_repeats"] for one in facts["sources"]}
    if options.max_repeats is None and len(caps) == 1 and caps != {None}:
        (given["max_repeats"],) = caps
    return replace(options, **given)


def _fitted(
    swarm: Swarm, losses: Losses, base: BaseRecipe, limits: Limits, options: Fit, path: str, beside: str
) -> tuple[FitReport, list[list[float]]]:
    """Return the report, and the proposed weights by stage as they are written."""
    from feedmill.mixture.models import fitted, interval_of_best, law_parameters, predict
    from feedmill.mixture.optimum import best, candidates, features

    rows = [swarm.runs.index(run) for run in losses.runs]
    mixtures = swarm.weights[rows]
    asked = limits
    limits, untried = _without_untried(asked, mixtures)
    if not options.beyond_tried:
        limits = _within_tried(limits, mixtures, path)
    x, y = features(limits, mixtures), losses.values
    seed, weights, mean = options.seed, losses.weights, losses.mean
    needed = law_parameters(*mixtures.shape[1:]) + 2
    models: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name in ("law", "trees"):
        if name == "law" and len(x) < needed:
            skipped[name] = f"it needs {needed} runs"
            continue
        models[name] = fitted(name, x, y, weights, seed)
    if options.model in skipped:
        raise ConfigError(
            f"the {options.model} cannot be fitted to {len(x)} runs: {skipped[options.model]}",
            kind="bad-option",
            fix="Train more runs, or pass --model trees.",
        )
    chosen = options.model if options.model != "best" else min(models, key=lambda each: models[each].error)
    found = models[chosen]
    low = np.argsort(mean, kind="stable")[: max(3, len(mean) // 10)]
    center = limits.clipped(np.array([source["center"] for source in swarm.facts["sources"]]).T)
    centers = np.concatenate([center[None], mixtures[low]])
    own = mixtures[limits.keep(mixtures)]
    pool = np.concatenate([center[None], own, candidates(limits, centers, _POOL, seed)])
    grid = limits.grid(center)
    optimum = best(found, limits, pool)
    steps = np.array([limits.in_steps(row, grid) for row in optimum])
    if not limits.keep(steps / grid):  # by a step of rounding
        steps = np.array([limits.in_steps(row, grid) for row in 0.999 * optimum + 0.001 * center])
    if not limits.keep(steps / grid):
        steps = np.array([limits.in_steps(row, grid, clipped=True) for row in limits.clipped(optimum)])
    proposal = steps / grid
    again = np.concatenate([own, candidates(limits, centers, _REDRAWN, seed + 1)])
    predicted, lower, upper = interval_of_best(
        found, x, features(limits, again), features(limits, proposal[None])[0], seed
    )
    natural = np.tile(base.natural, (len(proposal), 1))
    first = int(np.argmin(mean))
    report = FitReport(
        path=path,
        report=beside,
        swarm=_absolute(swarm.folder),
        losses=_absolute(os.fspath(options.losses)),
        metrics=dict(zip(losses.metrics, weights.tolist(), strict=True)),
        unit=base.unit,
        target=limits.target,
        runs=len(x),
        within=losses.within,
        left_out=losses.left_out.as_dict(),
        models={
            **{name: model.as_dict() for name, model in models.items()},
            **{name: {"left_out": reason} for name, reason in skipped.items()},
        },
        chosen=chosen,
        predicted=predicted,
        interval=[lower, upper],
        natural=float(predict(found, features(limits, natural[None]))[0]) if asked.keep(natural) else None,
        best_run={"run": losses.runs[first], "loss": float(mean[first])},
        proposal=[dict(zip(base.names, row, strict=True)) for row in proposal.tolist()],
        sources=_sources(base, limits, proposal, mixtures),
        law=_coefficients(models.get("law"), losses, mixtures.shape[1:], base.names),
        points=[
            {
                "run": run,
                "loss": float(mean[number]),
                **{name: float(model.held_out[number]) for name, model in models.items()},
            }
            for number, run in enumerate(losses.runs)
        ],
        notes=[],
    )
    if untried:
        listed = f"{', '.join(untried[:5])}{', ...' if len(untried) > 5 else ''}"
        report.notes.append(f"no run had a share of these that says anything, so no larger one is proposed: {listed}")
    report.notes += doubts(losses) + _changed(base, swarm) + _notes(report, found.explained, skipped)
    report.notes += [] if options.beyond_tried else _at_an_end(report, asked)
    return report, proposal.tolist()


def _within_tried(limits: Limits, mixtures: Floats, path: str) -> Limits:
    """Return limits that keep each source between the lowest and the highest share that runs had in a stage.

    Where an asked limit lies outside of these, it holds alone. Raises `ConfigError` if no weights are left.
    """
    lowest, highest = mixtures.min(axis=(0, 1)), mixtures.max(axis=(0, 1))
    low = np.where(lowest <= limits.bound, np.maximum(limits.low, lowest), limits.low)
    high = np.where(highest >= limits.low, np.minimum(limits.high, highest), limits.high)
    within = replace(limits, low=low, high=high)
    if low.sum() > 1 + 1e-9 or np.minimum(within.bound, 1).sum() < 1 - 1e-9:
        raise ConfigError(
            "no shares keep the limits and lie within those that the runs had",
            file=path,
            kind="bad-option",
            fix="Pass --beyond-tried, or limits as those of the swarm.",
        )
    return within


def _at_an_end(report: FitReport, asked: Limits) -> list[str]:
    """Return a note on sources that are at an end of the shares tried, and may have a better one beyond it."""
    ends = [
        f"{one['name']} ({one['share']:.2%})"
        for one, low, bound in zip(report.sources, asked.low.tolist(), asked.bound.tolist(), strict=True)
        if (one["share"] >= one["highest"] - 1e-4 and one["highest"] < bound - 1e-4)
        or (one["share"] <= one["lowest"] + 1e-4 and one["lowest"] > low + 1e-3)
    ]
    if not ends:
        return []
    listed = f"{', '.join(ends[:5])}{', ...' if len(ends) > 5 else ''}"
    return [f"at the end of the shares that were tried: {listed}; --beyond-tried allows others, which are a guess"]


def _without_untried(limits: Limits, mixtures: Floats) -> tuple[Limits, list[str]]:
    """Return limits that keep sources which no run tried at the shares that they had, and their names.

    The effect of such a source is that of the noise, over shares of nearly 0: its slope is any number, and the proposal
    would have as much of it as is allowed.
    """
    highest = mixtures.max(axis=(0, 1))
    rare = (highest < min(_RARE, _RARELY / len(highest))) & (limits.high > highest) & (limits.low <= highest)
    high = np.where(rare, highest, limits.high)
    if not rare.any() or np.minimum(np.minimum(high, limits.caps), 1).sum() < 1:
        return limits, []
    return replace(limits, high=high), [limits.names[number] for number in np.flatnonzero(rare).tolist()]


def _sources(base: BaseRecipe, limits: Limits, proposal: Floats, mixtures: Floats) -> list[dict[str, Any]]:
    share = limits.drawn(proposal)
    tried = limits.drawn(mixtures)
    return [
        {
            "name": name,
            "at_hand": float(base.at_hand[i]),
            "natural": float(base.natural[i]),
            "share": float(share[i]),
            "lowest": float(tried[:, i].min()),
            "highest": float(tried[:, i].max()),
            "repeats": None if limits.target is None else float(share[i] * limits.target / base.at_hand[i]),
            "max_repeats": None if np.isinf(limits.repeats[i]) else float(limits.repeats[i]),
        }
        for i, name in enumerate(base.names)
    ]


def _changed(base: BaseRecipe, swarm: Swarm) -> list[str]:
    """Return a note on sources that have other documents than when the swarm was proposed: its runs saw those."""
    moved = [
        f"{name} ({one['at_hand']:,.0f} to {now:,.0f} {base.unit})"
        for name, one, now in zip(base.names, swarm.facts["sources"], base.at_hand.tolist(), strict=True)
        if abs(one["at_hand"] - now) > 1e-9 * now
    ]
    listed = f"{', '.join(moved[:5])}{', ...' if len(moved) > 5 else ''}"
    return [f"what is at hand has changed since the swarm was proposed: {listed}"] if moved else []


def _coefficients(law: Any, losses: Losses, shape: tuple[int, ...], names: list[str]) -> dict[str, Any]:
    if law is None:
        return {}
    slopes = law.model.coef_.reshape(-1, *shape)
    return {
        metric: {
            "c": float(law.model.floor_[k]),
            "t": [dict(zip(names, row, strict=True)) for row in slopes[k].tolist()],
        }
        for k, metric in enumerate(losses.metrics)
    }


def _notes(report: FitReport, explained: float, skipped: dict[str, str]) -> list[str]:
    notes = [f"the {name} was not fitted to {report.runs} runs: {reason}" for name, reason in skipped.items()]
    if explained <= 0:
        notes.append(
            "held-out losses are predicted no better than by their mean: the proposal is a guess; train more runs"
        )
    outside = [
        f"{one['name']} ({one['share']:.2%}, tried {one['lowest']:.2%} to {one['highest']:.2%})"
        for one in report.sources
        if not one["lowest"] - 1e-3 <= one["share"] <= one["highest"] + 1e-3
    ]
    if outside:
        notes.append(f"the proposal goes beyond what the swarm tried: {', '.join(outside[:5])}")
    if report.chosen == "trees":
        notes.append(
            "trees predict nothing better than what was tried, and their interval is as wide as errors of held-out"
            " runs: more runs make it narrower"
        )
    if report.target is None:
        first = min(report.sources, key=lambda one: one["at_hand"] / one["share"] if one["share"] else np.inf)
        notes.append(
            f"runs of up to {int(first['at_hand'] / first['share']):,} {report.unit} repeat no source; in longer ones,"
            f" {first['name']} repeats first (--target N shows how often)"
        )
    if report.within:
        notes.append(f"{report.within} runs were matched by a part of their names")
    return notes
