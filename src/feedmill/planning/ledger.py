"""Ledger: which samples a training step saw, and which steps saw a sample. Pure functions over a plan.

From steps to samples: `batch` returns the positions of a step, with the same arithmetic as the `Loader`, and `entries`
describes the samples at positions. From samples to steps: `find` returns the sources that hold a key, and
`occurrences` every position of a sample. The global batch of a step is a grid or a cut by budget (`grid_of`, `cut_of`).

A position of a packed plan is a row. It has one entry or occurrence for each span of a document in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.planning.dealing.cuts import BudgetGrid, Cut, Cuts
from feedmill.planning.dealing.dealer import BudgetDealer, Dealer, check_groups, dealing_of, dealt_together
from feedmill.planning.dealing.grid import Grid, Remainder, Step, borders_of
from feedmill.planning.dealing.rules import Dealing
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.plan import Plan

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.sample import Source
    from feedmill.planning.nodes import Located
    from feedmill.planning.packing.packed import PackedPlan


_Known = tuple[str | None, int | None, int | None, str | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """The sample at one position.

    Attributes:
        position: position in the plan.
        unskipped: position without the plan's skip list, as skip lists count; equal to `position` without a skip list.
        source: name of the source.
        dataset: path or URL of its dataset.
        file, offset, length: where the sample is stored, in bytes; None if it could not be read.
        key: the sample's key; None if it could not be read.
        index: number of the sample in the source.
        epoch: the pass over its source, from 0. It equals the number of earlier occurrences of this sample, unless a
            shuffle is applied above the repetition.
        span: for a packed plan, the range [first, end) of the document's tokens in this row.
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
        """Return plain data; `span` and `problem` are included only if set."""
        return _given(asdict(self))


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a sample.

    Attributes:
        position: position in the plan.
        unskipped: position without the plan's skip list.
        epoch: the pass over its source, from 0; skipped occurrences count. See `Entry`.
        step: the step that sees it; None if no global batch was given, it lies before the start, or it is one of the
            last rows of a width, which do not fill a global batch and are dropped.
        span: as for `Entry`.
    """

    position: int
    unskipped: int
    epoch: int
    step: int | None
    span: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; `span` is included only if set."""
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
        number: the step, counted from `first_step`.
        global_batch: samples per step over all ranks. None uses the budget of `dealing`, or of the recipe, for each of
            `world_size` ranks; the step is then found by walking from `start`.
        rank, world_size: return one rank's positions; give both or neither. `world_size` must divide `global_batch`.
            With a budget, `world_size` alone returns the whole global batch.
        start: position of step `first_step`: 0, or the position of the state from which a run resumed.
        first_step: number of the step at `start`.
        remainder: as for the `Loader`.
        dealing: how the loader deals positions to ranks, if it differs from the recipe.

    Raises:
        ConfigError: arguments that are invalid together.
        NotFound: the plan ends before this step.
    """
    if global_batch is None:
        dealer, cut = cut_of(plan, number, rank, world_size, start, first_step, remainder, dealing)
        end = cut.first + len(cut.costs)
        step = Step(cut.first, end, end, number, plan.length)
        return step if rank is None else step._replace(dealt=cut.first + dealer.deal(cut)[rank])
    dealing = dealing or dealing_of(plan, batch=global_batch)
    grid, own = grid_of(plan, number, global_batch, rank, world_size, start, first_step, remainder, dealing)
    return Dealer(plan, grid, dealing).steps([own])[0]


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
    """Return the positions of one step, int64[n] for each rank. Arguments and errors are those of `batch`."""
    if global_batch is None:
        dealer, cut = cut_of(plan, number, None, world_size, start, first_step, remainder, dealing)
        return [cut.first + part for part in dealer.deal(cut)]
    dealing = dealing or dealing_of(plan, batch=global_batch)
    grid, own = grid_of(plan, number, global_batch, 0, world_size, start, first_step, remainder, dealing)
    return Dealer(plan, grid, dealing).ranks(own)


def ranks_of_steps(
    plan: Plan,
    numbers: Sequence[int],
    global_batch: int | None,
    world_size: int | None,
    *,
    start: int = 0,
    first_step: int = 0,
) -> Iterator[list[npt.NDArray[np.int64]]]:
    """Yield the positions of several steps, in rising order, as `ranks_of`; steps by budget are walked once.

    Without `world_size`, the global batch is that of one rank.
    """
    if global_batch is not None:
        for number in numbers:
            yield ranks_of(plan, number, global_batch, world_size or 1, start=start, first_step=first_step)
        return
    check_run(plan, start)
    dealer = BudgetDealer(plan, budget_grid(plan, 0, world_size, start, "uneven", None))
    cuts = enumerate(dealer.cuts.after(start), first_step)
    for number in numbers:
        early = number < first_step  # an endless plan has no last step to look for it
        cut = None if early else next((cut for step, cut in cuts if step == number), None)
        if cut is None:
            why = f"the run begins with step {first_step:,}" if early else "the run ends before it"
            raise NotFound(f"there is no step {number:,}: {why}", kind="no-such-sample")
        yield [cut.first + part for part in dealer.deal(cut)]


def entries(plan: Plan, positions: npt.ArrayLike, located: Located | None = None) -> list[Entry]:
    """Return the entries of these positions, in that order, with one bulk read per source for keys and offsets.

    A sample that cannot be read becomes an entry with a `problem`: the ledger must also work on damaged data.

    Args:
        located: ``plan.locate(positions)``, if it is known, as in the steps of `batch`.

    Raises:
        NotFound: a position outside the plan.
    """
    asked = np.asarray(positions, np.int64)
    packed = _packed(plan)
    if packed is None:
        return _entries(plan, asked, unskipped(plan, asked), plan.locate(asked) if located is None else located)
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
    """Return the plan if it is packed, else None. Tests an attribute, because importing the class is slow."""
    return cast("PackedPlan", plan) if hasattr(plan, "documents") else None


def _sources(dataset: Dataset, indices: npt.NDArray[np.int64]) -> Sequence[Source | str]:
    """Return where each sample is stored, or the error message if that is unknown."""
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
    """Return the positions counted without the plan's skip list, int64[n]."""
    return positions if plan.skip is None else plan.skip.inward(positions)


