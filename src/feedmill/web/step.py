"""View 2: what a step sees. Lanes are ranks, lines are rows, blocks are samples or documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.base import Dataset, TokenReader
from feedmill.planning import ledger
from feedmill.planning.forecast import mixture
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.samples.counted import CountedDataset
from feedmill.tokens.pieces import has_tokens, pieces_of, tokenizer_of
from feedmill.tracing.held import rows_of
from feedmill.tracing.trace import trace
from feedmill.web.charts import path, stacked, ticks
from feedmill.web.columns import read_each
from feedmill.web.invisible import one_line
from feedmill.web.library import OpenItem
from feedmill.web.logs import Losses, read_losses
from feedmill.web.parts import TOO_LARGE, facts_of, first_image, next_step, read_one, shown_parts, title_of
from feedmill.web.state import State

BATCH, WORLD = 16, 1
MOST_LANES, MOST_ROWS, MOST_SIGHTINGS = 16, 64, 200
MOST_BATCH, MOST_WORLD = 1 << 16, 1 << 16
_ENDLESS, _WINDOWS, _DRAWN = 1000, 80, 2000
_MOST_READ, _BEGINNING = 256, 24
"""Samples and documents in the lanes that are read for their first words, and tokens of each that are decoded."""
_KEPT = 64  # lengths of runs whose shares are kept: the address of an endless plan can name any
SEARCHED = 50_000_000  # positions that are searched for other sightings
MOST_TIMES = 10_000  # sightings of a sample: in an endless plan, a small source has any number of them


def step(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return what a step sees as plain data.

    Raises:
        ConfigError: the address has an invalid value, or ranks do not divide the batch.
        NotFound: the plan ends before this step.
    """
    plan = thing.plan
    batch = bounded(state, "batch", BATCH, MOST_BATCH)
    world = bounded(state, "world", WORLD, MOST_WORLD)
    number = state.number("step", 0) or 0
    if batch % world:
        raise ConfigError(
            f"{world:,} ranks cannot share {batch:,} samples evenly", kind="bad-address", fix="Use a multiple."
        )
    steps = steps_of(plan, batch, state)
    found = trace(plan, step=number, global_batch=batch, world=world).facts
    width = int(plan.widths([found["first"]])[0]) if isinstance(plan, PackedPlan) else None
    lanes, hidden = _lanes(thing, found["entries"], world, width, state)
    opened = _opened(thing, found["entries"], state)
    return {
        "name": thing.name,
        "path": thing.path,
        "step": number,
        "steps": steps,
        "endless": plan.length is None,
        "batch": batch,
        "world": world,
        "first": found["first"],
        "stop": found["stop"],
        "width": width,
        "documents": len(found["entries"]),
        "padding": _padding(found["entries"], width),
        "fingerprint": plan.fingerprint,
        "sources": list(plan.names),
        "lanes": lanes,
        "hidden_ranks": hidden,
        "opened": opened,
        "sightings": None if opened is None else _sightings(plan, opened, batch, steps),
        "shares": shares_over(plan, min(steps * batch, plan.length or steps * batch)),
        "loss": _loss(thing, number, steps),
        "next": _next(thing, opened, losses_of(thing), state),
        "command": f"feedmill trace {thing.path} --step {number} --global-batch {batch} --world {world}",
    }


def _next(thing: OpenItem, opened: dict[str, Any] | None, losses: Losses | None, state: State) -> dict[str, Any]:
    if losses is None:
        return next_step(
            "See what was in the batch of a spike:", code=f"feedmill serve {thing.path} --loss-log loss.csv"
        )
    if opened is not None and opened["life"]:
        entry = opened["entry"]
        query = state.link(source=entry["source"], at=entry["index"], step=None, row=None, doc=None, rank=None)
        text = "Follow the chosen document back to its raw line, and to the steps that see it."
        return next_step(text, href=f"/{thing.name}/life{query}", label="Life of this document")
    return next_step("Keep a run from seeing a sample again: add it to the recipe.", code=_skip_line(opened))


