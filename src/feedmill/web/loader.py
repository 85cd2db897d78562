"""View 9: the loader, live. What each rank waited for, and how long its workers took, from the telemetry of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.report import SourceReport
from feedmill.web.charts import path, stacked, ticks
from feedmill.web.library import OpenItem
from feedmill.web.logs import COUNTERS, STAGES, Floats, Series, read_telemetry
from feedmill.web.parts import next_step
from feedmill.web.state import State
from feedmill.web.step import slots

MOST_LANES = 64
OVER = {"last": "last report", "10": "10 minutes", "60": "1 hour", "all": "all"}
REFRESH, _STALE, _LEAST_STALE = 5000, 3.0, 15.0  # milliseconds; intervals, and seconds, without a report
_BINS, _WIDTH, _HEIGHT = 240, 1000.0, 160.0
_NO_FIGURES = SourceReport("", 0, 0, None, None, None).as_dict()
_AT = {name: number for number, name in enumerate(COUNTERS)}

_HIGH = 0.05
"""Share of the time in which a loop waits, above which data slows the training."""


def loader(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return what each rank waited for as plain data: over the last report, some minutes, or all that was read.

    Raises:
        ConfigError: the address names no rank that there is.
        NotFound: the telemetry is gone.
    """
    over = state.choice("over", OVER, "last")
    chosen = state.number("rank")
    series = read_telemetry(thing.path)
    if chosen is not None and all(rank.rank != chosen for rank in series):
        raise ConfigError(f"there is no telemetry of rank {chosen:,}", file=thing.path, kind="bad-address")
    now = time.time()
    ages = [max(0.0, now - float(rank.times[-1])) for rank in series]
    every = _interval(series)
    limit = max(_STALE * (every or 60.0), _LEAST_STALE)
    ranks = [
        _rank(rank, over) | {"age": round(age, 1), "stale": age > limit} for rank, age in zip(series, ages, strict=True)
    ]
    shown = [row for row in ranks if row["rank"] == chosen] if chosen is not None else _slowest(ranks)
    stale = [row["rank"] for row in ranks if row["stale"]]
    steps = sum(row["step_seconds"] for row in ranks)
    waiting = sum(row["wait_seconds"] for row in ranks) / steps if steps else None
    return {
        "next": _next(waiting, ranks),
        "name": thing.name,
        "path": thing.path,
        "over": over,
        "choices": OVER,
        "rank": chosen,
        "ranks": len(ranks),
        "lanes": shown,
        "hidden": len(ranks) - len(shown),
        "every": every,
        "age": round(min(ages), 1),
        "state": "live" if not stale else "stale" if len(stale) == len(ranks) else "partly stale",
        "stale": stale[:20],
        "refresh": REFRESH if len(stale) < len(ranks) else None,
        "position": max(row["position"] for row in ranks),
        "samples_per_second": sum(row["samples_per_second"] for row in ranks),
        "waiting": waiting,
        "failures": sum(int(rank.last.get("failures") or 0) for rank in series),
        "reports": sum(len(rank.times) for rank in series),
        "cut": sum(rank.cut for rank in series),
        "skipped": sum(rank.skipped for rank in series),
        "stages": STAGES,
        "chart": _chart([rank for rank in series if chosen in (None, rank.rank)]),
        "accounts": _accounts(series, now),
    }


def _accounts(series: Sequence[Series], now: float) -> dict[str, Any] | None:
    """Return the last accounts of sources and cells, those of all ranks, as the page of a mixture has them."""
    known = [rank.accounts for rank in series if rank.accounts is not None]
    if not known:
        return None
    last = max(known, key=lambda report: float(report["time"]))
    sources = [{**_NO_FIGURES, **row} for row in last["sources"]]
    colors = slots([row["name"] for row in sources])
    return {
        "budget": int(last.get("position") or 0),
        "age": round(max(0.0, now - float(last["time"])), 1),
        "unit": str(last.get("unit") or "samples"),
        "tokens": any(row["tokens"] is not None for row in sources),
        "sources": [{**row, "drawn_tokens": row["tokens"], "slot": colors.get(row["name"], 0)} for row in sources],
        "max_repeats": [],
        "stages": [],
        "packing": None,
        "proxy": any(row["target_repeats"] is not None for row in sources),
        "spread_steps": None,
    }


