"""The ledger: what a training step saw, and when a sample was seen. Pure functions over a plan.

Forwards: `batch` gives the positions of a step, by the same arithmetic as the `Loader`, and `entries` says what stands
at positions. Backwards: `find` gives the sources that hold a key, and `occurrences` every position of a sample.

A position of a packed plan is a row, and has one entry, or one occurrence, for each span of a document in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.planning.dealing.cuts import BudgetGrid, Cut, Cuts
from feedmill.planning.dealing.dealer import BudgetDealer, Dealer, Dealing, dealing_of
from feedmill.planning.dealing.grid import Grid, Remainder, Step
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.plan import Plan

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset, Source
    from feedmill.planning.nodes import Located
    from feedmill.planning.packing.packed import PackedPlan


_Known = tuple[str | None, int | None, int | None, str | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at one position.

    Attributes:
        position: in the plan.
        unskipped: the same without the plan's skip list, as skip lists count; equal to `position` where there is none.
        source: name of the source.
        dataset: path or URL of its dataset.
        file, offset, length: where the sample lies in it, in bytes; None if that could not be read.
        key: the sample's key; None if it could not be read.
        index: number of the sample in the source.
        epoch: which pass over its source gave it, from 0: how often the plan gave this sample before, unless a shuffle
            stands above the repetition.
        span: of a packed plan, the first token of the document in this row, and the one after the last.
        problem: why the sample could not be read.
    """

    position: int
    unskipped: int
    source: str
    dataset: str
    file: str | None
    offset: int | None
    length: int | None
    key: str | None
    index: int
    epoch: int
    span: tuple[int, int] | None = None
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; `span` and `problem` only where there is one."""
        return _given(asdict(self))


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time that a sample is given.

    Attributes:
        position: in the plan.
        unskipped: the same without the plan's skip list.
        epoch: which pass over its source gave it, from 0, skipped times included; see `Entry`.
        step: the step that sees it, None if no global batch was given or it lies before the start.
        span: as for `Entry`.
    """

    position: int
    unskipped: int
    epoch: int
    step: int | None
    span: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; `span` only where there is one."""
        return _given(asdict(self))


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None or name not in ("span", "problem")}


def batch(
    plan: Plan,
    number: int,
    global_batch: int | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    start: int = 0,
    first_step: int = 0,
    remainder: Remainder = "uneven",
    dealing: Dealing | None = None,
) -> Step:
    """Return the positions of one step.

    Args:
        number: the step, from `first_step`.
        global_batch: samples per step over all ranks; None for the budget of `dealing`, or of the recipe, for each of
            `world_size` ranks. Steps by budget are found by walking from `start`.
        rank, world_size: one rank's share; both or neither, and then `world_size` divides `global_batch`. With a budget
            `world_size` alone gives the whole global batch.
        start: position of step `first_step`: 0, or that of the state from which a run went on.
        first_step: what the run calls the step at `start`.
        remainder: as for the `Loader`.
        dealing: how the loader deals positions to ranks, where that differs from the recipe.

    Raises:
        ConfigError: arguments that are invalid together.
        NotFound: the plan ends before this step.
    """
    if global_batch is None:
        dealer, cut = _cut(plan, number, rank, world_size, start, first_step, remainder, dealing)
        end = cut.first + len(cut.costs)
        step = Step(cut.first, end, end, number, plan.length)
        return step if rank is None else step._replace(dealt=cut.first + dealer.deal(cut)[rank])
    grid, own = _grid(plan, number, global_batch, rank, world_size, start, first_step, remainder)
    return Dealer(plan, grid, dealing or dealing_of(plan, batch=global_batch)).steps([own])[0]


def ranks_of(
    plan: Plan,
    number: int,
    global_batch: int | None,
    world_size: int,
    *,
    start: int = 0,
    first_step: int = 0,
    remainder: Remainder = "uneven",
    dealing: Dealing | None = None,
) -> list[npt.NDArray[np.int64]]:
    """Return the positions of one step, int64[n] for each rank; arguments as for `batch`. Raises as it does."""
    if global_batch is None:
        dealer, cut = _cut(plan, number, None, world_size, start, first_step, remainder, dealing)
        return [cut.first + part for part in dealer.deal(cut)]
    grid, own = _grid(plan, number, global_batch, 0, world_size, start, first_step, remainder)
    return Dealer(plan, grid, dealing or dealing_of(plan, batch=global_batch)).ranks(own)


def _cut(
    plan: Plan,
    number: int,
    rank: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
    remainder: Remainder,
    dealing: Dealing | None,
) -> tuple[BudgetDealer, Cut]:
    """Return a global batch by budget, and what deals it."""
    _check_rank(rank or 0, world_size)
    _check_run(plan, start)
    grid = _budget_grid(plan, rank or 0, world_size, start, remainder, dealing)
    dealer = BudgetDealer(plan, grid)
    cut = next(islice(dealer.cuts.after(start), max(number - first_step, 0), None), None)
    if cut is None or number < first_step:
        raise NotFound(
            f"there is no step {number:,}: with {grid.budget} for each of {grid.world_size:,} ranks the run has steps"
            f" from {first_step:,}, and ends before this one",
            kind="no-such-step",
        )
    return dealer, cut


def _budget_grid(
    plan: Plan,
    rank: int,
    world_size: int | None,
    start: int,
    remainder: Remainder,
    dealing: Dealing | None,
) -> BudgetGrid:
    budget = (dealing or dealing_of(plan)).budget
    if budget is None or world_size is None:
        raise ConfigError(
            "steps need the samples per step, or a recipe with a budget ('batch') and the number of ranks",
            kind="no-batch-size",
            fix="Give the global batch, or the number of ranks where the recipe has a budget.",
        )
    # A last batch with fewer samples than ranks can be looked at, too.
    return BudgetGrid(start, plan.length, budget, rank, world_size, "ragged" if remainder == "uneven" else remainder)


def _check_rank(rank: int, world_size: int | None) -> None:
    if not 0 <= rank < (world_size or 1):
        raise ConfigError(
            f"rank {rank} of {world_size} ranks is invalid", fix="Give both; ranks count from 0 to one less."
        )


def _check_run(plan: Plan, start: int) -> None:
    if start < 0 or (plan.length is not None and start > plan.length):
        size = "is endless" if plan.length is None else f"has {plan.length:,} positions"
        raise ConfigError(
            f"a run cannot begin at position {start:,}: the plan {size}",
            kind="bad-start",
            fix="Give the position of the state from which the run went on.",
        )


def _grid(
    plan: Plan,
    number: int,
    global_batch: int,
    rank: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
    remainder: Remainder,
) -> tuple[Grid, int]:
    """Return the batches of a rank, and the number of a step in them."""
    _check_rank(rank or 0, world_size)
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank {rank} of {world_size} ranks is invalid", fix="Give both; ranks count from 0 to one less."
        )
    if global_batch < 1 or global_batch % (world_size or 1):
        raise ConfigError(
            f"a global batch of {global_batch} does not divide into {world_size or 1} equal parts",
            fix="The global batch is the batch size per rank times the number of ranks.",
        )
    _check_run(plan, start)
    ranks = world_size or 1
    grid = Grid(start, plan.length, global_batch // ranks, rank or 0, ranks, remainder)
    own = number - first_step
    end = LONGEST + 1 - global_batch if grid.end is None else grid.end
    if own < 0 or start + own * global_batch >= end:
        every = Grid(start, plan.length, global_batch, 0, 1, remainder)
        last = "" if every.steps is None else f" to {first_step + every.steps - 1:,}" if every.steps else " to none"
        raise NotFound(
            f"there is no step {number:,}: with {global_batch:,} samples a step the run has steps {first_step:,}{last}",
            kind="no-such-step",
        )
    return grid, own


def entries(plan: Plan, positions: npt.ArrayLike) -> list[Entry]:
    """Return what stands at these positions, in that order; one bulk read per source tells keys and offsets.

    A sample that cannot be read is an entry with a `problem`: the ledger must answer for damaged data too.

    Raises:
        NotFound: a position outside the plan.
    """
    asked = np.asarray(positions, np.int64)
    packed = _packed(plan)
    if packed is None:
        return _entries(plan, asked, unskipped(plan, asked), plan.locate(asked))
    spans = packed.spans(asked)
    rows = np.repeat(asked, np.diff(spans.row_offsets))
    found = _entries(plan, rows, unskipped(plan, rows), packed.documents.locate(spans.position))
    ends = zip(spans.start.tolist(), (spans.start + spans.length).tolist(), strict=True)
    return [replace(entry, span=span) for entry, span in zip(found, ends, strict=True)]


def _entries(
    plan: Plan, positions: npt.NDArray[np.int64], unskipped: npt.NDArray[np.int64], located: Located
) -> list[Entry]:
    out: list[Entry] = [None] * len(positions)  # type: ignore[list-item]
    for number in np.unique(located.source).tolist():
        rows = np.flatnonzero(located.source == number)
        dataset, indices = plan.sources[number], located.index[rows]
        for row, index, found in zip(rows.tolist(), indices.tolist(), _sources(dataset, indices), strict=True):
            known: _Known = (None, None, None, None)
            if not isinstance(found, str):
                known = (found.file, found.offset, found.length, found.key)
            out[row] = Entry(
                int(positions[row]),
                int(unskipped[row]),
                plan.names[number],
                dataset.url,
                *known,
                index,
                int(located.epoch[row]),
                problem=found if isinstance(found, str) else None,
            )
    return out


def _packed(plan: Plan) -> PackedPlan | None:
    """The plan where its positions are rows. Recognized by its attributes: the class itself takes a while to import."""
    return cast("PackedPlan", plan) if hasattr(plan, "documents") else None


def _sources(dataset: Dataset, indices: npt.NDArray[np.int64]) -> Sequence[Source | str]:
    """Return where each sample lies, or why that is not known."""
    try:
        return [sample.source for sample in dataset.read_raw(indices)]
    except FeedmillError:
        return [_source(dataset, index) for index in indices.tolist()]


def _source(dataset: Dataset, index: int) -> Source | str:
    try:
        return dataset.locate(index)
    except FeedmillError as error:
        return str(error)


def unskipped(plan: Plan, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions as they count without the plan's skip list, int64[n]."""
    return positions if plan.skip is None else plan.skip.inward(positions)


