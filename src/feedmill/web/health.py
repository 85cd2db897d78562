"""View 7: what `feedmill check` finds, the shards as a strip, and samples that are unlike the others."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError, defect_of
from feedmill.formats.base import Dataset
from feedmill.web.documents import Documents
from feedmill.web.library import OpenItem
from feedmill.web.parts import facts_of, next_step
from feedmill.web.state import State

MOST_CELLS, MOST_SHARDS, MOST_SHOWN = 512, 4096, 200
AUTOMATIC = 2_000_000_000
"""Bytes up to which a dataset is checked without being asked."""
MISSING = ("missing-shard", "enoent", "not-found")
CHANGED = ("hash-mismatch", "stale-index", "wrong-count", "unknown-shard", "unknown-exclude")
"""Kinds of findings by what happened to the data; all others are damage."""
SEVERITIES = ("damaged", "missing", "changed")
"""From the worst on."""
_FAR = 6.0  # deviations from the median, of the logarithms, of a sample that is unlike the others
_starting = threading.Lock()


class Checking:
    """A check that runs in a thread of its own.

    Attributes:
        report: the result as plain data, once it is there.
        seconds: how long it took, or has taken.
        number: how many checks of the dataset there were, with this one.
        samples: whether every sample is decoded.
    """

    def __init__(self, path: str, trust: bool, number: int = 1, samples: bool = False) -> None:
        self.number, self.samples = number, samples
        self.report: dict[str, Any] | None = None
        self._begin, self._took = time.monotonic(), 0.0
        self._thread = threading.Thread(target=self._run, args=(path, trust), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the check."""
        self._thread.join()

    @property
    def seconds(self) -> float:
        """Seconds that the check took, or has taken so far."""
        return self._took or time.monotonic() - self._begin

    def _run(self, path: str, trust: bool) -> None:
        from feedmill.indexing.check import check

        try:
            report = check(path, trust=trust, read_samples=self.samples, workers=1, progress=False).as_dict()
        except FeedmillError as error:
            report = {"findings": [error.as_dict()], "notes": [], "samples": 0, "shards": 0, "bytes": 0}
        except Exception as error:  # a thread has nobody else to tell
            report = {"findings": [defect_of(error).as_dict()], "notes": [], "samples": 0, "shards": 0, "bytes": 0}
        self._took = time.monotonic() - self._begin
        self.report = report


def health(thing: OpenItem, state: State, automatic: bool = True) -> dict[str, Any]:
    """Return the findings and the shards of a dataset as plain data.

    The check runs in the background: at once if the data is small and `automatic` is set, otherwise when the address
    has ``check=1``. It runs again for ``check=2`` and so on; with ``decode=1`` it decodes every sample.
    Documents without an index have no check.
    """
    dataset = thing.dataset()
    facts = facts_of(dataset)
    size = facts.get("bytes") or 0
    with _starting:
        known: Checking | None = thing.__dict__.get("_checking")
        small = automatic and size <= AUTOMATIC and not dataset.is_remote
        wanted, decode = state.number("check", 0) or 0, state.get("decode") == "1"
        if isinstance(dataset, Documents):
            begin = False
        elif known is None:
            begin = wanted > 0 or decode or small
        else:
            begin = known.report is not None and (wanted > known.number or (decode and not known.samples))
        if begin:
            number = 1 if known is None else known.number + 1
            known = thing.__dict__["_checking"] = Checking(thing.path, thing.trust, number, decode)
    report = None if known is None else known.report
    findings = [] if report is None else [{**one, "severity": severity(one["kind"])} for one in report["findings"]]
    findings.sort(key=lambda one: SEVERITIES.index(one["severity"]))
    notes = [] if report is None else report["notes"]
    show = state.choice("show", ("all", *SEVERITIES, "notes"), "all")
    shown = [finding for finding in findings if show in ("all", finding["severity"])]
    cells = _cells(thing, findings)
    for one in shown[:MOST_SHOWN]:
        one["at"] = cells["firsts"].get(_last(str(one.get("file", ""))))
    del cells["firsts"]
    return {
        "name": thing.name,
        "path": thing.path,
        "format": facts.get("format"),
        "samples": len(dataset),
        "shards": facts.get("shards"),
        "bytes": size if report is None else report["bytes"],
        "state": _state(dataset, known, report),
        "seconds": None if known is None else round(known.seconds, 1),
        "checks": 0 if known is None else known.number,
        "decoded": known is not None and known.samples,
        "show": show,
        "counts": {name: sum(finding["severity"] == name for finding in findings) for name in SEVERITIES},
        "findings": shown[:MOST_SHOWN],
        "found": len(findings),
        "more": max(0, len(shown) - MOST_SHOWN),
        "notes": notes if show in ("all", "notes") else [],
        "noted": len(notes),
        "checked": None if report is None else {k: report[k] for k in ("samples", "shards", "bytes")},
        **cells,
        "outliers": _outliers(thing),
        "next": _next(thing, _state(dataset, known, report), findings),
    }