def _next(waiting: float | None, ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    if waiting is None:
        return None
    if waiting < _HIGH:
        return next_step("Training limits this run, not data: more workers would not speed it up.")
    shares: dict[str, float] = {}
    for row in ranks:
        for block in row["blocks"]:
            shares[block["stage"]] = shares.get(block["stage"], 0.0) + block["width"]
    stage = max(shares, key=lambda name: shares[name], default="read")
    text = f"The loop waits {waiting:.0%} of its time, most of it for {stage}. Try more workers, or read further ahead."
    return next_step(text)


def _interval(series: Sequence[Series]) -> float | None:
    """Return the usual seconds between two reports of a rank; None if there is only one of each."""
    gaps = np.concatenate([np.diff(rank.times) for rank in series])
    return round(float(np.median(gaps)), 3) if len(gaps) else None


def _slowest(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lanes that are shown, in order: of more than 64 ranks those that waited longest."""
    if len(ranks) <= MOST_LANES:
        return ranks
    kept = sorted(ranks, key=lambda row: -(row["waiting"] or 0))[:MOST_LANES]
    return sorted(kept, key=lambda row: int(row["rank"]))


def _rank(rank: Series, over: str) -> dict[str, Any]:
    """Return the figures of a rank over a time: waiting by stage, and workers' milliseconds for each batch."""
    first = _first(rank, over)
    before = np.zeros(len(COUNTERS)) if first is None else rank.counters[first]
    figures = _grown(rank, before, 0 if first is None else first + 1)
    batches, step = figures[_AT["batches"]], max(figures[_AT["step_seconds"]], figures[_AT["wait_seconds"]])
    wait = figures[_AT["wait_seconds"]]
    blocks, x = [], 0.0
    for slot, stage in enumerate(STAGES, 1):
        share = 100 * figures[_AT[f"wait_{stage}_seconds"]] / step if step else 0.0
        blocks.append({"stage": stage, "slot": slot, "x": round(x, 3), "width": round(share, 3)})
        x += share
    made = {
        stage: round(1000 * figures[_AT[f"{stage}_seconds"]] / batches, 3) if batches else None for stage in STAGES[:-1]
    }
    return {
        "rank": rank.rank,
        "batches": int(batches),
        "position": int(rank.last.get("position") or 0),
        "samples_per_second": round(figures[_AT["samples"]] / step, 3) if step else 0.0,
        "step_milliseconds": round(1000 * step / batches, 3) if batches else None,
        "wait_seconds": float(wait),
        "step_seconds": float(step),
        "waiting": float(wait / step) if step else None,
        "blocks": blocks,
        "made": made,
        "seconds": round(float(rank.times[-1] - (rank.times[0] if first is None else rank.times[first])), 1),
        "restarts": len(rank.starts),
        "time": float(rank.times[-1]),
    }


def _first(rank: Series, over: str) -> int | None:
    """Return the report from which figures are counted; None to count from the loader's beginning."""
    count = len(rank.times)
    if over == "last":
        first = count - 2
    elif over == "all":
        first = 0 if rank.cut else -1
    else:
        first = int(np.searchsorted(rank.times, rank.times[-1] - 60 * int(over), "right")) - 1
    return first if first >= 0 else None


def _grown(rank: Series, before: Floats, first: int) -> Floats:
    """Return by how much the counters grew after `before`; where a loader began, they begin at 0."""
    total = -before
    for start in rank.starts:
        if start >= first:
            total = total + rank.counters[start - 1]
    counters: Floats = np.maximum(total + rank.counters[-1], 0.0)
    return counters


def _chart(series: Sequence[Series]) -> dict[str, Any] | None:
    """Return the share of waiting over time, by stage and stacked: the mean over ranks, and the rank that waited most.

    The box is 1000 x 160. ``plot`` has the values for the interactive chart: seconds since 1970, and percent.
    """
    known = [rank for rank in series if len(rank.times) > 1]
    if not known:
        return None
    low, high = min(float(rank.times[0]) for rank in known), max(float(rank.times[-1]) for rank in known)
    count = min(_BINS, max(len(rank.times) for rank in known) - 1)
    edges = np.linspace(low, high, count + 1)
    waits, steps, worst = np.zeros((len(STAGES), count)), np.zeros(count), np.zeros(count)
    for drawn in known:
        grown = np.diff(drawn.counters, axis=0)
        grown[np.array(drawn.starts, np.int64) - 1] = drawn.counters[drawn.starts]  # a new loader begins at 0
        at = np.clip(np.searchsorted(edges, drawn.times[1:]) - 1, 0, count - 1)
        own = np.zeros((len(STAGES) + 2, count))
        for row, name in enumerate((*(f"wait_{stage}_seconds" for stage in STAGES), "wait_seconds", "step_seconds")):
            np.add.at(own[row], at, grown[:, _AT[name]])
        own[-1] = np.maximum(own[-1], own[-2])
        waits, steps = waits + own[:-2], steps + own[-1]
        worst = np.maximum(worst, _share(own[-2], own[-1]))
    shares = _share(waits, steps)
    x = (edges[:-1] + edges[1:]) / 2
    filled = np.maximum.accumulate(np.where(steps > 0, np.arange(count), 0))  # a time without reports is as before it
    shares, worst = shares[:, filled], worst[filled]
    top = max(float(worst.max()), float(shares.sum(axis=0).max()), 0.01)
    shapes = stacked(shares / top, _WIDTH, _HEIGHT)
    heights = (1 - worst / top) * _HEIGHT
    places = (np.arange(count) + 0.5) * _WIDTH / count
    series_of = [(stage, slot, shares[slot - 1]) for slot, stage in enumerate(STAGES, 1)]
    return {
        "polygons": [
            {"name": stage, "slot": slot, "points": points, "last": float(share[-1])}
            for (stage, slot, share), points in zip(series_of, shapes, strict=True)
        ],
        "worst": path(list(zip(places.tolist(), heights.tolist(), strict=True))) if len(known) > 1 else "",
        "last": float(shares[:, -1].sum()),
        "worst_last": float(worst[-1]),
        "marks": [{"y": round((1 - mark / top) * _HEIGHT, 1), "share": mark} for mark in ticks(0, top, 3)],
        "seconds": high - low,
        "first": low,
        "ended": high,
        "plot": {
            "x": [round(value, 3) for value in x.tolist()],
            "time": True,
            "range": [low, high],
            "heights": [0, 100 * top],
            "zoom": True,
            "unit": "%",
            "series": [
                {"name": stage, "slot": slot, "fill": True, "values": _percent(share)}
                for stage, slot, share in series_of
            ]
            + [{"name": "slowest rank", "slot": None, "dash": [4, 3], "values": _percent(worst)}] * (len(known) > 1),
        },
    }


def _percent(share: Floats) -> list[float]:
    return [round(100 * value, 3) for value in share.tolist()]


def _share(part: Floats, whole: Floats) -> Floats:
    return np.clip(np.divide(part, whole, out=np.zeros_like(part), where=whole > 0), 0, 1)
