"""Tables of losses by run: a CSV with a row per run, and both exports of Weights & Biases.

- A row per run: a column with the name of the run (``run``, ``run_id``, ``run_name`` or ``name``), and columns of
  numbers. So are tables of runs that W&B exports, whose columns ``Name`` and ``State`` stand beside settings.
- A chart that W&B exports: ``Step``, then ``RUN - METRIC`` of each run, and often its ``__MIN`` and ``__MAX``. The
  cells of other runs in a row are empty. The loss is the last one of the run.

A run is matched by its name, or by the name of exactly one run of the swarm within its own (``gpt-30m/run-017``).
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feedmill.errors import ConfigError, DataError, suggestion
from feedmill.jobs.reports import LeftOut
from feedmill.mixture.base import Floats
from feedmill.planning.mixing.blend import exact_weight
from feedmill.storage import open_store, split_url

_RUN = ("run", "run_name", "run_id", "name", "run name", "run id")
_ABOUT = {
    *("id", "state", "notes", "user", "tags", "created", "runtime", "sweep", "updated", "hostname"),
    *("group", "end time", "job type", "github", "host", "commit", "description"),
    *("step", "_step", "_runtime", "_timestamp", "epoch"),
}
"""Columns of W&B and of loggers that say something about the run, and are no losses."""
_OTHER = {
    *("acc", "accuracy", "bleu", "em", "f1", "mmlu", "recall", "rouge", "score"),  # higher is better
    *("perplexity", "ppl", "lr", "rate", "norm", "seed", "flops", "mfu", "params", "parameters", "size", "width"),
    *("batch", "epochs", "samples", "seconds", "steps", "throughput", "time", "tokens", "iteration", "iterations"),
    *("index", "unnamed"),  # of pandas
}
_LOSS = {"bpb", "ce", "loss", "losses", "nll"}
"""Words of names: a column with one of the first and none of the second may be no loss."""
_STEPS = ("step", "_step", "trainer/global_step")
_TIMES = ("relative time (process)", "relative time (wall)", "wall time")
_UNFINISHED = {"crashed", "failed", "killed", "running", "preempted", "preempting", "pending"}
_FAR, _BELOW = 20.0, 5.0
_SCALE = 1.4826  # times the median absolute deviation is the standard deviation of a normal distribution
_MOST = 1 << 28


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of the runs of a swarm.

    Attributes:
        runs: names of the runs, in the order of the swarm.
        metrics: the columns.
        weights: weight of each column in the mean that is minimized, float64[metrics]; they add up to 1.
        values: float64[runs, metrics].
        within: number of runs that were matched by a part of their names.
        left_out: what was left out, by reason.
    """

    runs: Sequence[str]
    metrics: Sequence[str]
    weights: Floats
    values: Floats
    within: int
    left_out: LeftOut

    @property
    def mean(self) -> Floats:
        """The weighted mean of the columns, float64[runs]."""
        mean: Floats = self.values @ self.weights
        return mean


def read_losses(
    path: str | os.PathLike[str],
    swarm: Sequence[str],
    metrics: Sequence[str] = (),
    *,
    exclude: Sequence[str] = (),
    skip: bool = False,
) -> Losses:
    """Read a table of losses and match it to the runs of a swarm.

    Args:
        path: path or URL of the table.
        swarm: names of the runs.
        metrics: columns, or ``COLUMN=WEIGHT``; by default all columns of numbers, if all may be losses.
        exclude: runs that are left out.
        skip: leave out runs that cannot be used; otherwise they are an error.

    Raises:
        DataError: the table is no CSV, or a run cannot be used: its loss is missing, not finite or far above all
            others, it did not finish, it occurs twice, or it is not of this swarm.
        ConfigError: there is no column of run names, no run has such a name, or it is unclear which columns are losses:
            by default all, unless some may be settings or scores, or have one value alone.
    """
    where = os.fspath(path)
    head, rows = _read(where)
    unknown = [name for name in exclude if name not in swarm]
    if unknown:
        raise ConfigError(
            f"--exclude names {unknown[0]!r}, which is not a run of the swarm",
            kind="bad-option",
            fix=suggestion(unknown[0], swarm, f"Its runs are {swarm[0]} to {swarm[-1]}."),
        )
    table = _chart(head, rows, where) if _is_chart(head) else _table(head, rows, where)
    names, weights = _metrics(table, metrics, head, where)
    left_out = LeftOut()
    problems: list[tuple[str, str]] = []
    found: dict[str, tuple[str, list[float]]] = {}
    within = 0
    for given, about in table.runs.items():
        run = _matched(given, swarm)
        if run is None:
            problems.append(("a run of no recipe of this swarm", given))
            continue
        if run in exclude:
            continue
        values = [about.values.get(name, math.nan) for name in names]
        reason = about.problem or _unusable(values)
        if run in found:  # which of them is right is not known
            reason = f"a second row of {run}"
            problems.append((reason, found[run][0]))
        if reason:
            problems.append((reason, given))
        else:
            within += run != given and given.removesuffix(".yaml") != run
            found.setdefault(run, (given, values))
    problems += [(reason, run) for run, reason in _diverged(found, weights).items()]
    wrong = {name for _, name in problems}
    used = [run for run in swarm if run in found and not {run, found[run][0]} & wrong]
    known = {_matched(name, swarm) for name in wrong}
    problems += [
        ("no loss of this run", run) for run in swarm if run not in found and run not in known and run not in exclude
    ]
    if problems and not skip:
        raise _refusal(problems, where)
    for reason, name in problems:
        left_out.add(reason, name)
    for name in exclude:
        left_out.add("excluded", name)
    values_of = np.array([found[run][1] for run in used], np.float64).reshape(len(used), len(names))
    return Losses(used, names, weights, values_of, within, left_out)


