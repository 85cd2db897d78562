"""What the positions of a plan cost, known from the indexes of its sources: for balancing ranks and batches by budget.

    tokens      tokens of the sample, window or packed row
    attention   the sum of the squared lengths of its documents, plus a linear term
    bytes, pixels, frames, FIELD    as `Dataset.costs` has them

A document is one sample of a dataset of documents, or one span of a packed row. In a window it is the part of a
document that lies in the window, where the index says where documents begin; without such an index a window is one
document.
Padding of a packed row costs nothing. Padding of a window counts among its tokens, and belongs to no document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.costs import INDEXED, LARGEST, bad_cost
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.nodes import Located

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.planning.plan import Plan

IntArray = npt.NDArray[np.int64]

TOKENS, ATTENTION = "tokens", "attention"
NAMES = (TOKENS, ATTENTION, *(name for name in INDEXED if name != TOKENS))
"""The costs with a name of their own; every other name is that of a field."""
_ROOT = math.isqrt(LARGEST)
_LARGEST_FLOAT = math.nextafter(2.0**62, 0)


class Costs:
    """The cost of each position of a plan; no sample is read. Safe to call from several threads.

    The costs of all samples of all sources are loaded when it is made, 8 bytes a sample, and shared by all `Costs` over
    the same datasets. A copy in another process loads them again.

    Args:
        plan: a plan of samples, windows or packed rows.
        by: one of `NAMES`, or the name of a numeric field. Packed rows have ``tokens`` and ``attention`` only.
        linear: what a token costs beside the square of its document's length; for ``attention`` only. With causal
            attention and hidden size `h`, 12 * h is about right: per layer, the matrix products of a token take
            24 * h^2 operations, and each unit of the squares 2 * h.

    Attributes:
        plan, by, linear: as given.

    Raises:
        ConfigError: of kind ``no-costs``, sources do not know this cost, or there is no such cost; all of these sources
            are named, and what to do. Of kind ``bad-linear``, `linear` is negative, not finite, or without attention.
            Of kind ``coarse-costs``, a field's values are too small to be rounded to whole numbers.
        DataError: an index is damaged, or a sample's cost is missing, NaN or negative; names source, sample and value.
    """

    def __init__(self, plan: Plan, by: str, linear: float = 0.0) -> None:
        _check_linear(by, linear)
        self.plan, self.by, self.linear = plan, by, float(linear)
        # Recognized by its attributes: importing the class brings numba, which a loader of other plans does not need.
        self._packed = cast("PackedPlan", plan) if hasattr(plan, "documents") else None
        self._costs: list[IntArray] = []
        self._windows: dict[int, WindowDataset] = {}
        if self._packed is not None:
            _check_packed(by)
            return
        self._costs = _costs_of(plan, TOKENS if by == ATTENTION else by)
        if by == ATTENTION:
            self._windows = {n: source for n, source in enumerate(plan.sources) if isinstance(source, WindowDataset)}

    def __reduce__(self) -> tuple[Any, ...]:
        return Costs, (self.plan, self.by, self.linear)

    def __repr__(self) -> str:
        linear = f", linear {self.linear:g}" if self.linear else ""
        return f"<Costs: {self.by}{linear} of {self.plan!r}>"

    def __call__(self, positions: npt.ArrayLike, located: Located | None = None) -> IntArray:
        """Return the cost of positions, int64[n], each from 0 to 2^62 - 1; attention beyond that is 2^62 - 1.

        Args:
            positions: int64[n].
            located: ``plan.node.locate(positions)``, where the caller has it; packed rows do not need it.

        Raises:
            NotFound: a position outside of the plan, where `located` is not given.
            DataError: the index says that a sample has fewer than 0 tokens.
        """
        if self._packed is not None:
            return self._of_rows(self._packed, positions)
        if located is None:
            located = self.plan.locate(positions)
        # By source: one look-up for each that is touched. Sorting numbers of 16 bits takes a tenth of the time.
        narrow = located.source.astype(np.uint16) if len(self._costs) <= 1 << 16 else located.source
        order = np.argsort(narrow, kind="stable")
        index = located.index[order]
        counts = np.bincount(located.source, minlength=len(self._costs))
        touched = np.flatnonzero(counts)
        ends = np.cumsum(counts[touched]).tolist()
        runs = list(zip(touched.tolist(), [0, *ends], ends, strict=False))
        costs = np.empty(len(index), np.int64)
        for number, begin, end in runs:
            costs[begin:end] = self._costs[number][index[begin:end]]
        if len(costs) and costs.min() < 0:
            raise self._negative(located, order[int(np.argmin(costs))], int(costs.min()))
        if self.by == ATTENTION:
            squares = np.where(costs > _ROOT, LARGEST, np.minimum(costs, _ROOT) ** 2)
            for number, begin, end in runs if self._windows else ():
                if number in self._windows:
                    squares[begin:end] = self._windows[number].attention(index[begin:end])
            costs = self._with_linear(squares, costs)
        out = np.empty_like(costs)
        out[order] = costs
        return out

    def largest(self) -> list[tuple[int, int, int]]:
        """Return source, sample and cost of the costliest sample of each source, whether or not the plan gives it.

        Of windows with ``attention`` it is the window with the most tokens; of packed rows nothing is known.
        """
        numbers = range(len(self._costs))
        index = np.array([costs.argmax() for costs in self._costs], np.int64)
        located = Located(np.arange(len(index), dtype=np.int32), index, np.zeros(len(index), np.int64))
        return list(zip(numbers, index.tolist(), self(index, located).tolist(), strict=True)) if len(index) else []

    def _of_rows(self, plan: PackedPlan, positions: npt.ArrayLike) -> IntArray:
        spans = plan.spans(positions)
        tokens = spans.row_lengths
        if self.by == TOKENS:
            return tokens
        squares = np.zeros(len(spans), np.int64)
        filled = np.flatnonzero(np.diff(spans.row_offsets))
        if len(filled):
            squares[filled] = np.add.reduceat(spans.length**2, spans.row_offsets[filled])
        return self._with_linear(squares, tokens)

    def _with_linear(self, squares: IntArray, tokens: IntArray) -> IntArray:
        """Squares, int64[n], and the linear term over tokens, int64[n]."""
        if not self.linear:
            return squares
        with np.errstate(over="ignore"):
            more = np.minimum(np.rint(self.linear * tokens), _LARGEST_FLOAT).astype(np.int64)
        total: IntArray = np.minimum(squares, LARGEST - more) + more
        return total

    def _negative(self, located: Located, place: int, value: int) -> FeedmillError:
        number = int(located.source[place])
        file, fix = self.plan.sources[number].url, "The index is damaged: make it again."
        return _of_source(bad_cost(self.by, int(located.index[place]), value, file=file, fix=fix), self.plan, number)


def _costs_of(plan: Plan, by: str) -> list[IntArray]:
    """Return the costs of each source's samples."""
    out: list[IntArray] = []
    lacking: list[int] = []
    for number, source in enumerate(plan.sources):
        try:
            costs = source.costs(by)
        except FeedmillError as error:
            raise _of_source(error, plan, number) from error.__cause__
        if costs is None:
            lacking.append(number)
        else:
            out.append(costs)
    if lacking:
        raise _unknown(plan, by, lacking)
    return out


