"""View 3: the mixture. The recipe's tree with its weights, asked and realized shares over the run, repeats, and what
other weights would give. Nothing is written.

The experiment behind a mixture: the swarm that a recipe belongs to, the fit that proposed it, and their drawings.

``best.json`` beside ``best.yaml`` is the report of `feedmill mixture fit`; ``swarm.json`` beside a recipe says that it
is a run of a swarm. Both are data: what is not as expected is a note on the page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.mixture.swarm import Swarm, is_swarm, read_swarm
from feedmill.mixture.verbs.fit import KIND
from feedmill.planning.forecast import mixture as forecast
from feedmill.planning.overview import plan as overview
from feedmill.planning.plan import Plan
from feedmill.storage import join_url, open_store, split_url
from feedmill.web.charts import path, ticks
from feedmill.web.compare import diff_lines, plans_differ_at
from feedmill.web.library import OpenItem
from feedmill.web.parts import next_step
from feedmill.web.state import State
from feedmill.web.step import BATCH, slots
from feedmill.web.weights import WEIGHT, changed_recipe, proposed_name, recipe_tree, whole_text

_WINDOWS, _ENDLESS, _KEPT = 60, 1000, 32
_WIDTH, _HEIGHT, _TOP, _LINE = 1000.0, 300.0, 8.0, 15.0
_SHOWN, _OFTEN = 10, 4


def mixture(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return the mixture of a recipe as plain data, with the weights of the address if it has some.

    Raises:
        ConfigError: a weight is invalid, or no source has the number of the address.
    """
    known: dict[str, dict[str, Any]] = thing.__dict__.setdefault("_mixtures", {})
    wanted = {
        name: value
        for name, value in sorted(state.items())
        if name in ("batch", "steps", "stage", "world") or name.startswith(WEIGHT)
    }
    key = repr((wanted, thing.plan.fingerprint))
    if key not in known:
        if len(known) >= _KEPT:
            known.clear()
        known[key] = _mixture(thing, state)
    edit = thing.edit and "://" not in thing.path
    return {
        **known[key],
        "edit": edit,
        "copy_name": proposed_name(thing.path) if edit else None,
        "saved": _saved(thing, state),
        "experiment": experiment(thing.path, slots(thing.plan.names)),
    }


def _text(thing: OpenItem) -> str:
    """Return the recipe as YAML, to compare others with."""
    if "_text" not in thing.__dict__:
        thing.__dict__["_text"] = whole_text(thing.recipe)
    return str(thing.__dict__["_text"])


def _saved(thing: OpenItem, state: State) -> str | None:
    """Return the path of the copy that the address says was saved, if it is there."""
    name = os.path.basename(state.get("saved", ""))
    path = os.path.join(os.path.dirname(thing.path), name)
    return path if name and "://" not in path and os.path.isfile(path) else None


