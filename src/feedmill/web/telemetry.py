"""Telemetry of loaders: the JSON lines that ``Telemetry(jsonl=...)`` appends, one file for each rank or one for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.documents.wildcards import is_pattern, matches
from feedmill.errors import DataError, NotFound
from feedmill.storage import open_store, split_url

STAGES = ("fetch", "read", "transform", "collate", "transfer", "other")
"""Stages in which the loop may wait for a batch; no stage is ``other``."""
COUNTERS = (
    "batches",
    "samples",
    "wait_seconds",
    "step_seconds",
    *(f"wait_{stage}_seconds" for stage in STAGES),
    *(f"{stage}_seconds" for stage in STAGES[:-1]),
)
"""Fields that only grow while a loader lives, by column of `Series.counters`."""
_KEYS = ("time", "rank", "batches", "wait_seconds", "step_seconds")
RANK = "{rank}"
MOST_RANKS = 4096
_BUDGET, _LEAST, _LINE = 32 << 20, 32 << 10, 1 << 16  # bytes read in all, of a file at least, and of a first line

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """The reports of one rank, oldest first.

    Attributes:
        rank: its number.
        times: seconds since 1970, float64[n].
        counters: float64[n, len(COUNTERS)].
        last: the last report as it was written.
        starts: numbers of the reports with which a loader began: the counters are lower there than before.
        cut: bytes of the beginning of the file that were not read.
        skipped: lines that are no report, such as the last one while it is being written.
    """

    rank: int
    times: Floats
    counters: Floats
    last: dict[str, Any]
    starts: list[int]
    cut: int
    skipped: int


def is_telemetry(path: str) -> bool:
    """Return whether a file, a name with ``{rank}``, or a pattern has telemetry: by its first line.

    Raises `StorageError` if it cannot be read.
    """
    if RANK in path:
        return True
    if not path.endswith((".jsonl", ".json")):
        return False
    try:
        first = next(iter(_files(path)), None)
        return first is not None and _report(_head(first[0])) is not None
    except NotFound:
        return False


def read_telemetry(path: str) -> list[Series]:
    """Return the reports of each rank, by rank. Of long files only the end is read: 32 MB in all.

    Raises:
        NotFound: there is no file.
        DataError: there is no report in them, or there are more files than ranks are read.
    """
    files = list(_files(path))
    if not files:
        raise NotFound("no file of telemetry has this name", file=path, fix=f"'{RANK}' stands for the rank.")
    if len(files) > MOST_RANKS:
        raise DataError(f"there are {len(files):,} files; at most {MOST_RANKS:,} are read", file=path, kind="too-many")
    share = max(_LEAST, _BUDGET // len(files))
    reports: dict[int, list[dict[str, Any]]] = {}
    cuts: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for name, size in files:
        ranks, wrong = set(), 0
        for line in _lines(name, size, share):
            report = _report(line)
            if report is None:
                wrong += 1
                continue
            reports.setdefault(report["rank"], []).append(report)
            ranks.add(report["rank"])
        for rank in ranks:
            cuts[rank] = cuts.get(rank, 0) + max(0, size - share)
            skipped[rank] = skipped.get(rank, 0) + wrong
    if not reports:
        raise DataError("there is no report of a loader in it", file=path, kind="no-telemetry")
    return [_series(rank, reports[rank], cuts[rank], skipped[rank]) for rank in sorted(reports)]


def _series(rank: int, reports: list[dict[str, Any]], cut: int, skipped: int) -> Series:
    reports.sort(key=lambda report: float(report["time"]))
    times = np.array([report["time"] for report in reports], np.float64)
    counters = np.array([[_number(report.get(name)) for name in COUNTERS] for report in reports], np.float64)
    fell = np.flatnonzero((np.diff(counters[:, 0]) < 0) | (np.diff(counters[:, 3]) < 0)) + 1
    return Series(rank, times, counters, reports[-1], fell.tolist(), cut, skipped)


def _files(path: str) -> Iterator[tuple[str, int]]:
    """Yield the files of a path with their sizes."""
    wanted = path.replace(RANK, "*")
    if is_pattern(wanted):
        yield from ((file.name, file.size) for file, is_folder in matches(wanted) if not is_folder)
        return
    folder, name = split_url(path)
    yield path, open_store(folder).stat(name).size


def _head(path: str) -> bytes:
    folder, name = split_url(path)
    store = open_store(folder)
    return store.read(name, 0, min(_LINE, store.stat(name).size)).partition(b"\n")[0]


def _lines(path: str, size: int, most: int) -> Iterator[bytes]:
    """Yield the lines of the last `most` bytes of a file, without one that begins before them."""
    folder, name = split_url(path)
    first = max(0, size - most)
    data = open_store(folder).read(name, first, size - first)
    lines = data.split(b"\n")
    yield from (line for line in lines[1 if first else 0 :] if line.strip())


def _report(line: bytes) -> dict[str, Any] | None:
    """Return a line as a report; None if it is none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or any(not _is_number(value.get(key)) for key in _KEYS):
        return None
    return value if isinstance(value["rank"], int) and 0 <= value["rank"] < 1 << 31 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else 0.0