def find(plan: Plan, key: str, source: str | None = None) -> list[tuple[str, int]]:
    """Return the sources that hold a sample with this key, and its number in each.

    Args:
        source: look in this source only.

    Raises:
        NotFound: no source has it.
    """
    found = []
    for name in plan.names if source is None else [source]:
        try:
            found.append((name, plan.source(name).find(key)))
        except NotFound:
            if source is not None:
                raise
    if not found:
        raise NotFound(
            f"no source has a sample with this key (looked in {', '.join(plan.names)})",
            record=key,
            kind="no-such-key",
            fix="Keys are those that 'feedmill preview' shows; a split may leave the sample out.",
        )
    return found


def occurrences(
    plan: Plan,
    source: str,
    index: int,
    *,
    samples: int | None = None,
    global_batch: int | None = None,
    world_size: int | None = None,
    start: int = 0,
    first_step: int = 0,
) -> list[Occurrence]:
    """Return every time that the plan gives a sample, in order.

    Args:
        source, index: the sample.
        samples: look at the first N positions only; needed where the plan is endless.
        global_batch, world_size, start, first_step: as for `batch`, to give the steps. Steps by budget are given for
            the `world_size` ranks of the run.

    Raises:
        NotFound: no such source or sample.
        ConfigError: the plan is endless and `samples` is missing.
    """
    packed = _packed(plan)
    if packed is not None:
        found = _pieces(packed, source, index, samples)
    else:
        positions = plan.positions(source, index, samples)
        epochs = plan.locate(positions).epoch.tolist()
        found = [(position, epoch, None) for position, epoch in zip(positions.tolist(), epochs, strict=True)]
    outer = unskipped(plan, np.array([position for position, _, _ in found], np.int64)).tolist()
    steps = _steps_of(plan, [position for position, _, _ in found], global_batch, world_size, start, first_step)
    return [
        Occurrence(position, unskipped, epoch, step, span)
        for (position, epoch, span), unskipped, step in zip(found, outer, steps, strict=True)
    ]


