"""Costs of the positions of a plan, from the indexes of its sources: for balancing ranks and batches by budget.

    tokens      tokens of the sample, window or packed row
    attention   the sum of the squared lengths of its documents, plus a linear term, and that of the vision tower
    bytes, pixels, frames, FIELD    as returned by `Dataset.costs`

A document is one sample of a dataset of documents, or one span of a packed row. In a window it is the part of a
document that lies in the window, if the index knows where documents begin; otherwise a window is one document.
Padding of a packed row costs nothing. Padding of a window counts as tokens, but belongs to no document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.costs import INDEXED, LARGEST, bad_cost
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.nodes import Located
from feedmill.planning.packing.packed import PackedPlan
from feedmill.samples.cells import CellDataset
from feedmill.samples.counted import CountedDataset

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.cells import CellTable
    from feedmill.planning.plan import Plan

IntArray = npt.NDArray[np.int64]

TOKENS, ATTENTION = "tokens", "attention"
NAMES = (TOKENS, ATTENTION, *(name for name in INDEXED if name != TOKENS))
"""Names of built-in costs; every other name is that of a field."""
_AT_ONCE = 1 << 20
_ROOT = math.isqrt(LARGEST)
_LARGEST_FLOAT = math.nextafter(2.0**62, 0)


class Costs:
    """The cost of each position of a plan. No sample is read. Thread-safe.

    The constructor loads the costs of all samples of all sources, 8 bytes per sample, which are shared by all `Costs`
    over the same datasets. A copy in another process loads them again.

    Args:
        plan: a plan of samples, windows or packed rows.
        by: one of `NAMES`, or the name of a numeric field. Packed rows have ``tokens`` and ``attention`` only.
        linear: cost per token, in addition to the square of its document's length; for ``attention`` only. With causal
            attention and hidden size `h`, use about 12 * h: per layer, the matrix products of a token take 24 * h^2
            operations, and each unit of the squares 2 * h.
        media, media_squares: cost per patch of the vision tower, and per squared patches of a picture, in addition; for
            ``attention``, of samples that have `lengths`. A tower of `v` layers and hidden size `w`, beside `l` layers
            of hidden size `h`, costs about 12 * w * r a patch and r a square, where r = v * w / (l * h).

    Attributes:
        plan, by, linear, media, media_squares: as given.

    Raises:
        ConfigError: with kind ``no-costs``, the cost is unknown, or sources lack it; the message names all of these
            sources and what to do. With kind ``bad-option``, `linear` is negative, not finite, or given without
            attention. With kind ``bad-costs``, a field's values are too small to be rounded to integers.
        DataError: an index is damaged, or a sample's cost is missing, NaN or negative. The message names source, sample
            and value.
    """

    def __init__(
        self, plan: Plan, by: str, linear: float = 0.0, media: float = 0.0, media_squares: float = 0.0
    ) -> None:
        _check_linear(by, linear)
        self.plan, self.by, self.linear = plan, by, float(linear)
        self.media, self.media_squares = float(media), float(media_squares)
        self._packed = plan if isinstance(plan, PackedPlan) else None
        self._towers = _towers(plan, self.media, self.media_squares)
        self._costs: list[IntArray] = []
        self._windows: dict[int, WindowDataset] = {}
        if self._packed is not None:
            _check_packed(by)
            return
        self._costs = _costs_of(plan, TOKENS if by == ATTENTION else by)
        if by == ATTENTION:
            datasets = enumerate(plan.bases.datasets)
            self._windows = {n: dataset for n, dataset in datasets if isinstance(dataset, WindowDataset)}

    def __reduce__(self) -> tuple[Any, ...]:
        return Costs, (self.plan, self.by, self.linear, self.media, self.media_squares)

    def __repr__(self) -> str:
        linear = f", linear {self.linear:g}" if self.linear else ""
        return f"<Costs: {self.by}{linear} of {self.plan!r}>"

    def __call__(self, positions: npt.ArrayLike, located: Located | None = None) -> IntArray:
        """Return the cost of positions, int64[n], each from 0 to 2^62 - 1; attention is clipped to 2^62 - 1.

        Args:
            positions: int64[n].
            located: ``plan.node.locate(positions)`` if known; not needed for packed rows.

        Raises:
            NotFound: a position is outside the plan and `located` is not given.
            DataError: a sample has a negative number of tokens in the index.
        """
        if self._packed is not None:
            return self._of_rows(self._packed, positions)
        if located is None:
            located = self.plan.locate(positions)
        located = self.plan.bases.read_from(located)
        # One look-up per dataset. Sorting 16-bit numbers takes a tenth of the time.
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
            towers = {int(self.plan.bases.home[number]): tower for number, tower in self._towers.items()}
            for number, begin, end in runs if towers else ():
                if number in towers:
                    costs[begin:end] = _added(costs[begin:end], towers[number][index[begin:end]])
        out = np.empty_like(costs)
        out[order] = costs
        return out

    def largest(self) -> list[tuple[int, int, int]]:
        """Return source, sample and cost of the most expensive sample of each source, whether or not the plan uses it.

        Of cells, the one of all cells of their dataset that are sources is returned. For windows with ``attention``, it
        is the window with the most tokens; for packed rows, the list is empty.
        """
        if not self._costs:
            return []
        found = [_largest(costs, *used[1:]) for costs, used in zip(self._costs, self.plan.bases.used(), strict=True)]
        homes = self.plan.bases.home
        source, index = np.empty(len(found), np.int32), np.empty(len(found), np.int64)
        for home, (cell, number) in enumerate(found):
            mine = np.flatnonzero(homes == home)
            source[home], index[home] = mine[0], number
            if cell is not None:
                cells = [self.plan.sources[each] for each in mine.tolist()]
                place = next(n for n, each in enumerate(cells) if isinstance(each, CellDataset) and each.number == cell)
                source[home], index[home] = mine[place], cells[place].place_of(number)  # type: ignore[attr-defined]
        located = Located(source, index, np.zeros(len(found), np.int64))
        return list(zip(source.tolist(), index.tolist(), self(index, located).tolist(), strict=True))

    def _of_rows(self, plan: PackedPlan, positions: npt.ArrayLike) -> IntArray:
        rows_at = plan.locate_spans(positions) if self._towers else None
        spans = plan.spans(positions) if rows_at is None else rows_at.spans
        tokens = spans.row_lengths
        if self.by == TOKENS:
            return tokens
        squares = np.zeros(len(spans), np.int64)
        filled = np.flatnonzero(np.diff(spans.row_offsets))
        if len(filled):
            squares[filled] = np.add.reduceat(spans.length**2, spans.row_offsets[filled])
        costs = self._with_linear(squares, tokens)
        if rows_at is None:
            return costs
        of_spans = np.zeros(len(spans.length), np.int64)
        for number, tower in self._towers.items():
            mine = np.flatnonzero(rows_at.located.source == number)
            of_spans[mine] = tower[rows_at.located.index[mine]]
        row = np.repeat(np.arange(len(spans)), np.diff(spans.row_offsets))
        return _added(costs, np.minimum(np.bincount(row, of_spans, len(spans)), _LARGEST_FLOAT).astype(np.int64))

    def _with_linear(self, squares: IntArray, tokens: IntArray) -> IntArray:
        """Return squares, int64[n], plus the linear term over tokens, int64[n]."""
        if not self.linear:
            return squares
        with np.errstate(over="ignore"):
            more = np.minimum(np.rint(self.linear * tokens), _LARGEST_FLOAT).astype(np.int64)
        total: IntArray = np.minimum(squares, LARGEST - more) + more
        return total

    def _negative(self, located: Located, place: int, value: int) -> FeedmillError:
        home = int(located.source[place])
        number = int(np.argmax(self.plan.bases.home == home))
        file, fix = self.plan.bases.datasets[home].url, "The index is damaged: rebuild it."
        return _of_source(bad_cost(self.by, int(located.index[place]), value, file=file, fix=fix), self.plan, number)


def _largest(costs: IntArray, table: CellTable | None, cells: IntArray) -> tuple[int | None, int]:
    """Return the most expensive sample of a dataset, or of some of its cells: its cell and its number."""
    if table is None:
        return None, int(costs.argmax())
    best, number = -1, 0
    for start in range(0, len(costs), _AT_ONCE):
        part = np.where(np.isin(table.codes()[start : start + _AT_ONCE], cells), costs[start : start + _AT_ONCE], -1)
        if int(part.max()) > best:
            best, number = int(part.max()), start + int(part.argmax())
    return int(table.of([number])[0]), number


def _added(costs: IntArray, more: IntArray) -> IntArray:
    """Return sums, clipped to the largest cost."""
    total: IntArray = np.minimum(costs, LARGEST - more) + more
    return total


def _towers(plan: Plan, patch: float, square: float) -> dict[int, IntArray]:
    """Return the cost of the vision tower for each sample, int64[samples], of sources whose samples have lengths.

    Raises:
        ConfigError: there is no such source, or the patches of a processor are not known.
    """
    if not patch and not square:
        return {}
    out = {}
    for number, source in enumerate(plan.sources):
        if isinstance(source, CountedDataset):
            patches, squares = source.counts.vision
            cost = patch * patches + square * squares
            out[number] = np.minimum(np.rint(cost), _LARGEST_FLOAT).astype(np.int64)
    if not out:
        raise ConfigError(
            "no source has 'lengths', so the cost of media is unknown",
            kind="no-costs",
            fix="Declare 'lengths' and name them at a source, or remove 'media' and 'media_squares' from 'balance'.",
        )
    return out


def _costs_of(plan: Plan, by: str) -> list[IntArray]:
    """Return the costs of the samples of each dataset in `Plan.bases`."""
    out: list[IntArray] = []
    lacking: list[int] = []
    for home, source in enumerate(plan.bases.datasets):
        number = int(np.argmax(plan.bases.home == home))
        try:
            costs = source.costs(by)
        except FeedmillError as error:
            raise _of_source(error, plan, number) from error.__cause__
        if by == TOKENS and isinstance(source, CountedDataset) and source.counts.refused:
            raise _refused(source, plan.names[number])
        if costs is None:
            lacking.append(number)
        else:
            out.append(costs)
    if lacking:
        raise _unknown(plan, by, lacking)
    return out


def _refused(source: CountedDataset, name: str) -> ConfigError:
    """Return the error for samples without a length, which batches would hold as if they cost nothing."""
    refused = source.counts.refused
    count, reasons = sum(each.samples for each in refused), "; ".join(map(str, refused))
    return ConfigError(
        f"{count:,} of {len(source):,} samples of {name!r} have no length: {reasons}",
        file=source.url,
        kind="no-costs",
        fix="Correct them, or use 'pack' with 'refused: drop', which leaves them out.",
    )


def _of_source(error: FeedmillError, plan: Plan, number: int) -> FeedmillError:
    """Return the same error with the name of the plan's source added."""
    error.what = f"in the source {plan.names[number]!r}, {error.what}"
    return error


def _unknown(plan: Plan, by: str, lacking: Sequence[int]) -> ConfigError:
    fields = sorted({name for source in plan.sources for name in source.cost_fields})
    have = f"the costs are {', '.join(NAMES)}, and the numeric fields of all sources"
    have += f" (here some have: {', '.join(fields)})" if fields else " (here: none)"
    if by not in NAMES and by not in fields:
        return ConfigError(f"unknown cost {by!r}: {have}", kind="no-costs", fix="Choose a cost that all sources have.")
    names = ", ".join(repr(plan.names[number]) for number in lacking)
    return ConfigError(
        f"the cost {by!r} is unknown for {len(lacking):,} of {len(plan.sources):,} sources: {names}",
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
            f"linear is {linear} for the cost {by!r}, expected a number >= 0, and only with attention",
            kind="bad-option",
            fix="Give the cost per token in addition to the square of its document's length, or omit it.",
        )


def _check_packed(by: str) -> None:
    if by not in (TOKENS, ATTENTION):
        raise ConfigError(
            f"packed rows have no cost {by!r}: they hold parts of samples",
            kind="no-costs",
            fix=f"Use {TOKENS} or {ATTENTION}, or remove 'pack'.",
        )
