"""What a plan will take: tokens and bytes per source, proofs of `max_repeats`, and the mixture over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.planning import bounds
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.plan import Plan
from feedmill.planning.report import PackedReport, Report


@dataclass(frozen=True, slots=True)
class Need:
    """One source's part in a budget.

    Attributes:
        name: the source's name.
        tokens: tokens in the dataset; None if its index knows no lengths.
        drawn_tokens: tokens drawn: samples drawn times the mean length of those used. None without lengths or budget.
        drawn_bytes: bytes read: samples drawn times its mean size, the size of its files over their samples. An
            estimate, without what a cache or reading neighbours together saves. None if the size is not known.
        epochs: passes over it that the budget begins; None for an endless plan without a budget.
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
    """Return what the first `samples` positions take of each source; None if the plan has no end and no budget."""
    found = plan.report(samples)
    total = documents(found)
    epochs = {} if total is None else bounds.reaches(plan.node, total)
    out = []
    for number, (name, dataset) in enumerate(zip(plan.names, plan.sources, strict=True)):
        count, size = found.sources[number].drawn, _mean_bytes(dataset)
        out.append(
            Need(
                name,
                _tokens(dataset),
                found.sources[number].tokens,
                None if size is None or count is None else round(count * size),
                epochs.get(number),
            )
        )
    return out


def documents(found: Report) -> int | None:
    """Return how many positions of a plan's node a report is about: of a packed plan, the documents of its rows."""
    return found.documents if isinstance(found, PackedReport) else found.total


def samples_for_tokens(plan: Plan, tokens: int) -> int:
    """Return the fewest samples that give at least this many tokens, by the mean lengths of the sources.

    Raises:
        ConfigError: a source's lengths are not known, or the plan is too short.
    """
    for name, dataset in zip(plan.names, plan.sources, strict=True):
        if dataset.lengths is None:
            raise ConfigError(
                f"the index of {name} knows no lengths in tokens",
                file=dataset.url,
                kind="no-lengths",
                fix="Give the budget as --samples or --steps; tokenized datasets know their lengths.",
            )
    most = LONGEST if plan.length is None else plan.length
    low, high = 0, 1
    while _tokens_of(plan, high) < tokens:
        if high == most:
            raise ConfigError(
                f"{tokens:,} tokens are asked for, the plan's {high:,} samples have fewer",
                kind="bad-budget",
                fix="Ask for fewer tokens, or allow more repeats.",
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _tokens_of(plan, middle) >= tokens else (middle, high)
    return high


def _tokens_of(plan: Plan, samples: int) -> int:
    """Tokens of the first positions: counted in packed rows, by the mean lengths of the sources elsewhere."""
    found = plan.report(samples)
    if isinstance(found, PackedReport):
        return found.tokens or 0
    return sum(source.tokens or 0 for source in found.sources)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The mixture over time.

    Attributes:
        names: the sources.
        ends: int64[windows], the position after each window.
        shares: float64[windows, sources], each source's share of the window's samples.
        epochs: float64[windows, sources], how often each source was given so far, in passes over its samples.
    """

    names: Sequence[str]
    ends: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    epochs: npt.NDArray[np.float64]


def mixture(plan: Plan, samples: int, windows: int = 200) -> Mixture:
    """Return the mixture in equal windows over the first `samples` positions; counted, not sampled.

    Raises:
        ConfigError: no samples.
    """
    if samples < 1:
        raise ConfigError("there is no mixture of 0 samples", kind="bad-budget", fix="Give a budget of 1 or more.")
    windows = max(1, min(windows, samples // 50))
    ends = [samples * (i + 1) // windows for i in range(windows)]
    counts = np.zeros((windows + 1, len(plan.sources)))
    for row, end in enumerate(ends):
        counts[row + 1] = plan.drawn(end)
    per_window = np.diff(counts, axis=0)
    used = np.array([source.used for source in plan.report(0).sources])
    shares = per_window / np.maximum(per_window.sum(axis=1, keepdims=True), 1)
    return Mixture(plan.names, np.array(ends, np.int64), shares, counts[1:] / used)


def _tokens(dataset: Dataset) -> int | None:
    lengths = dataset.lengths
    return None if lengths is None else int(lengths.sum(dtype=np.int64))


def _mean_bytes(dataset: Dataset) -> float | None:
    """Return bytes per sample, from the size of the files: what a split excludes lies in them too."""
    facts = dataset.describe()
    size, samples = facts.get("bytes"), (facts.get("samples") or 0) + (facts.get("excluded") or 0)
    return None if size is None or not samples else size / samples
