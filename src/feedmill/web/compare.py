"""View 10: two datasets, recipes or runs beside each other, and where they begin to differ.

Each comparison of samples looks at a bounded number of them for a bounded time, and returns how far it came.
"""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.pipelines.files import changed
from feedmill.pipelines.history import StepRecord
from feedmill.planning.overview import plan as overview
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.writing import as_yaml
from feedmill.planning.resuming.resume import same_until
from feedmill.web.library import OpenItem, read_run
from feedmill.web.parts import facts_of, next_step
from feedmill.web.results import Behind
from feedmill.web.state import State

_ENDLESS, _SEARCHED = 16_000, 1 << 22  # positions of an endless plan, and at most, that are compared
_MOST_CHANGES, _MOST_ROWS, _KEPT = 20, 500, 8


def compare(thing: OpenItem, state: State, *, wait: bool = False) -> dict[str, Any]:
    """Return how something differs from another of its kind, which the address names as ``with``.

    Without a name it is the only likely one, if there is one. Until the comparison is done, ``comparing`` has the
    seconds that it has taken, unless `wait` is set.

    Raises:
        ConfigError: the other is of another kind, or its kind cannot be compared.
        NotFound: the other is not open.
    """
    others = [other for other in thing.others.values() if other.kind == thing.kind and other is not thing]
    candidates = [other.name for other in others]
    name = state.get("with", _likely(thing, others))
    data: dict[str, Any] = {
        "name": thing.name,
        "path": thing.path,
        "kind": thing.kind,
        "candidates": candidates,
        "with": name,
        "other": None,
        "choices": [_choice(other) for other in others] if name is None else [],
        "comparing": None,
        "next": None,
    }
    if name is None:
        return data
    if name not in thing.others:
        raise NotFound(f"nothing is open as {name[:80]!r}", kind="no-page", fix=f"Open: {', '.join(thing.others)}.")
    other = thing.others[name]
    refuse_other_kinds(thing, other)
    key = repr((_identity(thing), _identity(other)))
    known: dict[str, Behind[dict[str, Any]]] = thing.__dict__.setdefault("_comparing", {})
    if key not in known and len(known) >= _KEPT:
        known.clear()
    running = known.get(key) or known.setdefault(key, Behind(lambda: compared(thing, other)))
    try:
        found = running.result(wait=wait)
    except FeedmillError:
        known.pop(key, None)  # the next visitor tries again
        raise
    if found is None:
        return data | {"comparing": round(running.seconds, 1)}
    return data | found | {"next": _next(thing, found)}


def _likely(thing: OpenItem, others: Sequence[OpenItem]) -> str | None:
    """Return the only other recipe or run, or the only dataset that has the first key; None if it is unclear."""
    if thing.kind == "dataset":
        others = [other for other in others if _has_first(thing.dataset(), other.dataset())]
    return others[0].name if len(others) == 1 else None


def _has_first(one: Dataset, other: Dataset) -> bool:
    try:
        return bool(len(one)) and other.format == one.format and other.find(one.locate(0).key) >= 0
    except (FeedmillError, ValueError):
        return False


def _choice(other: OpenItem) -> dict[str, Any]:
    """Return what may be compared: its name, and what it is in short."""
    if other.kind == "dataset":
        about = f"{other.dataset().format}, {len(other.dataset()):,} samples"
    elif other.kind == "recipe":
        about = ", ".join(other.plan.names[:6])
    else:
        about = other.path
    return {"name": other.name, "about": about}


def _next(thing: OpenItem, found: dict[str, Any]) -> dict[str, Any]:
    other = found["other"]
    if thing.kind == "recipe" and found["differs_at"] is not None:
        at = found["differs_at"]
        text = f"From position {at:,} on, the runs see other samples."
        return next_step(text, href=f"/{thing.name}/step?step={at // 16}&row={at}#row", label="Look at this step")
    return next_step(
        "Keep this page for a ticket:",
        code=f"feedmill serve {thing.path} {other['path']} --export compare.html --compare",
    )


