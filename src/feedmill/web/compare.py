"""View 10: two datasets, recipes or runs beside each other, and where they begin to differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.errors import ConfigError, NotFound
from feedmill.pipelines.files import changed
from feedmill.pipelines.history import StepRecord
from feedmill.planning.overview import plan as overview
from feedmill.web.compared import content, diff_lines, fields, keys, order, plans_differ_at
from feedmill.web.content import facts_of
from feedmill.web.library import Thing
from feedmill.web.runs import read_run
from feedmill.web.state import State
from feedmill.web.weights import as_yaml

_ENDLESS, _SEARCHED = 16_000, 1 << 22  # positions of an endless plan, and at most, that are compared
_MOST_CHANGES, _MOST_ROWS, _KEPT = 20, 500, 8


def compare(thing: Thing, state: State) -> dict[str, Any]:
    """Return how something differs from another of its kind, which the address names as ``with``.

    Raises:
        ConfigError: the other is of another kind, or its kind cannot be compared.
        NotFound: the other is not open.
    """
    candidates = [other.name for other in thing.others.values() if other.kind == thing.kind and other is not thing]
    name = state.get("with", candidates[0] if candidates else None)
    found: dict[str, Any] = {
        "name": thing.name,
        "path": thing.path,
        "kind": thing.kind,
        "candidates": candidates,
        "with": name,
        "other": None,
    }
    if name is None:
        return found
    if name not in thing.others:
        raise NotFound(f"nothing is open as {name[:80]!r}", kind="not-open", fix=f"Open: {', '.join(thing.others)}.")
    return found | compared(thing, thing.others[name])


def compared(one: Thing, other: Thing) -> dict[str, Any]:
    """Return how two things of a kind differ. Raises `ConfigError` if their kinds cannot be compared."""
    refuse_other_kinds(one, other)
    makers = {"dataset": _datasets, "recipe": _recipes, "pipeline": _runs}
    known: dict[Any, dict[str, Any]] = one.__dict__.setdefault("_compared", {})
    key = _identity(one), _identity(other)
    if key not in known:
        if len(known) >= _KEPT:
            known.clear()
        known[key] = {"other": {"name": other.name, "path": other.path}, **makers[one.kind](one, other)}
    return known[key]


def refuse_other_kinds(one: Thing, other: Thing) -> None:
    """Raise `ConfigError` if two things cannot be compared."""
    if one.kind != other.kind or one.kind == "telemetry":
        raise ConfigError(
            f"a {one.kind} cannot be compared with a {other.kind}",
            file=other.path,
            kind="not-comparable",
            fix="Give two datasets, two recipes, or two pipelines or their manifests.",
        )


def _identity(thing: Thing) -> Any:
    """Return what decides a comparison: runs change while they are shown, datasets and plans stay open."""
    if thing.kind != "pipeline":
        return thing.path
    return thing.path, repr(read_run(thing.path).manifest)


def _fact(name: str, a: Any, b: Any, unit: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "a": a, "b": b, "same": a == b, "unit": unit}
    return found


def _datasets(one: Thing, other: Thing) -> dict[str, Any]:
    a, b = one.dataset(), other.dataset()
    about_a, about_b = facts_of(a), facts_of(b)
    facts = [_fact("fingerprint", a.fingerprint(), b.fingerprint()), _fact("samples", len(a), len(b))]
    for name in ("format", "sample_type", "shards", "tokens"):
        facts.append(_fact(name.replace("_", " "), about_a.get(name), about_b.get(name)))
    facts.append(_fact("size", about_a.get("bytes"), about_b.get("bytes"), "bytes"))
    for split in dict.fromkeys([*a.splits, *b.splits]):
        facts.append(_fact(f"split {split}", a.splits.get(split), b.splits.get(split)))
    known = keys(a, b)
    shared = known.pop("shared")
    return {
        "same": facts[0]["same"],
        "facts": [fact for fact in facts if (fact["a"], fact["b"]) != (None, None)],
        "fields": fields(a, b),
        "columns": _columns(one, other),
        "keys": known,
        "order": order(a, b),
        "content": content(a, b, shared),
    }


def _columns(one: Thing, other: Thing) -> list[dict[str, Any]]:
    """Return each column of the two indices: smallest, median and largest value of both."""
    a, b = one.columns(), other.columns()
    rows = []
    for name in dict.fromkeys([*a.names, *b.names]):
        rows.append({"name": name, "a": _spread(a[name] if name in a.names else None)})
        rows[-1]["b"] = _spread(b[name] if name in b.names else None)
    return rows


def _spread(values: Any) -> dict[str, float] | None:
    if values is None:
        return None
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, middle, high = np.quantile(known, [0, 0.5, 1])
    return {"low": float(low), "median": float(middle), "high": float(high)}


def _recipes(one: Thing, other: Thing) -> dict[str, Any]:
    a, b = one.plan, other.plan
    limits = [plan.length for plan in (a, b) if plan.length is not None]
    budget = min([*limits, _SEARCHED]) if limits else _ENDLESS
    facts_a, facts_b = (overview(plan, samples=plan.length or _ENDLESS).facts for plan in (a, b))
    pack_a, pack_b = facts_a["packing"] or {}, facts_b["packing"] or {}
    facts = [
        _fact("fingerprint", a.fingerprint, b.fingerprint),
        _fact("rows" if pack_a or pack_b else "samples", a.length, b.length),
        _fact("sources", len(a.names), len(b.names)),
        _fact("tokens", facts_a["tokens"], facts_b["tokens"]),
        _fact("to read", facts_a["bytes"], facts_b["bytes"], "bytes"),
        _fact("tokens in a row", pack_a.get("width"), pack_b.get("width")),
        _fact("skipped", facts_a["skipped"], facts_b["skipped"]),
    ]
    rows_a, rows_b = ({row["name"]: row for row in facts["sources"]} for facts in (facts_a, facts_b))
    names = list(dict.fromkeys([*rows_a, *rows_b]))
    differs = plans_differ_at(a, b, budget)
    return {
        "same": a.fingerprint == b.fingerprint,
        "facts": [fact for fact in facts if (fact["a"], fact["b"]) != (None, None)],
        "sources": [{"name": name, "a": rows_a.get(name), "b": rows_b.get(name)} for name in names[:_MOST_ROWS]],
        "more": max(0, len(names) - _MOST_ROWS),
        "differs_at": differs,
        "searched": budget,
        "unit": "rows" if pack_a or pack_b else "samples",
        "diff": _diff(one, other),
    }


def _diff(one: Thing, other: Thing) -> dict[str, Any]:
    """Return the lines by which two recipes differ, both in one notation, so that comments and spacing do not count."""
    before, after = (as_yaml(thing.recipe) for thing in (one, other))
    return diff_lines(before, after, one.name, other.name)


def _runs(one: Thing, other: Thing) -> dict[str, Any]:
    manifests = [read_run(thing.path).manifest for thing in (one, other)]
    a, b = ({} if found is None else {record.name: record for record in found.steps} for found in manifests)
    steps = [_step(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
    first = next((step for step in steps if step["outputs_differ"]), None)
    facts = [
        _fact("steps", len(a), len(b)),
        _fact("Feedmill", _versions(a.values()), _versions(b.values())),
        _fact("seconds", _seconds(a.values()), _seconds(b.values())) | {"same": None},
        _fact("output", _bytes(a.values()), _bytes(b.values()), "bytes"),
    ]
    return {
        "same": bool(steps) and all(step["state"] == "same" for step in steps),
        "facts": facts,
        "steps": steps[:_MOST_ROWS],
        "more": max(0, len(steps) - _MOST_ROWS),
        "first": None if first is None else first["name"],
    }


def _versions(records: Any) -> str:
    return ", ".join(sorted({record.feedmill for record in records}))


def _seconds(records: Any) -> float:
    return round(float(sum(record.seconds for record in records)), 3)


def _bytes(records: Any) -> int:
    return sum(facts.size for record in records for facts in record.outputs.values())


def _step(name: str, a: StepRecord | None, b: StepRecord | None) -> dict[str, Any]:
    """Return how a step of two runs differs: in its options, its inputs, its outputs."""
    row: dict[str, Any] = {"name": name, "verb": (a or b).verb}  # type: ignore[union-attr]
    row |= {"seconds_a": None if a is None else a.seconds, "seconds_b": None if b is None else b.seconds}
    if a is None or b is None:
        return row | {"state": "only in A" if b is None else "only in B", "why": [], "more": 0, "outputs_differ": False}
    options = sorted(key for key in {*a.options, *b.options} if a.options.get(key) != b.options.get(key))
    why = [f"the option {key!r} is {_short(a.options.get(key))} and {_short(b.options.get(key))}" for key in options]
    if a.verb != b.verb:
        why.insert(0, f"the verb is {a.verb} and {b.verb}")
    if a.feedmill != b.feedmill:
        why.append(f"Feedmill is {a.feedmill} and {b.feedmill}")
    inputs, outputs = changed(a.inputs, b.inputs), changed(a.outputs, b.outputs)
    why += [f"the input {change}" for change in inputs] + [f"the output {change}" for change in outputs]
    return row | {
        "state": "differs" if why else "same",
        "why": why[:_MOST_CHANGES],
        "more": max(0, len(why) - _MOST_CHANGES),
        "outputs_differ": bool(outputs),
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
