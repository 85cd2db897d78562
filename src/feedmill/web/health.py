"""View 7: what `feedmill check` finds, and the shards as a strip."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from feedmill.errors import FeedmillError, defect_of
from feedmill.formats.base import Dataset
from feedmill.web.library import Thing
from feedmill.web.state import State

MOST_CELLS, MOST_SHARDS, MOST_SHOWN = 512, 4096, 200
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
        self._thread = threading.Thread(target=self._run, args=(path, trust), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the check."""
        self._thread.join()

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


def health(thing: Thing, state: State, automatic: bool = True) -> dict[str, Any]:
    """Return the findings and the shards of a dataset as plain data.

    The check runs in the background: at once if the data is small and `automatic` is set, otherwise when the address
    has ``check=1``.
    """
    dataset = thing.dataset()
    facts = dataset.describe()
    size = facts.get("bytes") or 0
    with _starting:
        known: Checking | None = thing.__dict__.get("_checking")
        small = automatic and size <= AUTOMATIC and not dataset.is_remote
        wanted = state.get("check") == "1" or small
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
    """Return the shards in order: name, samples, a size from 1 to 5, and the first finding. Many are grouped."""
    shards = thing.__dict__.get("_shards")
    if shards is None:
        shards = thing.__dict__["_shards"] = shards_of(thing.dataset())
    damaged: dict[str, str] = {}
    for finding in findings:
        damaged.setdefault(_last(str(finding.get("file", ""))), finding["what"])
    rows: list[dict[str, Any]] = [
        {"name": name, "count": count, "bad": damaged.get(_last(name))} for name, count in shards
    ]
    if len(rows) > MOST_CELLS:
        groups = np.array_split(np.arange(len(rows)), MOST_CELLS)
        rows = [_group([rows[n] for n in group.tolist()]) for group in groups]
    top = max((row["count"] for row in rows), default=0)
    for row in rows:
        row["heat"] = 1 + min(4, 5 * row["count"] // (top + 1))
    return rows


def shards_of(dataset: Dataset) -> list[tuple[str, int]]:
    """Return the files of a dataset in the order of its samples, with the number of samples that each holds.

    Found by bisection over `Dataset.locate`, which every format has; at most the first 4,096 files.
    """
    found: list[tuple[str, int]] = []
    first, count = 0, len(dataset)
    while first < count and len(found) < MOST_SHARDS:
        name = _file(dataset, first)
        low, step = first, max(1, found[-1][1] if found else 1)  # the next file is probably as large as the last
        while low + step < count and _file(dataset, low + step) == name:
            low, step = low + step, step * 2
        high = min(low + step, count)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _file(dataset, middle) == name else (low, middle)
        found.append((name, high - first))
        first = high
    return found


def _file(dataset: Dataset, number: int) -> str:
    """Return the file of a sample, also of a damaged one, whose error names it."""
    try:
        return dataset.locate(number).file
    except FeedmillError as error:
        return (error.file or "unknown").removeprefix(f"{dataset.url.rstrip('/')}/")


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    bad = next((row["bad"] for row in rows if row["bad"]), None)
    name = rows[0]["name"] if len(rows) == 1 else f"{rows[0]['name']} to {rows[-1]['name']}"
    return {"name": name, "count": sum(row["count"] for row in rows), "bad": bad}


def _outliers(thing: Thing, state: State) -> list[dict[str, Any]]:  # noqa: ARG001
    """Return the largest and the smallest samples by each column of the index."""
    columns, dataset = thing.columns(), thing.dataset()
    found = []
    for name in columns.names:
        values = columns[name]
        known = values[np.isfinite(values)]
        if len(known) < 2 or known.min() == known.max():
            continue
        for what, number in (("largest", int(np.nanargmax(values))), ("smallest", int(np.nanargmin(values)))):
            found.append(
                {
                    "column": name,
                    "what": what,
                    "index": number,
                    "key": _key(dataset, number),
                    "value": columns.at(number)[name],
                    "median": float(np.median(known)),
                }
            )
    return found


def _key(dataset: Dataset, number: int) -> str:
    try:
        return dataset.locate(number).key
    except FeedmillError:
        return f"sample {number:,}"