def compared(one: OpenItem, other: OpenItem) -> dict[str, Any]:
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


def refuse_other_kinds(one: OpenItem, other: OpenItem) -> None:
    """Raise `ConfigError` if two things cannot be compared."""
    if one.kind != other.kind or one.kind in ("telemetry", "job"):
        raise ConfigError(
            f"a {one.kind} cannot be compared with a {other.kind}",
            file=other.path,
            kind="unsupported",
            fix="Give two datasets, two recipes, or two pipelines or their manifests.",
        )


def _identity(thing: OpenItem) -> Any:
    """Return what decides a comparison: runs change while they are shown, datasets and plans stay open."""
    if thing.kind != "pipeline":
        return thing.path
    return thing.path, repr(read_run(thing.path).manifest)


def _fact(name: str, a: Any, b: Any, unit: str = "") -> dict[str, Any]:
    data: dict[str, Any] = {"name": name, "a": a, "b": b, "same": a == b, "unit": unit}
    return data


def _datasets(one: OpenItem, other: OpenItem) -> dict[str, Any]:
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


def _columns(one: OpenItem, other: OpenItem) -> list[dict[str, Any]]:
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


def _recipes(one: OpenItem, other: OpenItem) -> dict[str, Any]:
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


def _diff(one: OpenItem, other: OpenItem) -> dict[str, Any]:
    """Return the lines by which two recipes differ, both in one notation, so that comments and spacing do not count."""
    before, after = (as_yaml(thing.recipe) for thing in (one, other))
    return diff_lines(before, after, one.name, other.name)


def _runs(one: OpenItem, other: OpenItem) -> dict[str, Any]:
    manifests = [read_run(thing.path).manifest for thing in (one, other)]
    a, b = ({} if manifest is None else {record.name: record for record in manifest.steps} for manifest in manifests)
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


SECONDS = 1.0
"""Time for each comparison of many samples."""
_SAMPLED, _BYTES, _KEYS, _SHOWN, _AT_ONCE, _LINES = 64, 64 << 20, 100_000, 10, 256, 400


def fields(a: Dataset, b: Dataset) -> dict[str, Any]:
    """Return the fields of both: in how many of some samples each occurs, and the types of its values."""
    one, other = _fields(a), _fields(b)
    names = sorted({*one["fields"], *other["fields"]}, key=lambda name: (name not in one["fields"], name))
    rows = [{"name": name, "a": one["fields"].get(name), "b": other["fields"].get(name)} for name in names]
    return {"rows": rows, "read_a": one["read"], "read_b": other["read"], "unread": one["unread"] + other["unread"]}


def _fields(dataset: Dataset) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    read = unread = 0
    for sample in _some(dataset, _SAMPLED):
        if isinstance(sample, FeedmillError):
            unread += 1
            continue
        read += 1
        for name, value in _values(sample).items():
            field = rows.setdefault(name, {"samples": 0, "types": Counter()})
            field["samples"] += 1
            field["types"][value] += 1
    for field in rows.values():
        field["types"] = [name for name, _ in field["types"].most_common(3)]
    return {"fields": rows, "read": read, "unread": unread}


def _values(sample: Sample) -> dict[str, str]:
    """Return the parts of a sample, and the fields of a part that is a mapping, with the names of their types."""
    values = {}
    for name in sample:
        if name.startswith("__"):
            continue
        if len(sample.raw(name)) > 1 << 20:
            values[name] = "bytes"
            continue
        try:
            value = sample[name]
        except FeedmillError:
            values[name] = "not decoded"
            continue
        if isinstance(value, dict):
            values |= {f"{name}.{key}": _type(inner) for key, inner in list(value.items())[:200]}
        else:
            values[name] = _type(value)
    return values