def _next(thing: OpenItem, state: str, findings: list[dict[str, Any]]) -> dict[str, Any] | None:
    if state == "done" and findings:
        if any(finding["severity"] == "damaged" for finding in findings):
            return next_step("Drop what is damaged, and keep the rest:", code=f"feedmill edit repair {thing.path}")
        return next_step("Write the index again after you changed files:", code=f"feedmill prepare {thing.path}")
    if state == "done":
        far = next((row for row in _outliers(thing) if row["far"]), None)
        if far is not None:
            query = State([(f"f.{far['column']}", far["limit"])]).link()
            text = f"No findings. {far['far']:,} samples have far more or fewer {far['column']} than the others."
            return next_step(text, href=f"/{thing.name}/samples{query}", label="Look at them")
        return next_step("No findings: train on it.", href=f"/{thing.name}/samples", label="Look at samples")
    return None


def _state(dataset: Dataset, known: Checking | None, report: dict[str, Any] | None) -> str:
    """Return the state of the check when its `report` was read: it may end while a page is made."""
    if isinstance(dataset, Documents):
        return "documents"
    if known is None:
        return "unchecked"
    return "running" if report is None else "done"


def severity(kind: str) -> str:
    """Return what a kind of finding says of the data: damaged, missing or changed."""
    return "missing" if kind in MISSING else "changed" if kind in CHANGED else "damaged"