def _of_source(error: FeedmillError, plan: Plan, number: int) -> FeedmillError:
    """Return the same error, naming the plan's source."""
    error.what = f"in the source {plan.names[number]!r}, {error.what}"
    return error


def _unknown(plan: Plan, by: str, lacking: Sequence[int]) -> ConfigError:
    fields = sorted({name for source in plan.sources for name in source.cost_fields})
    have = f"the costs are {', '.join(NAMES)}, and the numeric fields of all sources"
    have += f" (here some have: {', '.join(fields)})" if fields else " (here: none)"
    if by not in NAMES and by not in fields:
        return ConfigError(
            f"no source knows the cost {by!r}: {have}", kind="no-costs", fix="Choose one that all sources know."
        )
    names = ", ".join(repr(plan.names[number]) for number in lacking)
    return ConfigError(
        f"{len(lacking):,} of {len(plan.sources):,} sources do not know the cost {by!r} of their samples: {names}",
        kind="no-costs",
        fix=f"{_advice(plan, by, lacking)} Or choose another cost: {have}.",
    )


def _advice(plan: Plan, by: str, lacking: Sequence[int]) -> str:
    """Return what to do about each kind of source."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for number in lacking:
        source: Dataset = plan.sources[number]
        advice = source.costs_advice(by)
        kinds.setdefault(advice.replace(source.url, "DATASET"), []).append((plan.names[number], advice))
    sentences = []
    for general, members in kinds.items():
        names = ", ".join(repr(name) for name, _ in members)
        sentences.append(f"For {names}: {members[0][1] if len(members) == 1 else general}")
    return " ".join(sentences)


def _check_linear(by: str, linear: float) -> None:
    if not (math.isfinite(linear) and linear >= 0) or (linear and by != ATTENTION):
        raise ConfigError(
            f"linear is {linear} for the cost {by!r}, expected a number from 0 on, for attention only",
            kind="bad-linear",
            fix="Give what a token costs beside the square of its document's length, or leave it out.",
        )


def _check_packed(by: str) -> None:
    if by not in (TOKENS, ATTENTION):
        raise ConfigError(
            f"packed rows do not know the cost {by!r}: they hold parts of samples",
            kind="no-costs",
            fix=f"Use {TOKENS} or {ATTENTION}, or leave 'pack' out.",
        )
