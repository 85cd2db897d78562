"""View 3: the mixture. The recipe's tree with its weights, asked and realized shares over the run, repeats, and what
other weights would give. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import yaml

from feedmill.errors import ConfigError, FeedmillError
from feedmill.planning.forecast import mixture as forecast
from feedmill.planning.overview import plan as overview
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.web.charts import path, ticks
from feedmill.web.compared import plans_differ_at
from feedmill.web.library import Thing
from feedmill.web.state import State
from feedmill.web.step import BATCH, slots

WEIGHT = "w."
"""Beginning of the parameters that change a weight: ``w.0.2=0.3`` is the third source of the first one's blend."""
_WINDOWS, _ENDLESS, _KEPT = 60, 1000, 32
_WIDTH, _HEIGHT, _TOP, _LINE = 1000.0, 300.0, 8.0, 15.0
_SHOWN = 10


def mixture(thing: Thing, state: State) -> dict[str, Any]:
    """Return the mixture of a recipe as plain data, with the weights of the address if it has some.

    Raises:
        ConfigError: a weight is invalid, or no source has the number of the address.
    """
    known: dict[str, dict[str, Any]] = thing.__dict__.setdefault("_mixtures", {})
    wanted = {
        name: value for name, value in sorted(state.items()) if name in ("batch", "steps") or name.startswith(WEIGHT)
    }
    key = repr((wanted, thing.plan.fingerprint))
    if key not in known:
        if len(known) >= _KEPT:
            known.clear()
        known[key] = _mixture(thing, state)
    return known[key]


def _mixture(thing: Thing, state: State) -> dict[str, Any]:
    recipe = Recipe.load(thing.path)
    asked = {name.removeprefix(WEIGHT): value for name, value in state.items() if name.startswith(WEIGHT)}
    changed = _changed(recipe, asked)
    plan = thing.plan if changed is None else changed.plan(_reuse(thing), trust=thing.trust)
    batch = state.number("batch", BATCH, least=1) or BATCH
    steps = state.number("steps", None, least=1)
    budget = plan.length if steps is None else steps * batch
    if budget is None:
        budget = _ENDLESS * batch
    budget = budget if plan.length is None else min(budget, plan.length)
    facts = overview(plan, samples=budget).facts
    colors = slots(plan.names)
    return {
        "name": thing.name,
        "path": thing.path,
        "fingerprint": plan.fingerprint,
        "fingerprint_before": thing.plan.fingerprint,
        "changed": sorted(asked),
        "differs_at": None if changed is None else plans_differ_at(thing.plan, plan, budget),
        "budget": budget,
        "batch": batch,
        "steps": -(-budget // batch),
        "endless": plan.length is None,
        "length": plan.length,
        "tokens": facts["tokens"],
        "packing": facts["packing"],
        "tree": _tree(recipe if changed is None else changed, recipe),
        "staged": any(True for _ in plan.report(0).stages),
        "stages": [stage.as_dict() for stage in plan.report(0).stages],
        "sources": [{**row, "slot": colors[row["name"]]} for row in facts["sources"]],
        "max_repeats": facts["max_repeats"],
        "chart": _chart(plan, budget),
        "yaml": None if changed is None else as_yaml(changed),
    }


def _tree(recipe: Recipe, original: Recipe) -> list[dict[str, Any]]:
    """Return the sources of the recipe's blends in order: depth, label, weight, and the parameter that changes it."""
    rows: list[dict[str, Any]] = []

    def walk(members: Sequence[Any], before: Sequence[Any], place: str, depth: int) -> None:
        for number, (member, old) in enumerate(zip(members, before, strict=True)):
            here = f"{place}{number}"
            label = member.name or member.path or member.recipe or "blend"
            inner = member.blend or member.blend_epochized or member.concat
            rows.append(
                {
                    "depth": depth,
                    "label": label,
                    "of": None if inner is None else len(inner),
                    "weight": None if member.weight is None else str(member.weight),
                    "share": None if member.weight is None else _number(member.weight),
                    "before": None if old.weight is None else str(old.weight),
                    "param": None if member.weight is None else WEIGHT + here,
                }
            )
            if inner is not None:
                walk(inner, old.blend or old.blend_epochized or old.concat, f"{here}.", depth + 1)

    model, first = recipe.model, original.model
    members = model.blend or model.blend_epochized or model.concat or ([model.source] if model.source else [])
    before = first.blend or first.blend_epochized or first.concat or ([first.source] if first.source else [])
    walk(members, before, "", 0)
    return rows


def _number(weight: Any) -> float:
    text = str(weight)
    return float(Fraction(text[:-1]) / 100) if text.endswith("%") else float(Fraction(text))


def _changed(recipe: Recipe, weights: Mapping[str, str]) -> Recipe | None:
    """Return the recipe with other weights, by place: numbers joined by dots."""
    if not weights:
        return None
    members = recipe.model.model_dump(exclude_unset=True).get("blend")
    if members is None:
        raise ConfigError("the recipe has no blend whose weights could be changed", kind="bad-address")
    for place, text in weights.items():
        inner, numbers = members, place.split(".")
        for depth, number in enumerate(numbers):
            known = number.isdigit() and len(number) < 6 and isinstance(inner, list) and int(number) < len(inner)
            if not known:
                raise ConfigError(f"the recipe has no source {place[:40]!r}", kind="bad-address")
            member = inner[int(number)]
            if depth + 1 < len(numbers):
                inner = member.get("blend")
        try:
            Fraction(text.rstrip("%"))
        except (ValueError, ZeroDivisionError):
            raise ConfigError(
                f"{text[:40]!r} is not a weight", kind="bad-address", fix="Use 0.3, 30% or 1/3."
            ) from None
        member["weight"] = text
    return recipe.restated({"blend": members})


def _reuse(thing: Thing) -> Any:
    """Return a function that opens datasets as the plan of the recipe did, each once while the server runs."""
    opened: dict[str, Any] = thing.__dict__.setdefault("_opened_for_changes", {})

    def open(url: Any, **options: Any) -> Any:
        from feedmill.samples.open import open as open_dataset

        key = repr((url, sorted(options.items(), key=str)))
        if key not in opened:
            opened[key] = open_dataset(url, **options)
        return opened[key]

    return open


def as_yaml(recipe: Recipe) -> str:
    """Return a recipe as YAML, without what it does not set."""

    data = recipe.model.model_dump(exclude_unset=True, mode="json")
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _chart(plan: Plan, budget: int) -> dict[str, Any]:
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
    return {"lines": lines, "asked": _asked(plan, budget, top), "marks": marks, "width": _WIDTH, "height": _HEIGHT}


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


def _asked(plan: Plan, budget: int, top: float) -> list[dict[str, Any]]:
    """Return the asked share of each source as horizontal lines; of plans without stages in samples only."""
    try:
        report = plan.report(budget)
    except FeedmillError:
        return []
    if any(True for _ in report.stages) or any(source.tokens is not None for source in report.sources):
        return []
    return [
        {"slot": slot, "y": _TOP + (1 - float(source.asked) / top) * (_HEIGHT - _TOP)}
        for slot, source in enumerate(report.sources[:_SHOWN], 1)
        if source.asked is not None and float(source.asked) <= top
    ]