def find(plan: Plan, key: str, source: str | None = None) -> list[tuple[str, int]]:
    """Return the sources that hold a sample with this key, and its number in each.

    Args:
        source: search this source only.

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
            kind="no-such-sample",
            fix="Use a key as 'feedmill show' shows it; the split may exclude the sample.",
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
    """Return every occurrence of a sample in the plan, in order.

    Args:
        source, index: the sample.
        samples: search only the first N positions. Required if the plan is endless.
        global_batch, world_size, start, first_step: as for `batch`; needed for the steps. Steps by budget need the
            `world_size` of the run.

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
    """Return row, epoch and span of every piece of a document, in row order."""
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
    """Return the step that sees each position; None for positions before the start, or without a batch size."""
    if global_batch is not None:
        grid = Grid(start, plan.length, global_batch, 0, 1, "uneven", borders=borders_of(plan))
        numbers = [None if position < start else grid.number_of(position) for position in positions]
        return [None if number is None else first_step + number for number in numbers]
    if world_size is None or not positions:
        return [None] * len(positions)
    check_run(plan, start)
    cuts = Cuts(plan, budget_grid(plan, 0, world_size, start, "ragged", None))
    ends = cuts.ends(start, max(positions))
    steps = np.searchsorted(ends, np.array(positions, np.int64), side="right").tolist()
    return [None if position < start else first_step + step for position, step in zip(positions, steps, strict=True)]