def _skip_line(opened: dict[str, Any] | None) -> str | None:
    if opened is None:
        return None
    entry = opened["entry"]
    return f"skip: [{{source: {entry['source']}, indices: [{entry['index']}]}}]"


def slots(names: Sequence[str]) -> dict[str, int]:
    """Return the color of each source: its place in the recipe from 1 to 10, and 0 beyond."""
    return {name: place if place <= 10 else 0 for place, name in enumerate(names, 1)}


def bounded(state: State, name: str, default: int, most: int) -> int:
    """Return a number of the address from 1 to `most`. Raises `ConfigError`."""
    value = state.number(name, default, least=1) or default
    if value > most:
        raise ConfigError(f"{name} may be at most {most:,} here, not {value:,}", kind="bad-address")
    return value


def steps_of(plan: Plan, batch: int, state: State) -> int:
    """Return the number of steps that are shown: all, or those that the address gives for an endless plan."""
    if plan.length is not None:
        return max(1, -(-plan.length // batch))
    return state.number("steps", _ENDLESS, least=1) or _ENDLESS


def searched(plan: Plan, steps: int, batch: int) -> int:
    """Return the number of first positions in which a page looks for sightings of a sample.

    A sample is seen at most once in each epoch of its source, so this bounds the sightings, and not only the time.
    """
    sizes = [max(1, len(plan.source(name))) for name in plan.names]
    if isinstance(plan, PackedPlan):  # a position is a row of documents
        tokens = [getattr(plan.source(name), "tokens", None) for name in plan.names]
        sizes = [max(1, size if t is None else t // plan.width) for size, t in zip(sizes, tokens, strict=True)]
    return min(steps * batch, plan.length or steps * batch, SEARCHED, MOST_TIMES * min(sizes))


def _padding(entries: Sequence[dict[str, Any]], width: int | None) -> float | None:
    if width is None or not entries:
        return None
    rows = len({entry["position"] for entry in entries})
    used = sum(entry["span"][1] - entry["span"][0] for entry in entries)
    return max(0.0, 1 - float(used) / (rows * width))


def _lanes(
    thing: OpenItem, entries: Sequence[dict[str, Any]], world: int, width: int | None, state: State
) -> tuple[list[dict[str, Any]], int]:
    """Return the lanes that are shown, and the number of ranks that are not."""
    plan, rank = thing.plan, state.number("rank")
    colors = slots(plan.names)
    rows: dict[int, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        rows[entry.get("rank", 0)][entry["position"]].append(entry)
    costs = {number: _cost(lane, width) for number, lane in rows.items()}
    mean = sum(costs.values()) / max(len(costs), 1) or 1.0
    shown = sorted(rows)[:MOST_LANES] if rank is None or rank < MOST_LANES else [rank]
    lanes = []
    counts = {number: MOST_ROWS if rank == number else max(4, MOST_ROWS // len(shown)) for number in shown}
    for number in shown:
        if number not in rows:
            raise ConfigError(f"there is no rank {number:,} of {world:,} in this step", kind="bad-address")
    visible = [(number, p) for number in shown for p in sorted(rows[number])[: counts[number]]]
    words = _beginnings(thing, [entry for number, p in visible for entry in rows[number][p]][:_MOST_READ])
    for number in shown:
        most, lane = counts[number], rows[number]
        positions = sorted(lane)
        lanes.append(
            {
                "rank": number,
                "first": positions[0],
                "last": positions[-1],
                "rows": [{"position": p, "blocks": _blocks(lane[p], width, colors, words)} for p in positions[:most]],
                "more": max(0, len(positions) - most),
                "documents": sum(map(len, lane.values())),
                "padding": None if width is None else len(lane) * width - _tokens(lane),
                "cost": costs[number] / mean,
                "highest": costs[number] == max(costs.values()) and len(costs) > 1,
            }
        )
    return lanes, len(rows) - len(shown)


def _tokens(lane: dict[int, list[dict[str, Any]]]) -> int:
    return sum(entry["span"][1] - entry["span"][0] for row in lane.values() for entry in row)


def _cost(lane: dict[int, list[dict[str, Any]]], width: int | None) -> float:
    """Return the sum of squared lengths: attention within documents; of samples, their bytes."""
    entries = [entry for row in lane.values() for entry in row]
    if width is not None:
        return float(sum((entry["span"][1] - entry["span"][0]) ** 2 for entry in entries))
    return float(sum(entry["length"] or 0 for entry in entries))


def _beginnings(thing: OpenItem, entries: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Return the first words and the picture of each of these entries, by source, number and first token."""
    found: dict[Any, dict[str, Any]] = {}
    by_source: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        by_source[entry["source"]].append(entry)
    for source, own in by_source.items():
        dataset = thing.plan.source(source)
        try:
            if isinstance(dataset, CountedDataset) or not isinstance(dataset, TokenReader):
                found |= _read(thing, dataset, own)
            else:
                found |= _decoded(thing, dataset, own)
        except FeedmillError:  # the labels stay keys; the chosen row says why
            continue
    return found


def _decoded(thing: OpenItem, dataset: Any, entries: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    tokenizer = tokenizer_of(dataset, thing.tokenizers)
    spans = [entry.get("span", (0, _BEGINNING)) for entry in entries]
    index = np.asarray([entry["index"] for entry in entries], np.int64)
    low = np.asarray([span[0] for span in spans], np.int64)
    size = np.asarray([min(span[1] - span[0], _BEGINNING) for span in spans], np.int64)
    return {
        _place(entry): {"title": one_line(tokenizer.decode(ids.tolist())), "picture": None}
        for entry, ids in zip(entries, dataset.read_tokens(index, low, size), strict=True)
    }


def _read(thing: OpenItem, dataset: Dataset, entries: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    field_map = facts_of(dataset).get("field_map")
    small = [entry for entry in entries if (entry.get("length") or 0) <= TOO_LARGE]
    read = read_each(dataset, [entry["index"] for entry in small])
    if has_tokens(dataset) and not isinstance(dataset, CountedDataset):
        tokenizer = tokenizer_of(dataset, thing.tokenizers)
        return {
            _place(entry): {
                "title": one_line(tokenizer.decode(sample["input_ids"][:_BEGINNING].tolist())),
                "picture": None,
            }
            for entry, sample in zip(small, read, strict=True)
            if not isinstance(sample, FeedmillError)
        }
    return {
        _place(entry): {"title": title_of(sample, field_map), "picture": first_image(sample)}
        for entry, sample in zip(small, read, strict=True)
        if not isinstance(sample, FeedmillError)
    }


def _place(entry: dict[str, Any]) -> tuple[str, int, int]:
    return entry["source"], entry["index"], entry["span"][0] if "span" in entry else 0


def _blocks(
    entries: Sequence[dict[str, Any]], width: int | None, colors: dict[str, int], words: dict[Any, dict[str, Any]]
) -> list[dict[str, Any]]:
    blocks, at = [], 0.0
    whole = float(width or len(entries))
    for number, entry in enumerate(entries):
        size = entry["span"][1] - entry["span"][0] if width is not None else 1
        share = 100 * size / whole
        begin = words.get(_place(entry), {})
        blocks.append(
            {
                "title": begin.get("title"),
                "picture": begin.get("picture"),
                "index": entry["index"],
                "x": round(at, 3),
                "width": round(share, 3),
                "label": entry["key"] if entry["key"] is not None else f"sample {entry['index']:,}",
                "source": entry["source"],
                "slot": colors[entry["source"]],
                "epoch": entry["epoch"],
                "tokens": None if width is None else size,
                "doc": number,
                "problem": entry.get("problem"),
            }
        )
        at += share
    if width is not None and at < 99.9999:
        left = round(width * (100 - at) / 100)
        blocks.append({"x": round(at, 3), "width": round(100 - at, 3), "padding": left})
    return blocks


def _opened(thing: OpenItem, entries: Sequence[dict[str, Any]], state: State) -> dict[str, Any] | None:
    """Return the row that is open, with its text or parts; the first row if none was chosen."""
    row = state.number("row")
    position = row if row is not None else (entries[0]["position"] if entries else None)
    inside = [entry for entry in entries if entry["position"] == position]
    if not inside:
        return None
    place = min(state.number("doc", 0) or 0, len(inside) - 1)
    plan, colors = thing.plan, slots(thing.plan.names)
    chosen = inside[place]
    data: dict[str, Any] = {
        "position": position,
        "doc": place,
        "entry": {**chosen, "slot": colors[chosen["source"]]},
        "documents": None,
        "parts": None,
        "problem": chosen.get("problem"),
    }
    dataset = plan.source(chosen["source"])
    data["title"] = _beginnings(thing, [chosen]).get(_place(chosen), {}).get("title")
    data["life"] = bool(rows_of(dataset).paths)
    try:
        if isinstance(dataset, CountedDataset):
            data["parts"] = shown_parts(read_one(dataset, chosen["index"]))
        elif isinstance(plan, PackedPlan) or has_tokens(dataset):
            documents = [entry for entry in inside if not isinstance(plan.source(entry["source"]), CountedDataset)]
            data["documents"] = [_text(thing, entry, colors) for entry in documents]
            data["width"] = int(plan.widths([chosen["position"]])[0]) if isinstance(plan, PackedPlan) else None
        else:
            data["parts"] = shown_parts(read_one(dataset, chosen["index"]))
    except FeedmillError as error:
        data["problem"] = str(error)
    return data


def _text(thing: OpenItem, entry: dict[str, Any], colors: dict[str, int]) -> dict[str, Any]:
    """Return a document's part of a row: its tokens as pieces, or as ids where there is no tokenizer."""
    dataset = thing.plan.source(entry["source"])
    if "span" in entry and isinstance(dataset, TokenReader):
        low, high = entry["span"]
        rows = (np.asarray([n], np.int64) for n in (entry["index"], low, min(high - low, _DRAWN)))
        ids = dataset.read_tokens(*rows)[0].tolist()
    else:
        values = read_one(dataset, entry["index"])["input_ids"]
        low, high, ids = 0, len(values), values[:_DRAWN].tolist()
    data: dict[str, Any] = {
        "key": entry["key"],
        "source": entry["source"],
        "slot": colors[entry["source"]],
        "span": [low, high],
        "more": high - low - len(ids),
    }
    try:
        return {**data, "pieces": pieces_of(tokenizer_of(dataset, thing.tokenizers), ids)}
    except FeedmillError as error:
        why = error.what if error.fix is None else f"{error.what}. {error.fix}"
        return {**data, "ids": ids, "why": why}


def _sightings(plan: Plan, opened: dict[str, Any], batch: int, steps: int) -> dict[str, Any]:
    entry = opened["entry"]
    limit = searched(plan, steps, batch)
    try:
        seen = ledger.occurrences(plan, entry["source"], entry["index"], samples=limit, global_batch=batch)
    except FeedmillError as error:
        return {"problem": str(error), "times": 0, "marks": [], "previous": None, "next": None}
    here = opened["position"]
    places = [one.position for one in seen]
    before = [p for p in places if p < here]
    after = [p for p in places if p > here]
    return {
        "times": len(seen),
        "of": limit,
        "marks": [{"x": round(100 * p / max(limit, 1), 2), "here": p == here} for p in places[:MOST_SIGHTINGS]],
        "previous": None if not before else {"step": before[-1] // batch, "row": before[-1]},
        "next": None if not after else {"step": after[0] // batch, "row": after[0]},
    }


def shares_over(plan: Plan, samples: int) -> dict[str, Any]:
    """Return the share of each source over the run as polygons in a box of 1000 x 36; sources from the 11th are one."""
    known: dict[int, dict[str, Any]] = plan.__dict__.setdefault("_web_shares", {})
    if samples not in known:
        if len(known) >= _KEPT:
            known.clear()
        known[samples] = _drawn_shares(plan, samples)
    return known[samples]


def _drawn_shares(plan: Plan, samples: int) -> dict[str, Any]:
    shares = mixture(plan, max(1, samples), _WINDOWS).shares.T
    names = list(plan.names)
    rows = [*shares[:10], shares[10:].sum(axis=0)] if len(names) > 10 else list(shares)
    shapes = stacked(np.array(rows), 1000, 36)
    labels = [*names[:10], "all others"] if len(names) > 10 else names
    return {
        "polygons": [
            {"name": name, "slot": slot + 1 if slot < 10 else 0, "points": points}
            for slot, (name, points) in enumerate(zip(labels, shapes, strict=True))
        ]
    }


def losses_of(thing: OpenItem) -> Losses | None:
    """Return the loss log that is open beside a recipe."""
    if thing.loss is None:
        return None
    known = thing.__dict__.get("_losses")
    if known is None:
        known = thing.__dict__["_losses"] = read_losses(thing.loss)
    return known


def _loss(thing: OpenItem, number: int, steps: int) -> dict[str, Any] | None:
    """Return the loss curve in a box of 1000 x 96, its scale, and the spikes."""
    losses = losses_of(thing)
    if losses is None:
        return None
    inside = losses.steps < steps
    where, values = losses.steps[inside], losses.losses[inside]
    if not len(where):
        return {"name": losses.name, "path": "", "spikes": [], "matched": 0, "logged": len(losses.steps), "at": None}
    low, high = float(values.min()), float(values.max())
    logarithmic = low > 0 and high / low > 2
    scale = np.log(values) if logarithmic else values
    bottom, top = float(scale.min()), float(scale.max())
    y = 90 - (scale - bottom) / ((top - bottom) or 1.0) * 84
    x = (where + 0.5) * 1000 / steps
    keep = _thinned(y)
    marks = (
        [float(np.exp(value)) for value in np.linspace(top, bottom, 3)] if logarithmic else ticks(low, high, 3)[::-1]
    )
    spikes = [one for one in losses.spikes() if one < steps]
    unit = ((top - bottom) or 1.0) / 84  # the curve lies between 6 and 90 of 96
    edges = np.array([bottom - 6 * unit, top + 6 * unit])
    return {
        "name": losses.name,
        "plot": {
            "x": (where[keep] + 0.5).tolist(),
            "name": "step",
            "range": [0, steps],
            "heights": (np.exp(edges) if logarithmic else edges).tolist(),
            "log": logarithmic,
            "series": [{"name": "loss", "slot": None, "values": values[keep].tolist()}],
        },
        "path": path(list(zip(x[keep].tolist(), y[keep].tolist(), strict=True))),
        "low": low,
        "high": high,
        "log": logarithmic,
        "marks": [float(f"{mark:.3g}") for mark in marks],
        "matched": len(where),
        "logged": len(losses.steps),
        "skipped": losses.skipped,
        "spikes": spikes,
        "next_spike": next((spike for spike in spikes if spike > number), spikes[0] if spikes else None),
        "at": losses.at(number),
    }


def _thinned(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the points of a curve to draw: the lowest and the highest of each of a thousand pieces."""
    if len(y) <= _DRAWN:
        return np.arange(len(y))
    pieces = np.array_split(np.arange(len(y)), _DRAWN // 2)
    kept = [(int(p[np.argmin(y[p])]), int(p[np.argmax(y[p])])) for p in pieces]
    return np.unique(np.array(kept).ravel())
