"""View 7: what `feedmill check` finds, and the shards as a strip."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from feedmill.errors import FeedmillError, defect_of
from feedmill.web.library import Thing
from feedmill.web.state import State

MOST_CELLS, MOST_SHOWN = 512, 200
AUTOMATIC = 2_000_000_000
"""Bytes up to which a dataset is checked without being asked."""
_starting = threading.Lock()


class Checking:
    """A check that runs in a thread of its own.

    Attributes:
        report: the result as plain data, once it is there.
        seconds: how long it took, or has taken.
    """

    def __init__(self, path: str, trust: bool) -> None:
        self.report: dict[str, Any] | None = None
        self._begin, self._took = time.monotonic(), 0.0
        threading.Thread(target=self._run, args=(path, trust), daemon=True).start()

    @property
    def seconds(self) -> float:
        return self._took or time.monotonic() - self._begin

    def _run(self, path: str, trust: bool) -> None:
        from feedmill.indexing.check import check

        try:
            report = check(path, trust=trust, workers=1, progress=False).as_dict()
        except FeedmillError as error:
            report = {"findings": [error.as_dict()], "notes": [], "samples": 0, "shards": 0, "bytes": 0}
        except Exception as error:  # a thread has nobody else to tell
            report = {"findings": [defect_of(error).as_dict()], "notes": [], "samples": 0, "shards": 0, "bytes": 0}
        self._took = time.monotonic() - self._begin
        self.report = report


def health(thing: Thing, state: State) -> dict[str, Any]:
    """Return the findings and the shards of a dataset as plain data.

    The check runs in the background: at once if the data is small, otherwise when the address has ``check=1``.
    """
    dataset = thing.dataset()
    facts = dataset.describe()
    size = facts.get("bytes") or 0
    with _starting:
        known: Checking | None = thing.__dict__.get("_checking")
        wanted = state.get("check") == "1" or (size <= AUTOMATIC and not dataset.is_remote)
        if known is None and wanted:
            known = thing.__dict__["_checking"] = Checking(thing.path, thing.trust)
    report = None if known is None else known.report
    findings = [] if report is None else report["findings"]
    return {
        "name": thing.name,
        "path": thing.path,
        "format": facts.get("format"),
        "samples": len(dataset),
        "shards": facts.get("shards"),
        "bytes": size,
        "state": "unchecked" if known is None else "running" if report is None else "done",
        "seconds": None if known is None else round(known.seconds, 1),
        "findings": findings[:MOST_SHOWN],
        "more": max(0, len(findings) - MOST_SHOWN),
        "notes": [] if report is None else report["notes"],
        "checked": None if report is None else {k: report[k] for k in ("samples", "shards", "bytes")},
        "cells": _cells(thing, findings),
        "outliers": _outliers(thing, state),
    }


def _cells(thing: Thing, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the shards in order: name, samples, bytes, a size from 1 to 5, and the first finding."""
    dataset = thing.dataset()
    shards = list(getattr(dataset, "shards", ()))
    damaged: dict[str, str] = {}
    for finding in findings:
        name = str(finding.get("file", "")).rpartition("/")[2]
        damaged.setdefault(name, finding["what"])
    rows = []
    for shard in shards:
        path = str(getattr(shard, "path", getattr(shard, "name", shard)))
        count = getattr(shard, "samples", getattr(shard, "documents", getattr(shard, "count", None)))
        rows.append(
            {"name": path, "count": None if count is None else int(count), "bad": damaged.get(path.rpartition("/")[2])}
        )
    if len(rows) > MOST_CELLS:
        groups = np.array_split(np.arange(len(rows)), MOST_CELLS)
        rows = [_group([rows[n] for n in group.tolist()]) for group in groups]
    counts = np.array([row["count"] or 0 for row in rows])
    top = counts.max() if len(counts) else 0
    for row, count in zip(rows, counts.tolist(), strict=True):
        row["heat"] = 1 + min(4, int(5 * count / (top + 1))) if top else 1
    return rows


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts = [row["count"] for row in rows if row["count"] is not None]
    bad = next((row["bad"] for row in rows if row["bad"]), None)
    name = rows[0]["name"] if len(rows) == 1 else f"{rows[0]['name']} to {rows[-1]['name']}"
    return {"name": name, "count": sum(counts) if counts else None, "bad": bad}


def _outliers(thing: Thing, state: State) -> list[dict[str, Any]]:  # noqa: ARG001
    """Return the largest and the smallest samples by each column of the index."""
    columns, dataset = thing.columns(), thing.dataset()
    found = []
    for name in columns.names:
        values = columns[name]
        if len(values) < 2 or values.min() == values.max():
            continue
        for what, number in (("largest", int(np.argmax(values))), ("smallest", int(np.argmin(values)))):
            found.append(
                {
                    "column": name,
                    "what": what,
                    "index": number,
                    "key": dataset.locate(number).key,
                    "value": int(values[number]),
                    "median": float(np.median(values)),
                }
            )
    return found