def cut_of(
    plan: Plan,
    number: int,
    rank: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
    remainder: Remainder,
    dealing: Dealing | None,
) -> tuple[BudgetDealer, Cut]:
    """Return a global batch by budget, and its dealer."""
    _check_rank(rank, world_size)
    check_run(plan, start)
    grid = budget_grid(plan, rank or 0, world_size, start, remainder, dealing)
    dealer = BudgetDealer(plan, grid)
    cut = next(islice(dealer.cuts.after(start), max(number - first_step, 0), None), None)
    if cut is None or number < first_step:
        raise NotFound(
            f"there is no step {number:,}: with {grid.budget} for each of {grid.world_size:,} ranks the run has steps"
            f" from {first_step:,}, and ends before this one",
            kind="no-such-sample",
        )
    return dealer, cut


def budget_grid(
    plan: Plan,
    rank: int,
    world_size: int | None,
    start: int,
    remainder: Remainder,
    dealing: Dealing | None,
) -> BudgetGrid:
    """Return the grid of a recipe with a budget. Raises `ConfigError` if it has none, or `world_size` is missing."""
    budget = (dealing or dealing_of(plan)).budget
    if budget is None or world_size is None:
        raise ConfigError(
            "steps need the samples per step, or a recipe with a budget ('batch') and the number of ranks",
            kind="missing-option",
            fix="Give the global batch, or the number of ranks if the recipe has a budget.",
        )
    # 'ragged' also allows a last batch with fewer samples than ranks.
    rule = "ragged" if remainder == "uneven" else remainder
    own = dealing or dealing_of(plan)
    grid = BudgetGrid(start, plan.length, budget, rank, world_size, rule, dealt_together(plan, own))
    if world_size > 1:
        check_groups(plan, grid, own)
    return grid


def _check_rank(rank: int | None, world_size: int | None) -> None:
    if rank is None:
        return
    if world_size is None:
        raise ConfigError(f"rank {rank} requires the number of ranks", fix="Give both; ranks count from 0 to one less.")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size} ranks is invalid", fix="Ranks count from 0 to one less.")


def check_run(plan: Plan, start: int) -> None:
    """Raise `ConfigError` if no run can begin at a position."""
    if start < 0 or (plan.length is not None and start > plan.length):
        size = "is endless" if plan.length is None else f"has {plan.length:,} positions"
        raise ConfigError(
            f"a run cannot begin at position {start:,}: the plan {size}",
            kind="bad-option",
            fix="Give the position of the state from which the run resumed.",
        )


def grid_of(
    plan: Plan,
    number: int,
    global_batch: int,
    rank: int | None,
    world_size: int | None,
    start: int,
    first_step: int,
    remainder: Remainder,
    dealing: Dealing,
) -> tuple[Grid, int]:
    """Return a rank's grid of batches, and the number of the step in it."""
    _check_rank(rank, world_size)
    if rank is None and world_size is not None:
        raise ConfigError(f"the rank is missing: the step has {world_size} ranks", fix="Give both, or neither.")
    if global_batch < 1 or global_batch % (world_size or 1):
        raise ConfigError(
            f"a global batch of {global_batch} is not divisible by {world_size or 1} ranks",
            fix="The global batch is the batch size per rank times the number of ranks.",
        )
    check_run(plan, start)
    ranks = world_size or 1
    together = dealt_together(plan, dealing)
    grid = Grid(start, plan.length, global_batch // ranks, rank or 0, ranks, remainder, together, borders_of(plan))
    if ranks > 1:
        check_groups(plan, grid, dealing)
    own = number - first_step
    end = LONGEST + 1 - global_batch if grid.end is None else grid.end
    part, inside = grid.part_of(max(own, 0))
    if own < 0 or part.start + inside * global_batch >= end:
        every = Grid(start, plan.length, global_batch, 0, 1, remainder, borders=borders_of(plan))
        steps = own - inside + (end - part.start) // global_batch if every.steps is None else every.steps
        last = f" to {first_step + steps - 1:,}" if steps else " to none"
        raise NotFound(
            f"there is no step {number:,}: with {global_batch:,} samples a step the run has steps {first_step:,}{last}",
            kind="no-such-sample",
        )
    return grid, own
