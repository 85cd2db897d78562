"""Logs of runs: loss logs (CSV, JSON lines, TensorBoard) with the spikes in them, the telemetry of loaders, and the
events of jobs (`feedmill.jobs.events`).

Telemetry is the JSON lines that ``Telemetry(jsonl=...)`` appends, one file for each rank or one for all.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.documents.find import is_pattern, matches
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.csv_rows import csv_rows
from feedmill.jobs.events import PART, Units, is_event
from feedmill.storage import open_store, split_url

MOST = 64 << 20
"""Bytes of a log that are read."""
_STEP = ("step", "global_step", "iteration", "iter", "_step")
_LOSS = ("loss", "train_loss", "train/loss", "lm loss", "training_loss", "reduced_train_loss", "value")
_WINDOW, _FAR = 21, 6.0  # steps around, and deviations from their median, of a spike


@dataclass(frozen=True, slots=True)
class Losses:
    """A loss log: its name, steps int64[n] in rising order, and losses float64[n]; lines that were left out."""

    name: str
    steps: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    skipped: int = 0

    def spikes(self, most: int = 50) -> list[int]:
        """Return the steps whose loss rises far above its neighborhood, the highest of each rise, at most `most`.

        A loss is far above if it exceeds the median of the 21 around it by six median absolute deviations.
        """
        if len(self.losses) < _WINDOW:
            return []
        half = _WINDOW // 2
        padded = np.pad(self.losses, half, mode="edge")
        around = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)
        middle = np.median(around, axis=1)
        spread = np.median(np.abs(around - middle[:, None]), axis=1)
        height = (self.losses - middle) / np.maximum(spread, 0.002 * np.abs(middle) + 1e-9)
        steps: list[int] = []
        far = height > _FAR
        starts = np.flatnonzero(far & ~np.concatenate(([False], far[:-1])))
        for start in starts.tolist():
            end = start
            while end < len(far) and far[end]:
                end += 1
            steps.append(start + int(np.argmax(height[start:end])))
        strongest = sorted(steps, key=lambda at: -height[at])[:most]
        return sorted(int(self.steps[at]) for at in strongest)

    def at(self, step: int) -> float | None:
        """Return the loss of a step; None if the log does not have it."""
        place = int(np.searchsorted(self.steps, step))
        return float(self.losses[place]) if place < len(self.steps) and self.steps[place] == step else None


def read_losses(url: str) -> Losses:
    """Read a loss log by path or URL.

    Raises:
        NotFound: there is no such file.
        DataError: it has no steps and losses.
    """
    folder, name = split_url(url)
    store = open_store(folder)
    size = store.stat(name).size
    if size > MOST:
        raise DataError(f"the log has {size:,} bytes; at most {MOST:,} are read", file=url, kind="too-large")
    return parse_losses(store.read(name), os.path.basename(name), url)


def parse_losses(data: bytes, name: str, where: str | None = None) -> Losses:
    """Return the losses of a log: TensorBoard events, JSON lines, or CSV with a header or with two columns.

    Raises:
        DataError: it has no steps and losses.
    """
    where = where or name
    rows: list[tuple[int, float]] = []
    skipped = 0
    for step, loss in _pairs(data, where):
        if step is None or loss is None or not math.isfinite(loss):
            skipped += 1
        else:
            rows.append((step, loss))
    if not rows:
        fix = f"Use CSV or JSON lines with the columns {_STEP[0]} and {_LOSS[0]}, or TensorBoard's event file."
        raise DataError("there are no steps with a loss in this log", file=where, kind="bad-log", fix=fix)
    last = dict(rows)  # of a step that was logged twice, the later one
    steps = np.array(sorted(last), np.int64)
    return Losses(name, steps, np.array([last[step] for step in steps.tolist()]), skipped)


def _pairs(data: bytes, where: str) -> Iterator[tuple[int | None, float | None]]:
    if len(data) >= 12 and _is_events(data):
        yield from _events(data)
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise DataError("the log is neither text nor TensorBoard's events", file=where, kind="bad-log") from None
    if text.lstrip().startswith("{"):
        yield from _json_lines(text)
    else:
        yield from _csv(text)


def _json_lines(text: str) -> Iterator[tuple[int | None, float | None]]:
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            yield None, None
            continue
        if isinstance(row, dict):
            yield _whole(_first(row, _STEP)), _real(_first(row, _LOSS))


def _csv(text: str) -> Iterator[tuple[int | None, float | None]]:
    try:
        rows = [row for row in csv_rows(io.StringIO(text, newline=""), 1 << 20) if row]
    except csv.Error:
        return
    if not rows:
        return
    header = [cell.strip().lower() for cell in rows[0]]
    step = next((header.index(name) for name in _STEP if name in header), None)
    loss = next((header.index(name) for name in _LOSS if name in header), None)
    if step is None and loss is None and len(header) == 2 and _real(header[1]) is not None:
        step, loss = 0, 1
    elif step is None or loss is None:
        return
    else:
        rows = rows[1:]
    for row in rows:
        inside = len(row) > max(step, loss)
        yield (_whole(row[step]), _real(row[loss])) if inside else (None, None)


def _first(row: dict[str, object], names: tuple[str, ...]) -> object:
    return next((row[name] for name in names if name in row), None)


def _whole(value: object) -> int | None:
    number = _real(value)
    return int(number) if number is not None and number.is_integer() and 0 <= number < 1 << 53 else None


def _real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


# TensorBoard's file is a sequence of records: length, its checksum, an Event message, its checksum. The few fields that
# are needed are read from the wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding/


def _is_events(data: bytes) -> bool:
    (length,) = struct.unpack_from("<Q", data)
    return 0 < length <= len(data) - 16 and b"brain.Event" in data[12 : 12 + length]


def _events(data: bytes) -> Iterator[tuple[int | None, float | None]]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = data[at + 12 : at + 12 + length]
        at += 16 + length
        if len(event) < length:
            return  # the last record is still being written
        try:
            fields = dict(_fields(event))
            if 5 not in fields:
                continue
            for number, value in _fields(_bytes(fields[5])):
                if number == 1:
                    yield from _scalar(_bytes(value), _integer(fields.get(2, 0)))
        except (ConfigError, IndexError, struct.error):
            yield None, None


def _scalar(value: bytes, step: int) -> Iterator[tuple[int | None, float | None]]:
    fields = dict(_fields(value))
    tag = _bytes(fields.get(1, b"")).decode("utf-8", "replace").lower()
    if tag not in _LOSS and not tag.endswith(("/loss", "_loss", "-loss", " loss")):
        return
    if 2 in fields:  # simple_value
        yield step, struct.unpack("<f", _bytes(fields[2]))[0]
    elif 8 in fields:  # a tensor of one number
        tensor = dict(_fields(_bytes(fields[8])))
        raw = _bytes(tensor.get(4, tensor.get(5, b"")))
        yield step, struct.unpack("<f", raw[:4])[0] if len(raw) >= 4 else None


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
        if size < 0 or at + size > len(data):
            raise ConfigError("the event is damaged")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise ConfigError("the event is damaged")


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ConfigError("the event is damaged")
    return value


def _integer(value: bytes | int) -> int:
    if not isinstance(value, int):
        raise ConfigError("the event is damaged")
    return value


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
        accounts: the last report with the accounts of sources; None if there is none.
    """

    rank: int
    times: Floats
    counters: Floats
    last: dict[str, Any]
    starts: list[int]
    cut: int
    skipped: int
    accounts: dict[str, Any] | None = None