def _cells(thing: OpenItem, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the shards in order as ``cells``: name, first sample, samples, size from 1 to 5, and the worst finding.

    Many are grouped; a group has its worst. ``measure`` says what the size is: bytes if the index has them.
    """
    shards = thing.__dict__.get("_shards")
    if shards is None:
        shards = thing.__dict__["_shards"] = shards_of(thing.dataset())
    worst: dict[str, dict[str, Any]] = {}
    for finding in findings:  # the worst come first
        worst.setdefault(_last(str(finding.get("file", ""))), finding)
    columns = thing.columns()
    sizes = np.asarray(columns["bytes"], np.float64) if "bytes" in columns.names else None
    rows, first = [], 0
    for name, count in shards:
        bad = worst.get(_last(name))
        size = count if sizes is None else int(np.nansum(sizes[first : first + count]))
        row = {"name": name, "first": first, "count": count, "size": size}
        rows.append(row | {"bad": bad and bad["what"], "severity": bad and bad["severity"]})
        first += count
    firsts = {_last(row["name"]): row["first"] for row in rows}
    grouped = len(rows) > MOST_CELLS
    if grouped:
        groups = np.array_split(np.arange(len(rows)), MOST_CELLS)
        rows = [_group([rows[n] for n in group.tolist()]) for group in groups]
    low, high = (f(row["size"] for row in rows) if rows else 0 for f in (min, max))
    for row in rows:
        row["heat"] = 1 + min(4, int(5 * (row["size"] - low) / ((high - low) or 1)))
    return {
        "cells": rows,
        "firsts": firsts,
        "grouped": grouped,
        "unlisted": max(0, len(thing.dataset()) - first),
        "elsewhere": sum(_last(str(one.get("file", ""))) not in firsts for one in findings),
        "measure": "samples" if sizes is None else "bytes",
        "smallest": low,
        "largest": high,
    }


def shards_of(dataset: Dataset) -> list[tuple[str, int]]:
    """Return the files of a dataset in the order of its samples, with the number of samples that each holds.

    Found by bisection over `Dataset.locate`, which every format has; at most the first 4,096 files.
    """
    shards: list[tuple[str, int]] = []
    first, count = 0, len(dataset)
    while first < count and len(shards) < MOST_SHARDS:
        name = _file(dataset, first)
        low, step = first, max(1, shards[-1][1] if shards else 1)  # the next file is probably as large as the last
        while low + step < count and _file(dataset, low + step) == name:
            low, step = low + step, step * 2
        high = min(low + step, count)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _file(dataset, middle) == name else (low, middle)
        shards.append((name, high - first))
        first = high
    return shards


def _file(dataset: Dataset, number: int) -> str:
    """Return the file of a sample, also of a damaged one, whose error names it."""
    try:
        return dataset.locate(number).file
    except FeedmillError as error:
        return (error.file or "unknown").removeprefix(f"{dataset.url.rstrip('/')}/")


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    name = rows[0]["name"] if len(rows) == 1 else f"{rows[0]['name']} to {rows[-1]['name']}"
    bad = [row for row in rows if row["bad"]]
    worst = min(bad, key=lambda row: SEVERITIES.index(row["severity"]), default=rows[0])
    return {
        "name": name,
        "first": worst["first"],
        "count": sum(row["count"] for row in rows),
        "size": sum(row["size"] for row in rows),
        "bad": worst["bad"] if len(bad) < 2 else f"{len(bad):,} shards have findings; the worst: {worst['bad']}",
        "severity": worst["severity"],
    }


def _outliers(thing: OpenItem) -> list[dict[str, Any]]:
    """Return the largest and the smallest sample by each column of the index, and how many are far from the median."""
    columns, dataset = thing.columns(), thing.dataset()
    known: list[dict[str, Any]] | None = thing.__dict__.get("_outliers")
    if known is not None:
        return known
    outliers = []
    for name in columns.names:
        values = np.asarray(columns[name], np.float64)
        finite = values[np.isfinite(values)]
        if len(finite) < 2 or finite.min() == finite.max():
            continue
        median = float(np.median(finite))
        low, high = _limits(finite)
        ends = (
            ("largest", int(np.nanargmax(values)), finite > high),
            ("smallest", int(np.nanargmin(values)), finite < low),
        )
        for what, number, far in ends:
            outliers.append(
                {
                    "column": name,
                    "what": what,
                    "index": number,
                    "key": _key(dataset, number),
                    "value": columns.at(number)[name],
                    "median": median,
                    "far": int(far.sum()),
                    "limit": f"{_round(high)}:" if what == "largest" else f":{_round(low)}",
                }
            )
    thing.__dict__["_outliers"] = outliers
    return outliers


def _limits(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the values beyond which a sample is unlike the others: six median deviations.

    They are deviations of the logarithms if all values are positive.
    """
    log = bool(values.min() > 0)
    scale = np.log(values) if log else values
    middle = float(np.median(scale))
    width = _FAR * max(float(np.median(np.abs(scale - middle))), 1e-3 * (1 if log else abs(middle) or 1))
    low, high = middle - width, middle + width
    return (float(np.exp(low)), float(np.exp(min(high, 700.0)))) if log else (low, high)


def _round(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _key(dataset: Dataset, number: int) -> str:
    try:
        return dataset.locate(number).key
    except FeedmillError:
        return f"sample {number:,}"