def _mixture(thing: OpenItem, state: State) -> dict[str, Any]:
    recipe = thing.recipe
    changed = changed_recipe(recipe, state)
    plan = thing.plan if changed is None else changed.plan(_reuse(thing), trust=thing.trust)
    batch = state.number("batch", BATCH, least=1) or BATCH
    world = state.number("world", 1, least=1) or 1
    budget = _budget(plan, state.number("steps", None, least=1), batch)
    stage = state.number("stage", 1, least=1) or 1
    own = 0 if recipe.model.stages is None else len(recipe.model.stages)
    text = None if changed is None else whole_text(changed)
    found = of_plan(plan, budget, stages=own, world=world, batch=_per_rank(batch, world))
    return {
        "name": thing.name,
        "path": thing.path,
        **found,
        "fingerprint_before": thing.plan.fingerprint,
        "changed": sorted(name.removeprefix(WEIGHT) for name in state if name.startswith(WEIGHT)),
        "differs_at": None if changed is None else plans_differ_at(thing.plan, plan, budget),
        "batch": batch,
        "world": world,
        "steps": -(-budget // batch),
        "tree": recipe_tree(recipe if changed is None else changed, recipe, stage),
        "stage": min(stage, len(found["stages"])) if found["stages"] else None,
        "diff": [] if text is None else diff_lines(_text(thing), text, "before", "after")["lines"],
        "yaml": text,
        "next": _next(thing, found, changed is not None),
    }


def _next(thing: OpenItem, found: dict[str, Any], changed: bool) -> dict[str, Any]:
    if changed:
        return next_step("The changed recipe is below, to copy.", href="#changed", label="See the changed recipe")
    often = max(found["sources"], key=lambda row: row["repeats"] or 0)
    if not found["endless"] and len(found["sources"]) > 1 and (often["repeats"] or 0) > _OFTEN:
        text = f"{often['name']} is seen {often['repeats']:.1f} times. Bound it in the recipe:"
        return next_step(text, code=f"max_repeats: {_OFTEN}")
    return next_step("See which samples a step gets from this.", href=f"/{thing.name}/step", label="Look at step 0")


def of_plan(
    plan: Plan, budget: int | None = None, *, stages: int = 0, world: int = 1, batch: int = BATCH
) -> dict[str, Any]:
    """Return the facts about a plan without its recipe as plain data: sources, stages, budget, the chart.

    Args:
        plan: the plan.
        budget: positions that are shown; by default all, of an endless plan the first 16,000.
        stages: number of stages of the plan's outermost blend, whose borders the chart has.
        world, batch: ranks over which the spread of the sources is computed, and samples for each and step.
    """
    budget = _budget(plan, None, BATCH) if budget is None else budget
    spread = world > 1
    facts = overview(plan, samples=budget, world=world if spread else None, batch_size=batch if spread else None).facts
    known = [stage.as_dict() for stage in plan.report(0).stages]
    return {
        "fingerprint": plan.fingerprint,
        "budget": budget,
        "unit": facts["unit"],
        "endless": plan.length is None,
        "length": plan.length,
        "tokens": facts["tokens"],
        "bytes": facts["bytes"],
        "packing": facts["packing"],
        "staged": bool(known),
        "stages": known,
        "sources": _sources(plan, facts),
        "spread_steps": None if facts["ranks"] is None else facts["ranks"]["steps"],
        "max_repeats": facts["max_repeats"],
        "proxy": None if facts["proxy"] is None else str(plan.report(budget).proxy),
        "chart": _chart(plan, budget, _borders(known[:stages], facts, budget)),
    }


def _budget(plan: Plan, steps: int | None, batch: int) -> int:
    """Return the positions that are shown: of the plan, of some steps, or of the first steps of an endless plan."""
    wanted = plan.length if steps is None else steps * batch
    if wanted is None:
        wanted = _ENDLESS * batch
    return wanted if plan.length is None else min(wanted, plan.length)


def _per_rank(batch: int, world: int) -> int:
    if batch % world:
        what = f"{world:,} ranks cannot share {batch:,} samples evenly"
        raise ConfigError(what, kind="bad-address", fix="Use a multiple.")
    return batch // world


def _sources(plan: Plan, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table: as `plan` reports them, with the color, and the spread over ranks."""
    shares = () if facts["ranks"] is None else facts["ranks"]["shares"]
    spread = {share["source"]: share for share in shares}
    colors = slots(plan.names)
    rows: list[dict[str, Any]] = []
    groups = {group["prefix"]: group for group in facts["groups"]}
    for row in facts["sources"]:  # a group of cells: its sums, then all cells, those that repeat most first
        prefix, bracket, _ = row["name"].partition("[")
        if not bracket or prefix not in groups:
            rows.append(row)
            continue
        if (group := groups.get(prefix)) is not None and not any(each is group for each in rows):
            cells = [each for each in facts["sources"] if each["name"].startswith(f"{prefix}[")]
            rows += [group, *sorted(cells, key=lambda each: -(each["repeats"] or 0))]
    return [{**row, "slot": colors.get(row["name"], 0), "spread": spread.get(row["name"])} for row in rows]


def _reuse(thing: OpenItem) -> Any:
    """Return a function that opens datasets as the plan of the recipe did, each once while the server runs."""
    opened: dict[str, Any] = thing.__dict__.setdefault("_opened_for_changes", {})

    def open(url: Any, **options: Any) -> Any:
        from feedmill.samples.open import open as open_dataset

        key = repr((url, sorted(options.items(), key=str)))
        if key not in opened:
            opened[key] = open_dataset(url, **options)
        return opened[key]

    return open


def _chart(plan: Plan, budget: int, borders: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the realized share of each source over the run as lines in a box of 1000 x 300, and the asked ones.

    Sources from the 11th on are one line.
    """
    found = forecast(plan, max(1, budget), _WINDOWS)
    names, shares = list(plan.names), found.shares.T
    if len(names) > _SHOWN:
        names = [*names[:_SHOWN], "all others"]
        shares = np.vstack([shares[:_SHOWN], shares[_SHOWN:].sum(axis=0)])
    top = min(1.0, float(shares.max()) * 1.08 or 1.0)
    x = (np.arange(shares.shape[1]) + 0.5) * _WIDTH / shares.shape[1]
    lines = []
    for slot, (name, share) in enumerate(zip(names, shares, strict=True)):
        y = _TOP + (1 - share / top) * (_HEIGHT - _TOP)
        points = [(0.0, y[0]), *zip(x.tolist(), y.tolist(), strict=True), (_WIDTH, y[-1])]
        lines.append(
            {
                "name": name,
                "slot": slot + 1 if slot < _SHOWN else 0,
                "path": path(points),
                "end": float(y[-1]),
                "share": float(share[-1]),
            }
        )
    _push_apart(lines)
    marks = [{"y": _TOP + (1 - value / top) * (_HEIGHT - _TOP), "share": value} for value in ticks(0, top, 4)]
    return {
        "lines": lines,
        "asked": _asked(plan, budget, top, borders),
        "marks": marks,
        "borders": borders,
        "width": _WIDTH,
        "height": _HEIGHT,
        "plot": {
            "x": [round(value * budget / _WIDTH, 2) for value in x.tolist()],
            "name": "position",
            "unit": "%",
            "range": [0, budget],
            "heights": [0, 100 * top * _HEIGHT / (_HEIGHT - _TOP)],
            "series": [
                {"name": line["name"], "slot": line["slot"], "values": [round(100 * v, 3) for v in share.tolist()]}
                for line, share in zip(lines, shares, strict=True)
            ],
        },
    }


def _push_apart(lines: list[dict[str, Any]]) -> None:
    """Give each line's label a height of its own, near the line's end."""
    order = sorted(lines, key=lambda line: line["end"])
    at = -_LINE
    for line in order:
        at = max(line["end"], at + _LINE)
        line["label"] = at
    over = at - _HEIGHT
    for line in reversed(order):
        if over <= 0:
            break
        line["label"] = min(line["label"], _HEIGHT - (len(order) - 1 - order.index(line)) * _LINE)


def _asked(plan: Plan, budget: int, top: float, borders: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the asked share of each source as horizontal lines, of each stage if there are some."""
    try:
        report = plan.report(budget)
    except FeedmillError:
        return []
    colors = slots(plan.names)
    if report.stages:
        edges = [*(border["x"] for border in borders), _WIDTH]
        wanted = [
            (name, float(share), edges[number], edges[number + 1])
            for number, stage in enumerate(report.stages[: len(borders)])
            for name, share in zip(stage.names, stage.asked, strict=True)
        ]
    else:
        known = [source for source in report.sources if source.asked is not None]
        wanted = [(source.name, float(source.asked or 0), 0.0, _WIDTH) for source in known]
    return [
        {"slot": colors[name], "y": _TOP + (1 - share / top) * (_HEIGHT - _TOP), "x1": low, "x2": high}
        for name, share, low, high in wanted
        if colors.get(name) and share <= top and high > low
    ]


def _borders(stages: Sequence[dict[str, Any]], facts: Mapping[str, Any], budget: int) -> list[dict[str, Any]]:
    """Return where stages begin in the chart; those of rows by their documents, of each width in proportion."""
    packing = facts["packing"] or {}
    whole = {"start": 0, "rows": budget, "documents": packing.get("documents") or budget}
    found: list[dict[str, Any]] = []
    before = 0
    for part in packing.get("widths") or [whole]:
        documents = max(part["documents"], 1)
        for stage in stages[len(found) :]:
            if stage["start"] >= before + documents:
                break
            row = part["start"] + part["rows"] * max(stage["start"] - before, 0) / documents
            found.append({"stage": stage["stage"], "x": round(_WIDTH * row / max(budget, 1), 1)})
        before += documents
    return found


_SIDE, _EDGE, _ROW, _FIT_WIDTH, _NAMES = 300.0, 12.0, 26.0, 1000.0, 40
_RUNS = 1000
"""Runs that are drawn; of more, every n-th."""


def experiment(path: str, slots: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the swarm and the fit of a recipe as plain data; None if it belongs to none.

    Args:
        path: path or URL of the recipe.
        slots: color of each source.
    """
    try:
        return _experiment(path, slots)
    except FeedmillError as error:
        return {"problem": str(error), "fit": None, "swarm": None, "scatter": None, "strips": None}


def _experiment(path: str, slots: Mapping[str, int]) -> dict[str, Any] | None:
    folder, name = split_url(path)
    fit = _fit(folder, name)
    swarm: Swarm | None = None
    place = fit["swarm"] if fit is not None else folder
    if is_swarm(place):
        swarm = read_swarm(place)
    if fit is None and (swarm is None or name.rpartition(".")[0] not in swarm.runs):
        return None
    return {
        "problem": None,
        "fit": fit,
        "swarm": None if swarm is None else {"path": swarm.folder, "runs": len(swarm.runs), "names": list(swarm.names)},
        "run": None if fit is not None else name.rpartition(".")[0],
        "scatter": None if fit is None else _scatter(fit),
        "strips": _strips(fit, swarm, name.rpartition(".")[0], slots),
    }


def _fit(folder: str, name: str) -> dict[str, Any] | None:
    """Return the report beside a recipe that `mixture fit` wrote; None if there is none."""
    store, beside = open_store(folder), f"{name.rpartition('.')[0]}.json"
    if not store.exists(beside):
        return None
    try:
        report = json.loads(store.read(beside))
    except ValueError:
        return None  # of something else
    if not isinstance(report, dict) or report.get("kind") != KIND:
        return None
    try:
        number = float
        kept: dict[str, Any] = {
            "swarm": join_url(folder, str(report["swarm"])),
            "losses": str(report["losses"]),
            "metrics": {str(key): number(value) for key, value in report["metrics"].items()},
            "unit": str(report["unit"]),
            "target": None if report["target"] is None else int(report["target"]),
            "runs": int(report["runs"]),
            "chosen": str(report["chosen"]),
            "predicted": number(report["predicted"]),
            "interval": [number(value) for value in report["interval"]],
            "natural": None if report["natural"] is None else number(report["natural"]),
            "best_run": {"run": str(report["best_run"]["run"]), "loss": number(report["best_run"]["loss"])},
            "models": [
                {"name": str(key), **{word: model[word] for word in ("held_out_error", "rank_correlation")}}
                | {"interval": [number(value) for value in model["interval"]], "explained": number(model["explained"])}
                for key, model in report["models"].items()
                if "left_out" not in model
            ],
            "left_out": {str(reason): int(names["count"]) for reason, names in report["left_out"].items()},
            "sources": [
                {key: one[key] for key in ("name", "natural", "share", "lowest", "highest", "repeats", "max_repeats")}
                for one in report["sources"]
            ],
            "points": [
                {"run": str(one["run"]), "loss": number(one["loss"]), "predicted": number(one[report["chosen"]])}
                for one in report["points"]
            ],
            "notes": [str(note) for note in report["notes"]],
        }
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"the report of the fit is damaged: {error!r}",
            file=store.locate(beside),
            fix="Fit again with 'feedmill mixture fit' and --overwrite.",
        ) from None
    if not kept["points"] or len(kept["interval"]) != 2:
        raise DataError("the report of the fit is damaged: it has no runs", file=store.locate(beside))
    return kept


def _scatter(fit: Mapping[str, Any]) -> dict[str, Any]:
    """Return observed and held-out predicted losses as points in a square of 300 x 300, lower losses at the left."""
    loss = np.array([point["loss"] for point in fit["points"]])
    predicted = np.array([point["predicted"] for point in fit["points"]])
    low, high = float(min(loss.min(), predicted.min())), float(max(loss.max(), predicted.max()))
    span = (high - low) or 1.0

    def place(value: Any) -> Any:
        return _EDGE + (value - low) / span * (_SIDE - 2 * _EDGE)

    every = max(1, len(loss) // _RUNS)
    return {
        "points": [
            {
                "x": round(float(place(point["loss"])), 1),
                "y": round(float(_SIDE - place(point["predicted"])), 1),
                **point,
            }
            for point in fit["points"][::every]
        ],
        "ticks": [{"at": round(float(place(value)), 1), "value": value} for value in ticks(low, high, 4)],
        "low": _EDGE,
        "high": _SIDE - _EDGE,
    }


def _strips(
    fit: Mapping[str, Any] | None, swarm: Swarm | None, run: str, slots: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return for each source the shares of all runs, the natural one and the one of this recipe, on one axis."""
    if swarm is None:
        return None
    parts = np.array([stage["part"] for stage in swarm.facts["stages"]])
    shares = np.einsum("s,rsd->rd", parts, swarm.weights)
    if fit is None:
        at_hand = np.array([source["at_hand"] for source in swarm.facts["sources"]])
        natural = at_hand / at_hand.sum()
        own: Sequence[float] = shares[list(swarm.runs).index(run)].tolist()
    else:
        natural = np.array([source["natural"] for source in fit["sources"]], np.float64)
        own = [float(source["share"]) for source in fit["sources"]]
    if len(own) != shares.shape[1]:
        raise DataError("the report of the fit and its swarm have different sources", file=swarm.folder)
    top = max(float(shares.max()), max(own), float(natural.max())) or 1.0
    every = max(1, len(shares) // _RUNS)

    def place(value: float) -> float:
        return round(value / top * _FIT_WIDTH, 1)

    rows = [
        {
            "name": name,
            "slot": slots.get(name, 0),
            "runs": sorted({place(value) for value in shares[::every, i].tolist()}),
            "natural": place(float(natural[i])),
            "own": place(own[i]),
            "natural_share": float(natural[i]),
            "own_share": own[i],
        }
        for i, name in enumerate(swarm.names[:_NAMES])
    ]
    return {
        "rows": rows,
        "more": max(0, len(swarm.names) - _NAMES),
        "ticks": [{"at": place(value), "share": value} for value in ticks(0, top, 5)],
        "own": "proposed" if fit is not None else "this run",
    }