def _type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}, {value.ndim} dimensions" if value.ndim != 1 else f"{value.dtype}[n]"
    name = type(value).__name__
    return {"str": "text", "NoneType": "null"}.get(name, name)


def _some(dataset: Dataset, most: int) -> list[Sample | FeedmillError]:
    """Return samples spread over a dataset, as many as one comparison reads."""
    from feedmill.web.columns import read_each

    count = len(dataset)
    numbers = sorted({count * n // most for n in range(most)}) if count else []
    size = _mean_bytes(dataset)
    return read_each(dataset, numbers[:: max(1, int(size * len(numbers)) // _BYTES)])


def _mean_bytes(dataset: Dataset) -> float:
    return (facts_of(dataset).get("bytes") or 0) / max(len(dataset), 1)


def keys(a: Dataset, b: Dataset) -> dict[str, Any]:
    """Return the keys that only one has: how many of those that were looked up, and the first of them.

    ``shared`` are samples with the same key, as pairs of their numbers.
    """
    only_a, looked_a, shared = _missing(a, b)
    only_b, looked_b, _ = _missing(b, a)
    return {
        "only_a": only_a[1],
        "only_b": only_b[1],
        "count_a": only_a[0],
        "count_b": only_b[0],
        "looked_a": looked_a,
        "looked_b": looked_b,
        "all": looked_a == len(a) and looked_b == len(b),
        "shared": shared,
    }


def _missing(one: Dataset, other: Dataset) -> tuple[tuple[int, list[str]], int, list[tuple[int, int]]]:
    """Return the keys of a dataset that another lacks, how many were looked up, and pairs of samples of one key."""
    count = len(one)
    numbers = range(count) if count <= _KEYS else np.linspace(0, count - 1, _KEYS).astype(np.int64).tolist()
    end = time.monotonic() + SECONDS
    missing, looked = 0, 0
    first: list[tuple[int, str]] = []
    shared: list[tuple[int, int]] = []
    # Spread over the dataset, so that a comparison that ends early has not seen its beginning only.
    for number in (n for start in range(_SAMPLED) for n in numbers[start::_SAMPLED]):
        if looked % 64 == 0 and time.monotonic() > end:
            break
        looked += 1
        try:
            key = one.locate(number).key
            shared_with = other.find(key)
        except FeedmillError as error:
            if isinstance(error, LookupError):
                missing += 1
                if len(first) < _SHOWN:
                    first.append((number, key))
            continue
        if len(shared) < _SAMPLED:
            shared.append((number, shared_with))
    return (missing, [key for _, key in sorted(first)]), looked, shared


def order(a: Dataset, b: Dataset) -> dict[str, Any]:
    """Return the first number at which the keys of two datasets differ, and how many were compared."""
    end, count, at = time.monotonic() + SECONDS, min(len(a), len(b)), 0
    while at < count and time.monotonic() < end:
        stop = min(at + _AT_ONCE, count)
        for number in range(at, stop):
            one, other = _key(a, number), _key(b, number)
            if one != other:
                return {"differs_at": number, "a": one, "b": other, "read": number + 1, "of": count}
        at = stop
    ended = at == count and len(a) != len(b)
    longer = a if len(a) > len(b) else b
    data: dict[str, Any] = {"differs_at": count if ended else None, "a": None, "b": None, "read": at, "of": count}
    if ended:
        data["a" if longer is a else "b"] = _key(longer, count)
    return data


def _key(dataset: Dataset, number: int) -> str:
    try:
        return dataset.locate(number).key
    except FeedmillError as error:
        return f"not readable: {error.what}"


def content(a: Dataset, b: Dataset, shared: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return which samples of the same key have other bytes, and in which parts; of at most 64 MB."""
    different, read, budget = [], 0, _BYTES
    end = time.monotonic() + SECONDS
    for one, other in sorted(shared):
        if time.monotonic() > end or budget <= 0:
            break
        try:
            (left,), (right,) = a.read_raw([one]), b.read_raw([other])
            bytes_a, bytes_b = _parts(left), _parts(right)
        except FeedmillError as error:
            different.append({"a": one, "b": other, "key": error.record or str(one), "parts": ["not readable"]})
            read += 1
            continue
        read += 1
        budget -= sum(map(len, bytes_a.values())) + sum(map(len, bytes_b.values()))
        parts = sorted(name for name in {*bytes_a, *bytes_b} if bytes_a.get(name) != bytes_b.get(name))
        if parts:
            different.append({"a": one, "b": other, "key": left.key, "parts": parts})
    return {"read": read, "differ": len(different), "samples": different[:_SHOWN]}


def _parts(sample: Sample) -> dict[str, bytes]:
    return {name: bytes(sample.raw(name)) for name in sample if not name.startswith("__")}


def plans_differ_at(a: Plan, b: Plan, budget: int) -> int | None:
    """Return the first position at which two plans give other samples; None if they agree on the first `budget`.

    Sources are the same if they have the same name and the same data. Rows differ if any of their spans does.
    """
    if a.fingerprint == b.fingerprint:
        return None
    known = {pair: number for number, pair in enumerate(zip(a.names, _hashes(a), strict=True))}
    ids = np.array([known.get(pair, -1) for pair in zip(b.names, _hashes(b), strict=True)])
    packed = isinstance(a, PackedPlan), isinstance(b, PackedPlan)
    if packed[0] != packed[1]:
        return 0 if budget else None
    low, size = 0, 8
    if not packed[0]:  # most positions are the same by structure: they are not evaluated
        low = same_until(a.node, b.node, {old: new for new, old in enumerate(ids.tolist()) if old >= 0}, budget)
    while low < budget:
        here = np.arange(low, min(low + size, budget))
        differs = _rows_differ(a, b, here, ids) if packed[0] else _differ(a, b, here, ids)
        if differs.any():
            return low + int(np.argmax(differs))
        low, size = low + size, min(size * 4, 1 << 16)
    return None


def _hashes(plan: Plan) -> list[str]:
    return [plan.fingerprints[f"data of {name}"] for name in plan.names]


def _differ(a: Plan, b: Plan, here: Any, ids: Any) -> Any:
    one, other = a.locate(here), b.locate(here)
    return (one.source != ids[other.source]) | (one.index != other.index)


def _rows_differ(a: Any, b: Any, here: Any, ids: Any) -> Any:
    """Return for each row whether any of its spans differs."""
    wider = a.widths(here) != b.widths(here)
    of_a, of_b = a.locate_spans(here), b.locate_spans(here)
    (spans, one), (others, other) = (of_a.spans, of_a.located), (of_b.spans, of_b.located)
    counts = np.diff(spans.row_offsets)
    differs = wider | (counts != np.diff(others.row_offsets))
    if differs.any():  # rows up to the first with another number of spans line up
        stop = int(np.argmax(differs))
        end = int(spans.row_offsets[stop])
    else:
        stop, end = len(here), int(spans.row_offsets[-1])
    row = np.repeat(np.arange(stop), counts[:stop])
    unlike = (
        (one.source[:end] != ids[other.source[:end]])
        | (one.index[:end] != other.index[:end])
        | (spans.start[:end] != others.start[:end])
        | (spans.length[:end] != others.length[:end])
    )
    differs[row[unlike]] = True
    return differs


def diff_lines(before: str, after: str, one: str, other: str) -> dict[str, Any]:
    """Return the lines by which two texts differ, each with its kind: add, del, at, or none; at most 400."""
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), one, other, lineterm="", n=2)
    lines = list(found)[2:]
    kinds = {"+": "add", "-": "del", "@": "at"}
    rows = [{"kind": kinds.get(line[:1], ""), "text": line} for line in lines[:_LINES]]
    return {"lines": rows, "more": max(0, len(lines) - _LINES)}