@dataclass(slots=True)
class _Run:
    """Values of a run by column, and why it cannot be used, if so."""

    values: dict[str, float]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Table:
    runs: dict[str, _Run]
    metrics: list[str]
    unread: Sequence[str] = ()
    """Columns without a number that may have been meant as losses: empty, or of another notation, such as 2,31."""


def _read(where: str) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and the rows."""
    folder, name = split_url(where)
    store = open_store(folder)
    size = store.stat(name).size
    if size > _MOST:
        raise DataError(f"the table has {size:,} bytes: expected one number per run and column", file=where)
    try:
        text = store.read(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("the table is not UTF-8", file=where, offset=error.start, fix="Save it as UTF-8.") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise DataError(f"this is not valid CSV: {error}", file=where, kind="bad-line") from None
    if len(rows) < 2:
        raise DataError("the table has no rows", file=where, fix="Write one row per run, with its name and its losses.")
    head = [cell.strip() for cell in rows[0]]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(head):
            raise DataError(
                f"row {number} has {len(row)} cells, the first row {len(head)}", file=where, kind="bad-line"
            )
    twice = [name for name in head if name and head.count(name) > 1]
    if twice:
        raise DataError(f"two columns are named {twice[0]!r}", file=where, kind="bad-line")
    return head, rows[1:]


def _is_chart(head: Sequence[str]) -> bool:
    return head[0].lower() in (*_STEPS, *_TIMES) and any(" - " in name for name in head[1:])


def _chart(head: Sequence[str], rows: Sequence[Sequence[str]], where: str) -> _Table:
    """Return the last value of each run and metric of a chart of W&B."""
    if head[0].lower() in _TIMES:
        raise ConfigError(
            f"the chart is over {head[0]!r}, by which runs end at different places: whether all ended is not known",
            file=where,
            kind="unsupported",
            fix="Export the chart over steps, or the table of runs.",
        )
    runs: dict[str, _Run] = {}
    ends: dict[str, float] = {}
    metrics: dict[str, None] = {}
    for at, title in enumerate(head[1:], 1):
        run, _, metric = title.rpartition(" - ")
        if not run or metric.endswith(("__MIN", "__MAX")) or metric.lower() in _ABOUT:
            continue
        metrics[metric] = None
        last = [row for row in rows if row[at].strip()]
        about = runs.setdefault(run, _Run({}))
        if last:
            about.values[metric] = _number(last[-1][at])
            ends[run] = max(ends.get(run, -math.inf), _number(last[-1][0]))
    longest = max(ends.values(), default=0.0)
    for run, end in ends.items():
        if end < longest:
            runs[run].problem = f"ends at step {end:,.0f} of {longest:,.0f}"
    return _Table(runs, list(metrics))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], where: str) -> _Table:
    """Return the values of a table with one row per run."""
    lowered = [name.lower() for name in head]
    at = next((lowered.index(name) for name in _RUN if name in lowered), None)
    if at is None:
        raise ConfigError(
            f"the table has no column with the names of the runs; its columns are {', '.join(head[:12])}",
            file=where,
            kind="bad-option",
            fix="Name the column 'run'.",
        )
    state = lowered.index("state") if "state" in lowered else None
    others = [number for number, name in enumerate(lowered) if name and number != at and name not in _ABOUT | {*_RUN}]
    numbers = [number for number in others if any(_is_number(row[number]) for row in rows)]
    texts = [number for number in others if any(row[number].strip()[:1].isalpha() for row in rows)]  # settings
    runs: dict[str, _Run] = {}
    for row in rows:
        name = row[at].strip()
        if not name:
            raise DataError("a row has no name of a run", file=where, kind="bad-line")
        about = _Run({head[number]: _number(row[number]) for number in numbers})
        if state is not None and row[state].strip().lower() in _UNFINISHED:
            about.problem = f"a run that is {row[state].strip().lower()}"
        if name in runs:
            raise DataError(
                f"the run {name!r} has several rows", file=where, kind="bad-line", fix="Keep the row of the last try."
            )
        runs[name] = about
    unread = [head[number] for number in others if number not in numbers and number not in texts]
    return _Table(runs, [head[number] for number in numbers], unread)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """Return a number; an empty cell, or one with a text, is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _metrics(table: _Table, asked: Sequence[str], head: Sequence[str], where: str) -> tuple[list[str], Floats]:
    """Return the columns of losses and their weights."""
    there = table.metrics
    if not there:
        raise ConfigError(
            f"the table has no column of losses; its columns are {', '.join(head[:12])}", file=where, kind="bad-option"
        )
    if not asked:
        about = sorted({name for name in head if name.lower() in _ABOUT and name.lower() != "step"})
        strange = [name for name in there if _words(name) & _OTHER and not _words(name) & _LOSS]
        single = [name for name in there if len({run.values.get(name) for run in table.runs.values()}) == 1]
        if table.unread or strange or (len(there) > 1 and about) or len(there) > len(single) > 0:
            why = [f"{name!r} has no numbers" for name in table.unread]
            why += [f"{name!r} is the same in every row" for name in single]
            why += [f"{name!r} may be none" for name in strange]
            raise ConfigError(
                f"it is unclear which columns are losses: {', '.join(there[:12])}"
                + (f" and {len(there) - 12:,} more" if len(there) > 12 else "")
                + (f" ({why[0]})" if why else ""),
                file=where,
                kind="ambiguous",
                fix="Name them: --metric COLUMN, or --metric COLUMN=WEIGHT; repeatable. The lowest mean is proposed.",
            )
        return list(there), np.full(len(there), 1 / len(there))
    names, weights = [], []
    for text in asked:
        name, weight = text, "1"
        if name not in there:
            name, _, weight = text.rpartition("=")
        if name not in there:
            raise ConfigError(
                f"the table has no column {text!r}",
                file=where,
                kind="bad-option",
                fix=suggestion(text, there, f"Its columns are: {', '.join(there[:20])}."),
            )
        names.append(name)
        weights.append(float(exact_weight(weight)))
    if len(set(names)) < len(names) or not sum(weights):
        raise ConfigError("a column is named twice, or all weights are 0", file=where, kind="bad-option")
    return names, np.array(weights) / sum(weights)


