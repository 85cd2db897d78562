"""The experiment behind a mixture: the swarm that a recipe belongs to, the fit that proposed it, and their drawings.

``best.json`` beside ``best.yaml`` is the report of `feedmill mixture fit`; ``swarm.json`` beside a recipe says that it
is a run of a swarm. Both are data: what is not as expected is a note on the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedmill.errors import DataError, FeedmillError
from feedmill.mixture.swarm import Swarm, is_swarm, read_swarm
from feedmill.mixture.verbs.fit import KIND
from feedmill.storage import join_url, open_store, split_url
from feedmill.web.charts import ticks

_SIDE, _EDGE, _ROW, _WIDTH, _NAMES = 300.0, 12.0, 26.0, 1000.0, 40
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
        return round(value / top * _WIDTH, 1)

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
