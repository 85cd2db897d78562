"""Forecast what a plan reads: tokens, bytes and epochs per source, and the mixture over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.planning import bounds
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.planning.report import PackedReport, Report, used_of

_ROWS = 64


@dataclass(frozen=True, slots=True)
class Need:
    """Draws of a budget from one source.

    Attributes:
        name: the source's name.
        tokens: tokens in the dataset; None if its index has no lengths.
        drawn_tokens: samples drawn times the mean length of those used; None without lengths or budget.
        drawn_bytes: estimate of the bytes read: samples drawn times the mean sample size, which is the size of the
            files divided by their samples; of packed rows, their tokens times the mean size of a token. Savings by a
            cache or by coalesced reads are not included. None if the size is unknown.
        epochs: passes over the source that the budget begins; None for an endless plan without a budget.
    """

    name: str
    tokens: int | None
    drawn_tokens: int | None
    drawn_bytes: int | None
    epochs: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "tokens": self.tokens,
            "drawn_tokens": self.drawn_tokens,
            "drawn_bytes": self.drawn_bytes,
            "epochs": self.epochs,
        }


def needs(plan: Plan, samples: int | None) -> list[Need]:
    """Return what the first `samples` positions draw from each source; None for the whole plan."""
    report = plan.report(samples)
    total = documents(report)
    epochs = {} if total is None else bounds.reaches(plan.node, total)
    out = []
    for number, (name, dataset) in enumerate(zip(plan.names, plan.sources, strict=True)):
        count, given, own = report.sources[number].drawn, report.sources[number].tokens, dataset.total("tokens")
        size = _mean_bytes(dataset)
        if isinstance(report, PackedReport) and size is not None and own and given is not None:
            # A row holds pieces of documents: what it reads is as large as its tokens.
            count, size = given, size * len(dataset) / own
        out.append(
            Need(
                name,
                own,
                given,
                None if size is None or count is None else round(count * size),
                epochs.get(number),
            )
        )
    return out


def documents(found: Report) -> int | None:
    """Return how many positions of the plan's node a report covers; for a packed plan, the documents of its rows."""
    return found.documents if isinstance(found, PackedReport) else found.total


def samples_for_tokens(plan: Plan, tokens: int) -> int:
    """Return the smallest number of samples with at least `tokens` tokens, by the mean lengths of the sources.

    Raises:
        ConfigError: a source's lengths are unknown, or the plan is too short.
    """
    for name, dataset in zip(plan.names, plan.sources, strict=True):
        if dataset.total("tokens", 0, 0) is None:
            raise ConfigError(
                f"the index of {name} has no lengths in tokens",
                file=dataset.url,
                kind="no-costs",
                fix="Give the budget as --samples or --steps, or use a tokenized dataset.",
            )
    most = LONGEST if plan.length is None else plan.length
    low, high = 0, 1
    while _tokens_of(plan, high) < tokens:
        if high == most:
            raise ConfigError(
                f"{tokens:,} tokens are requested, the plan's {high:,} samples have fewer",
                kind="bad-option",
                fix="Request fewer tokens, or allow more repeats.",
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _tokens_of(plan, middle) >= tokens else (middle, high)
    return high


def _tokens_of(plan: Plan, samples: int) -> int:
    """Return the tokens of the first positions: exact for packed rows, otherwise by the mean lengths of the sources."""
    report = plan.report(samples)
    if isinstance(report, PackedReport):
        return report.tokens or 0
    return sum(source.tokens or 0 for source in report.sources)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The mixture over time.

    Attributes:
        names: the sources.
        ends: int64[windows], the position after each window.
        shares: float64[windows, sources], each source's share of the window, in the unit of the recipe's weights
            (`Report.unit`).
        epochs: float64[windows, sources], cumulative passes over each source's samples; of packed rows, of the
            documents that were read to fill them.
    """

    names: Sequence[str]
    ends: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    epochs: npt.NDArray[np.float64]


def mixture(plan: Plan, samples: int, windows: int = 200) -> Mixture:
    """Return the mixture in equal windows over the first `samples` positions; computed from the plan, not sampled.

    What samples are in another unit is the mean of their source. Of packed rows, the tokens or the documents that begin
    in up to 64 rows of each window are counted: a row may hold documents that were read long before it.

    Raises:
        ConfigError: `samples` is less than 1.
    """
    if samples < 1:
        raise ConfigError("there is no mixture of 0 samples", kind="bad-option", fix="Give a budget of at least 1.")
    windows = max(1, min(windows, samples // 50))
    ends = [samples * (i + 1) // windows for i in range(windows)]
    counts = np.zeros((windows + 1, len(plan.sources)))
    for row, end in enumerate(ends):
        counts[row + 1] = plan.drawn(end)
    in_tokens = plan.units is not None and plan.units.unit in ("tokens", LOSS_TOKENS)
    per_window = np.diff(counts, axis=0)
    if isinstance(plan, PackedPlan):
        per_window = _in_rows_of_windows(plan, ends, in_tokens=in_tokens)
    if plan.units is not None and not (in_tokens and isinstance(plan, PackedPlan)):
        per_window = per_window * [float(plan.units.mean_where_known(node) or 0) for node in used_of(plan.node)]
    used = np.array([source.used for source in plan.report(0).sources])
    shares = per_window / np.maximum(per_window.sum(axis=1, keepdims=True), 1)
    return Mixture(plan.names, np.array(ends, np.int64), shares, counts[1:] / used)


def _in_rows_of_windows(plan: PackedPlan, ends: Sequence[int], *, in_tokens: bool) -> npt.NDArray[np.float64]:
    """Return what of each source is in some rows of each window, float64[windows, sources].

    Args:
        in_tokens: tokens, or loss tokens if weights count these; else the documents that begin in the rows.
    """
    firsts = [0, *ends[:-1]]
    chosen = [
        np.unique(np.linspace(a, b - 1, min(_ROWS, b - a)).astype(np.int64)) for a, b in zip(firsts, ends, strict=True)
    ]
    spans = plan.locate_spans(np.concatenate(chosen))
    window = np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen])
    of_spans = np.repeat(window, np.diff(spans.spans.row_offsets))
    found = np.zeros((len(chosen), len(plan.sources)))
    amounts = plan.amounts(spans) if in_tokens else spans.spans.start == 0
    np.add.at(found, (of_spans, spans.located.source), amounts)
    return found


def _mean_bytes(dataset: Dataset) -> float | None:
    """Return bytes per sample from the size of the files, which also hold the samples that a split excludes."""
    facts = dataset.describe()
    size, samples = facts.get("bytes"), (facts.get("samples") or 0) + (facts.get("excluded") or 0)
    return None if size is None or not samples else size / samples
