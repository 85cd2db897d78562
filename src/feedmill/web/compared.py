"""What two datasets, or two plans, have in common: fields, keys, bytes, and the order of their samples.

Each comparison looks at a bounded number of samples for a bounded time, and returns how far it came.
"""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.planning.resuming.proof import same_until
from feedmill.web.content import facts_of

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
    found: dict[str, dict[str, Any]] = {}
    read = unread = 0
    for sample in _some(dataset, _SAMPLED):
        if isinstance(sample, FeedmillError):
            unread += 1
            continue
        read += 1
        for name, value in _values(sample).items():
            field = found.setdefault(name, {"samples": 0, "types": Counter()})
            field["samples"] += 1
            field["types"][value] += 1
    for field in found.values():
        field["types"] = [name for name, _ in field["types"].most_common(3)]
    return {"fields": found, "read": read, "unread": unread}


def _values(sample: Sample) -> dict[str, str]:
    """Return the parts of a sample, and the fields of a part that is a mapping, with the names of their types."""
    found = {}
    for name in sample:
        if name.startswith("__"):
            continue
        if len(sample.raw(name)) > 1 << 20:
            found[name] = "bytes"
            continue
        try:
            value = sample[name]
        except FeedmillError:
            found[name] = "not decoded"
            continue
        if isinstance(value, dict):
            found |= {f"{name}.{key}": _type(inner) for key, inner in list(value.items())[:200]}
        else:
            found[name] = _type(value)
    return found


def _type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}, {value.ndim} dimensions" if value.ndim != 1 else f"{value.dtype}[n]"
    name = type(value).__name__
    return {"str": "text", "NoneType": "null"}.get(name, name)


def _some(dataset: Dataset, most: int) -> list[Sample | FeedmillError]:
    """Return samples spread over a dataset, as many as one comparison reads."""
    from feedmill.web.samples import read_each

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
    found: dict[str, Any] = {"differs_at": count if ended else None, "a": None, "b": None, "read": at, "of": count}
    if ended:
        found["a" if longer is a else "b"] = _key(longer, count)
    return found


def _key(dataset: Dataset, number: int) -> str:
    try:
        return dataset.locate(number).key
    except FeedmillError as error:
        return f"not readable: {error.what}"


def content(a: Dataset, b: Dataset, shared: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return which samples of the same key have other bytes, and in which parts; of at most 64 MB."""
    found, read, budget = [], 0, _BYTES
    end = time.monotonic() + SECONDS
    for one, other in sorted(shared):
        if time.monotonic() > end or budget <= 0:
            break
        try:
            (left,), (right,) = a.read_raw([one]), b.read_raw([other])
            bytes_a, bytes_b = _bytes(left), _bytes(right)
        except FeedmillError as error:
            found.append({"a": one, "b": other, "key": error.record or str(one), "parts": ["not readable"]})
            read += 1
            continue
        read += 1
        budget -= sum(map(len, bytes_a.values())) + sum(map(len, bytes_b.values()))
        parts = sorted(name for name in {*bytes_a, *bytes_b} if bytes_a.get(name) != bytes_b.get(name))
        if parts:
            found.append({"a": one, "b": other, "key": left.key, "parts": parts})
    return {"read": read, "differ": len(found), "samples": found[:_SHOWN]}


def _bytes(sample: Sample) -> dict[str, bytes]:
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
    if a.width != b.width:
        return np.ones(len(here), np.bool_)
    of_a, of_b = a.locate_spans(here), b.locate_spans(here)
    (spans, one), (others, other) = (of_a.spans, of_a.located), (of_b.spans, of_b.located)
    counts = np.diff(spans.row_offsets)
    differs = counts != np.diff(others.row_offsets)
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