_Piece = tuple[int, int, tuple[int, int] | None]


def _pieces(plan: PackedPlan, source: str, index: int, rows: int | None) -> list[_Piece]:
    """Row, epoch and span of every piece of a document, in the order of the rows."""
    end = plan.length if rows is None else rows
    documents = plan.documents_of(source, index, rows)
    epochs = plan.documents.locate(documents).epoch
    placed = plan.placements(documents)
    owner = np.repeat(np.arange(len(documents)), np.diff(placed.offsets))
    out: list[_Piece] = []
    for row, number, first, length in zip(
        placed.row.tolist(), owner.tolist(), placed.start.tolist(), placed.length.tolist(), strict=True
    ):
        if row >= 0 and (end is None or row < end):
            out.append((row, int(epochs[number]), (first, first + length)))
    return sorted(out)


def _steps_of(
    plan: Plan,
    positions: Sequence[int],
    global_batch: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
) -> list[int | None]:
    """The steps that see positions, in their order; None before the start, and where no size of a batch is known."""
    if global_batch is not None:
        return [None if position < start else first_step + (position - start) // global_batch for position in positions]
    if world_size is None or not positions:
        return [None] * len(positions)
    _check_run(plan, start)
    cuts = Cuts(plan, _budget_grid(plan, 0, world_size, start, "ragged", None))
    ends = cuts.ends(start, max(positions))
    steps = np.searchsorted(ends, np.array(positions, np.int64), side="right").tolist()
    return [None if position < start else first_step + step for position, step in zip(positions, steps, strict=True)]
