"""The ledger: what a training step saw, and when a sample was seen. Pure functions over a plan.

Forwards: `batch` gives the positions of a step, by the same arithmetic as the `Loader`, and `entries` says what stands
at positions. Backwards: `find` gives the sources that hold a key, and `occurrences` every position of a sample.

Whatever a position holds is described in one place, `_entries_of`: a node whose positions hold several documents each
(packed rows) is described there, one entry a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.planning.grid import Grid, Step
from feedmill.planning.plan import Plan

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset, Source


_Known = tuple[str | None, int | None, int | None, str | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at one position.

    Attributes:
        position: in the plan.
        unskipped: the same without the plan's skip list, as skip lists count; equal to `position` where there is none.
        source: name of the source.
        dataset: path or URL of its data set.
        file, offset, length: where the sample lies in it, in bytes; None where that could not be read.
        key: the sample's key; None where it could not be read.
        index: number of the sample in the source.
        epoch: how often the plan gave this sample before.
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
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `problem` only where there is one."""
        fields = asdict(self)
        return fields if self.problem else {name: value for name, value in fields.items() if name != "problem"}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time that a sample is given.

    Attributes:
        position: in the plan.
        unskipped: the same without the plan's skip list.
        epoch: how often the plan gave the sample before, skipped times included.
        step: the step that sees it, None where no global batch was given or it lies before the start.
    """

    position: int
    unskipped: int
    epoch: int
    step: int | None


def batch(
    plan: Plan,
    number: int,
    global_batch: int,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    start: int = 0,
    first_step: int = 0,
    drop_last: bool = False,
) -> Step:
    """The positions of one step.

    Args:
        number: the step, from `first_step`.
        global_batch: samples per step over all ranks.
        rank, world_size: one rank's share; both or neither, and then `world_size` divides `global_batch`.
        start: position of step `first_step`: 0, or that of the state from which a run went on.
        first_step: what the run calls the step at `start`.
        drop_last: as for the `Loader`.

    Raises:
        ConfigError: arguments that make no sense together.
        NotFound: the plan ends before this step.
    """
    if (rank is None) != (world_size is None) or not 0 <= (rank or 0) < (world_size or 1):
        raise ConfigError(
            f"rank {rank} of {world_size} ranks makes no sense", fix="Give both; ranks count from 0 to one less."
        )
    if global_batch < 1 or global_batch % (world_size or 1):
        raise ConfigError(
            f"a global batch of {global_batch} does not divide into {world_size or 1} equal parts",
            fix="The global batch is the batch size per rank times the number of ranks.",
        )
    ranks = world_size or 1
    grid = Grid(start, plan.length, global_batch // ranks, rank or 0, ranks, drop_last)
    own = number - first_step
    if own < 0 or (grid.end is not None and start + own * global_batch >= grid.end):
        every = Grid(start, plan.length, global_batch, 0, 1, drop_last)
        last = "" if every.steps is None else f" to {first_step + every.steps - 1:,}" if every.steps else " to none"
        raise NotFound(
            f"there is no step {number:,}: with {global_batch:,} samples a step the run has steps {first_step:,}{last}",
            kind="no-such-step",
        )
    return grid.step(own)


def entries(plan: Plan, positions: npt.ArrayLike) -> list[Entry]:
    """What stands at these positions, in that order; one bulk read per source tells keys and offsets.

    A sample that cannot be read is an entry with a `problem`: the ledger must answer for damaged data too.

    Raises:
        NotFound: a position outside the plan.
    """
    asked = np.asarray(positions, np.int64)
    return _entries_of(plan, asked, unskipped(plan, asked))


def _entries_of(plan: Plan, positions: npt.NDArray[np.int64], unskipped: npt.NDArray[np.int64]) -> list[Entry]:
    located = plan.locate(positions)
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
                found if isinstance(found, str) else None,
            )
    return out


def _sources(dataset: Dataset, indices: npt.NDArray[np.int64]) -> Sequence[Source | str]:
    """Where each sample lies, or why that could not be told."""
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
    """The positions as they count without the plan's skip list, int64[n]."""
    return positions if plan.skip is None else plan.skip.inward(positions, 0)[0]


def find(plan: Plan, key: str, source: str | None = None) -> list[tuple[str, int]]:
    """The sources that hold a sample with this key, and its number in each.

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
    start: int = 0,
    first_step: int = 0,
) -> list[Occurrence]:
    """Every time that the plan gives a sample, in order.

    Args:
        source, index: the sample.
        samples: look at the first so many positions only; needed where the plan is endless.
        global_batch, start, first_step: as for `batch`, to tell the steps.

    Raises:
        NotFound: no such source or sample.
        ConfigError: the plan is endless and `samples` is missing.
    """
    positions = plan.positions(source, index, samples)
    epochs = plan.locate(positions).epoch
    rows = zip(positions.tolist(), unskipped(plan, positions).tolist(), epochs.tolist(), strict=True)
    return [
        Occurrence(position, outer, epoch, _step_of(position, global_batch, start, first_step))
        for position, outer, epoch in rows
    ]


def _step_of(position: int, global_batch: int | None, start: int, first_step: int) -> int | None:
    if global_batch is None or position < start:
        return None
    return first_step + (position - start) // global_batch