def _matched(given: str, swarm: Sequence[str]) -> str | None:
    """Return the run of the swarm that a name stands for."""
    name = os.path.basename(given).removesuffix(".yaml")
    if given in swarm:
        return given
    if name in swarm:
        return name
    inside = [run for run in swarm if re.search(rf"(?<![A-Za-z0-9]){re.escape(run)}(?![A-Za-z0-9])", given)]
    return inside[0] if len(inside) == 1 else None


def _unusable(values: Sequence[float]) -> str:
    if any(math.isnan(value) for value in values):
        return "a loss that is missing or NaN"
    return "" if all(map(math.isfinite, values)) else "a loss that is infinite"


def _words(name: str) -> set[str]:
    return {*re.split(r"[^a-z0-9]+", name.lower())}


def _far(losses: Floats) -> Floats:
    """Return how many standard deviations each loss is above the median, estimated from the median deviation."""
    apart = losses - np.median(losses)
    spread = _SCALE * float(np.median(np.abs(apart)))
    found: Floats = apart / spread if spread else np.zeros(len(losses))
    return found


def _diverged(found: Mapping[str, tuple[str, list[float]]], weights: Floats) -> dict[str, str]:
    """Return the runs whose loss is 20 standard deviations above the median."""
    if len(found) < 5:
        return {}
    losses = np.array([values for _, values in found.values()]) @ weights
    return {
        run: f"a loss far above the others, such as {loss:.4g} (median {np.median(losses):.4g})"
        for run, loss, far in zip(found, losses.tolist(), _far(losses).tolist(), strict=True)
        if far > _FAR
    }


def doubts(losses: Losses) -> list[str]:
    """Return notes on losses that are used, and may be wrong: those far below the others, and columns of one value."""
    mean = losses.mean
    notes = [
        f"{run} has a loss far below the others ({loss:.4g}, median {np.median(mean):.4g}), which leads the fit:"
        f" check it, or pass --exclude {run}"
        for run, loss, far in zip(losses.runs, mean.tolist(), _far(mean).tolist(), strict=True)
        if far < -_BELOW
    ]
    values, counts = np.unique(mean, return_counts=True)
    if 2 * counts.max() > len(mean):
        notes.append(
            f"{counts.max():,} of {len(mean):,} runs have the loss {values[counts.argmax()]:g}: is it rounded?"
        )
    return notes + [
        f"the losses of {name} are the same in all runs, and say nothing of mixtures"
        for name, column in zip(losses.metrics, losses.values.T, strict=True)
        if len(losses.metrics) > 1 and not np.ptp(column)
    ]


def _refusal(problems: Sequence[tuple[str, str]], where: str) -> DataError:
    by_reason: dict[str, list[str]] = {}
    for reason, name in problems:
        by_reason.setdefault(reason, []).append(name)
    listed = [
        f"{len(names):,} x {reason} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for reason, names in by_reason.items()
    ]
    return DataError(
        f"runs cannot be used: {'; '.join(listed[:6])}",
        file=where,
        kind="bad-line",
        fix="Correct the table, leave out single runs with --exclude RUN, or all of these with --on-error skip.",
    )