def is_telemetry(path: str) -> bool:
    """Return whether a file, a name with ``{rank}``, or a pattern has telemetry: by its first line.

    Raises `StorageError` if it cannot be read.
    """
    return RANK in path or _begins(path, lambda line: _report(line) is not None)


def _begins(path: str, is_of: Callable[[bytes], bool]) -> bool:
    """Return whether the first line of a file is of this kind."""
    if not path.endswith((".jsonl", ".json")):
        return False
    try:
        first = next(iter(_files(path)), None)
        return first is not None and is_of(_head(first[0]))
    except (NotFound, orjson.JSONDecodeError):
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
        raise DataError(f"there are {len(files):,} files; at most {MOST_RANKS:,} are read", file=path, kind="too-large")
    share = max(_LEAST, _BUDGET // len(files))
    reports: dict[int, list[dict[str, Any]]] = {}
    accounts: dict[int, dict[str, Any]] = {}
    cuts: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for name, size in files:
        ranks, wrong = set(), 0
        for line in _lines(name, size, share):
            report = _report(line)
            if report is None:
                wrong += 1
                continue
            rank = report["rank"]
            reports.setdefault(rank, []).append(report)
            sources = report.pop("sources", None)  # those of one report are kept: there may be thousands of cells
            if _are_accounts(sources) and report["time"] >= accounts.get(rank, report)["time"]:
                accounts[rank] = {**report, "sources": sources}
            ranks.add(report["rank"])
        for rank in ranks:
            cuts[rank] = cuts.get(rank, 0) + max(0, size - share)
            skipped[rank] = skipped.get(rank, 0) + wrong
    if not reports:
        raise DataError("there is no report of a loader in it", file=path, kind="bad-log")
    return [_series(rank, reports[rank], cuts[rank], skipped[rank], accounts.get(rank)) for rank in sorted(reports)]


def _are_accounts(sources: Any) -> bool:
    """Return whether these are accounts of sources: names, and figures."""
    return (
        isinstance(sources, list)
        and bool(sources)
        and all(
            isinstance(row, dict)
            and isinstance(row.get("name"), str)
            and _is_number(row.get("used"))
            and all(isinstance(value, bool) or _is_number(value) for key, value in row.items() if key != "name")
            for row in sources
        )
    )


def _series(
    rank: int, reports: list[dict[str, Any]], cut: int, skipped: int, accounts: dict[str, Any] | None
) -> Series:
    reports.sort(key=lambda report: float(report["time"]))
    times = np.array([report["time"] for report in reports], np.float64)
    counters = np.array([[_float_or_zero(report.get(name)) for name in COUNTERS] for report in reports], np.float64)
    fell = np.flatnonzero((np.diff(counters[:, 0]) < 0) | (np.diff(counters[:, 3]) < 0)) + 1
    return Series(rank, times, counters, reports[-1], fell.tolist(), cut, skipped, accounts)


def _files(path: str) -> Iterator[tuple[str, int]]:
    """Yield the files of a path with their sizes."""
    wanted = path.replace(RANK, "*").replace(PART, "*")
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


def _float_or_zero(value: Any) -> float:
    return float(value) if _is_number(value) else 0.0


_AT_ONCE, _PIECE = 64 << 20, 8 << 20  # bytes of events that are read for a page at most, and at a time
_STAGES, _NODES, _LAST = 200, 200, 50  # that are kept: stages, nodes of each, failures and warnings


def is_job(path: str) -> bool:
    """Return whether a file, or a name with ``{part}``, has events of jobs.

    Raises `StorageError` if it cannot be read.
    """
    return PART in path or _begins(path, lambda line: is_event(orjson.loads(line)))


class JobStage:
    """A stage as its events describe it."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        total, part, parts = (
            value if isinstance(value := event.get(name), int) and not isinstance(value, bool) else None
            for name in ("units", "part", "parts")
        )
        self.at = self.begun = float(event["time"])
        self.units = Units(
            str(event.get("name")),
            verb=str(event.get("verb") or ""),
            engine=str(event.get("engine") or ""),
            total=total,
            part=part,
            parts=parts,
            clock=self._clock,
        )
        self.live = False
        self.nodes: dict[str, list[float]] = {}
        self.run, self.node, self.process = str(event["run"]), event.get("node"), event.get("process")

    def _clock(self) -> float:
        return max(self.at, time.time()) if getattr(self, "live", False) and not self.units.ended else self.at

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event of a unit."""
        what, unit, units = event["event"], event.get("unit"), self.units
        node, process = event.get("node"), event.get("process")
        count, names, seconds = int(event.get("count", 1)), event.get("names") or [], float(event.get("seconds") or 0)
        if count < 1 or not isinstance(names, list) or not 0 <= seconds < math.inf:
            raise ValueError("no event of a unit")
        self.at = max(self.at, float(event["time"]))
        units.tick()
        if what == "unit-begins":
            units.begin(unit, number=unit, count=count, names=names)
            units.start(unit, node, process)
        elif what == "unit-place":
            units.start(unit, node, process)
        elif what == "unit-ends":
            units.end(unit, event.get("seconds"), node, process)
            if node is not None and (node in self.nodes or len(self.nodes) < _NODES):
                found = self.nodes.setdefault(str(node), [0, 0.0])
                found[0] += count
                found[1] += seconds
        elif what == "unit-retried":
            units.second(unit) if event.get("beside") else units.retry(unit, "")
        elif what == "unit-failed":
            units.fail(unit, "")
        elif what == "unit-late":
            units.lates += 1
        elif what == "stage-ends":
            why = event.get("why")
            units.close(None if why is None else str(why))


class Jobs:
    """What the files of events at a path say, as far as they were read; what is appended later is added by `look`.

    Of finished units only counts are kept.

    Args:
        path: of a file, or with ``{part}``, or a pattern.
    """

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._read: dict[str, int] = {}
        self.stages: dict[tuple[str, str], JobStage] = {}
        self.failures: deque[dict[str, Any]] = deque(maxlen=_LAST)
        self.warnings: deque[dict[str, Any]] = deque(maxlen=_LAST)
        self.failed = self.warned = self.skipped = self.events = self.dropped = 0
        self.last = 0.0
        self.heard: dict[str, float] = {}
        """Run -> time of its last event."""

    def look(self) -> float:
        """Read what was appended, at most 64 MB; return the share of the files that was read.

        Raises:
            NotFound: there is no file.
            DataError: there are no events in them.
        """
        with self._lock:
            files = list(_files(self._path))
            if not files:
                raise NotFound("no file of events has this name", file=self._path, fix=f"{PART!r} stands for the part.")
            if any(size < self._read.get(name, 0) for name, size in files):  # a file was replaced
                self._forget()
            left = _AT_ONCE
            for name, size in files:
                left -= self._read_on(name, size, left)
            if not self.events and left > 0:
                raise DataError("there are no events of units in it", file=self._path, kind="bad-log")
            return sum(self._read.values()) / max(1, sum(size for _, size in files))

    def _read_on(self, path: str, size: int, most: int) -> int:
        folder, name = split_url(path)
        store, first = open_store(folder), self._read.get(path, 0)
        at = first
        while at < size and at - first < most:
            data = store.read(name, at, min(_PIECE, size - at))
            whole = data.rfind(b"\n") + 1
            if not whole:
                break  # the last line is being written, or none ends in a piece
            for line in data[:whole].split(b"\n"):
                if line.strip():
                    self._add(line)
            at += whole
        self._read[path] = at
        return at - first

    def _add(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
            if not is_event(event):
                raise ValueError("no event")
            key = str(event["run"]), str(event["stage"])
            if event["event"] == "stage-begins":
                self.stages[key] = JobStage(event)
                if len(self.stages) > _STAGES:
                    gone = self.stages.pop(next(iter(self.stages)))
                    self.dropped += 1
                    if all(stage.run != gone.run for stage in self.stages.values()):
                        del self.heard[gone.run]
            elif key in self.stages:
                self.stages[key].add(event)
            elif not self.dropped:
                raise LookupError("its stage is unknown: the line with which it began is damaged or missing")
        except (ValueError, TypeError, LookupError):
            self.skipped += 1
            return
        self.events += 1
        self.last = max(self.last, float(event["time"]))
        if key in self.stages:
            self.heard[key[0]] = max(self.heard.get(key[0], 0.0), float(event["time"]))
        if event["event"] in ("unit-failed", "unit-log"):
            is_failure = event["event"] == "unit-failed"
            names = event.get("names") or [f"unit {event.get('unit')}"]
            text = str(event.get("why" if is_failure else "text"))
            row = {"stage": str(event["stage"]), "unit": ", ".join(map(str, names)), "node": event.get("node")}
            (self.failures if is_failure else self.warnings).append(row | {"text": text[:2000]})
            self.failed += is_failure
            self.warned += not is_failure
