"""Divide the positions of a plan into the batches of one rank.

A `Loader` computes its layout when it is created, so that options that cannot be combined raise before data is read.
Where a task encoder makes groups or packs, it is a `Cursor` over windows of the plan: it knows which were yielded.

Find the data-parallel rank of this process: from torch.distributed, JAX, the launcher's environment, or a layout.

A `Loader` without `rank` and `world_size` uses `find_ranks`. Use `data_parallel` or `from_mesh` if several processes
must load the same data, as in tensor-parallel groups.

No network access is needed, and neither torch nor JAX is imported: a library that was not imported is not initialized.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from feedmill.errors import ConfigError, integer
from feedmill.loading.plan import PlainPlan
from feedmill.planning.dealing.dealer import (
    check_groups,
    check_layout,
    dealer_of,
    dealing_of,
    dealt_together,
    group_of,
    run_length_of,
)
from feedmill.planning.dealing.grid import REMAINDERS, Grid, Remainder, Step, borders_of

if TYPE_CHECKING:
    from feedmill.loading.encoder import TaskEncoder
    from feedmill.planning.dealing.cuts import BudgetGrid
    from feedmill.planning.dealing.rules import Balance, Budget, Dealing


logger = logging.getLogger("feedmill")

_TOO_MANY = 1 << 31


class RankBatches(NamedTuple):
    """The batches of one rank, from its start on.

    Attributes:
        dealing: how positions are dealt to the ranks.
        grid: global batches, of a fixed number of samples or by budget.
        cursor: the windows if a task encoder packs or groups; otherwise None.
        size: samples per rank and step; 1 for batches by budget.
    """

    dealing: Dealing
    grid: Grid | BudgetGrid
    cursor: Cursor | None
    size: int


def layout_of(
    plan: PlainPlan,
    batch_size: int | Budget | Mapping[str, Any] | None,
    ranks: Ranks,
    *,
    start: int,
    remainder: Remainder,
    deal: str | None,
    balance: Balance | Mapping[str, Any] | str | None,
    task_encoder: TaskEncoder | None,
    buffer: int | None,
) -> RankBatches:
    """Return the layout of a `Loader`; the arguments are those of `Loader`.

    Raises:
        ConfigError: a value is invalid, or options cannot be combined.
    """
    dealing = dealing_of(plan, deal, balance, batch_size)
    size = 1 if dealing.budget is not None else _batch_size(batch_size)
    if remainder not in REMAINDERS:
        raise ConfigError(f"remainder={remainder!r} is unknown", fix=f"Use one of: {', '.join(REMAINDERS)}.")
    start = _checked_start(integer("start", start), plan.length)
    together, borders = dealt_together(plan, dealing), borders_of(plan)
    plain = Grid(start, plan.length, size, ranks.rank, ranks.world_size, remainder, together, borders)
    if borders:
        _check_widths(plain, task_encoder)
    grid: Grid | BudgetGrid = plain
    if dealing.budget is not None:
        from feedmill.planning.dealing.cuts import BudgetGrid

        grid = BudgetGrid(start, plan.length, dealing.budget, ranks.rank, ranks.world_size, remainder, together)
    cursor = windows_for(task_encoder, plain, None if buffer is None else integer("buffer", buffer))
    if cursor is not None:
        _check_windows(plan, dealing, explicit=balance is not None or deal == "shuffled")
        return RankBatches(dealing, grid, replace(cursor, start=start), size)
    check_layout(plan, grid, dealing.balance is not None)
    check_groups(plan, grid, dealing)
    dealer_of(plan, grid, dealing)  # raise now if costs are unknown, not at the first batch
    if dealing.budget is None and remainder == "drop" and 0 < (plan.length or 0) < plain.global_batch:
        logger.warning(
            "this loader yields no batch: the plan's %d samples do not fill a global batch of %d (%d for each of %d"
            " ranks), and remainder='drop' drops them. Make batches smaller, or use another remainder.",
            plan.length,
            plain.global_batch,
            size,
            ranks.world_size,
        )
    return RankBatches(dealing, grid, None, size)


def check_begin(plan: PlainPlan, layout: RankBatches, position: int) -> None:
    """Check the layout at the position where an iteration begins: the plan's end, runs, and the first batch by budget.

    Raises:
        ConfigError: ranks would not end together, a batch would have samples of two sources, or the first batch cannot
            be made.
    """
    grid = layout.grid
    check_layout(plan, grid, layout.dealing.balance is not None)  # a loaded state may have changed the start
    check_groups(plan, grid, layout.dealing)
    if not isinstance(grid, Grid):
        _check_first(plan, grid, position)
    elif grid.remainder == "uneven" and not grid.shares_out:
        groups = "" if grid.group == 1 else f" in groups of {grid.group:,}"
        raise ConfigError(
            f"the last step would have {grid.left_over} samples{groups} for {grid.world_size} ranks, so ranks without"
            " a sample would end before the others",
            kind="uneven-end",
            fix="Use remainder='pad' (with a mask) or 'drop'.",
        )


def _check_widths(grid: Grid, task_encoder: TaskEncoder | None) -> None:
    """Check that batches have rows of one width each, and log what is dropped where the width changes.

    Raises:
        ConfigError: the last batch would be padded with rows of another width, or rows would be packed or grouped.
    """
    if grid.remainder == "pad":
        raise ConfigError(
            "remainder='pad' fills the last batch with the first rows of the plan, which have another seq_len",
            kind="unsupported",
            fix="Use remainder='drop' or 'uneven'.",
        )
    if task_encoder is not None and (task_encoder.packs or task_encoder.groups):
        raise ConfigError(
            "packs and groups are made from windows of consecutive rows, which have another seq_len after a stage",
            kind="unsupported",
            fix="Omit the hooks of packing and grouping, or 'seq_len' in the stages.",
        )
    for part in grid.parts[:-1]:
        if part.left_over and not grid.rank:
            logger.log(
                logging.INFO if part.steps else logging.WARNING,
                "the %d rows before position %d, where rows of another seq_len begin, do not fill a global batch of %d"
                " and are dropped: %d batches come before them",
                part.left_over,
                part.length,
                part.global_batch,
                part.steps,
            )


def _check_windows(plan: PlainPlan, dealing: Dealing, *, explicit: bool) -> None:
    if run_length_of(plan) > 1 or dealing.budget is not None:
        raise ConfigError(
            "batches of one source ('homogeneous') and batches by budget are unsupported with packs and groups, which"
            " are made from windows of a fixed number of samples of several sources",
            kind="unsupported",
            fix="Omit these options, or pack in the recipe ('pack') and set a budget for its rows.",
        )
    if group_of(plan) != 1:
        raise ConfigError(
            "'groups' of a recipe are unsupported with packs and groups of a task encoder, which are made from windows"
            " of a fixed number of samples",
            kind="unsupported",
            fix="Remove 'groups', or make packs and groups another way.",
        )
    if explicit or dealing.balance is not None:
        raise ConfigError(
            "'deal' and 'balance' are unsupported with packs and groups: each rank takes whole windows of the stream",
            kind="unsupported",
            fix="Omit 'deal' and 'balance', or pack in the recipe ('pack') and balance its rows.",
        )


def _check_first(plan: PlainPlan, grid: BudgetGrid, position: int) -> None:
    """Compute the first batch by budget, so that its errors are raised now.

    Logs a warning for samples that are larger than the budget, and for a plan that does not fill one batch.
    """
    from feedmill.planning.dealing.cuts import Cuts

    cuts = Cuts(plan, grid)
    oversized = cuts.oversized() if not grid.rank else []
    if oversized:
        logger.warning(
            "samples cost more than the budget of a rank (%s) in %d of the sources: %s, for example. The batch of such"
            " a sample raises an error. Raise the budget, or remove these samples.",
            grid.budget,
            len(oversized),
            oversized[0],
        )
    first = next(cuts.after(position), None)
    if first is None and not position and grid.length:
        logger.warning(
            "this loader yields no batch: the plan's %d samples do not fill the budget of %s for each of %d ranks, and"
            " remainder='drop' drops them. Use a smaller budget, or another remainder.",
            grid.length,
            grid.budget,
            grid.world_size,
        )


def _batch_size(value: Any) -> int:
    if value is None:
        raise ConfigError(
            "batch_size is missing: it is required, because the recipe has no budget for its batches",
            kind="missing-option",
            fix="Give the number of samples per rank and step, or add 'batch: {tokens: 65536}' to the recipe.",
        )
    size = integer("batch_size", value)
    if not 1 <= size < _TOO_MANY:
        raise ConfigError(f"batch_size={size} is invalid", fix=f"Give 1 or more, and less than {_TOO_MANY:,}.")
    return size


def _checked_start(start: int, length: int | None) -> int:
    if start < 0 or (length is not None and start > length):
        raise ConfigError(
            f"start={start} is not a position of the plan: expected 0 to {'any number' if length is None else length}",
            kind="bad-option",
            fix="Give the number of samples consumed before, over all ranks.",
        )
    return start


# Each launcher's variables for the process's number and for the number of processes. Slurm's are those of a job step:
# a batch script itself has SLURM_PROCID too, and runs once.
@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of one rank in the stream of windows.

    Attributes:
        size: positions in a window; `length`: of the plan, or None.
        rank, world_size: whose windows these are.
        batch: for groups, the batch size if the criterion returns None; None for packs, which do not depend on it.
        start: position from which windows are dealt to the ranks.
        pending: (first position, items used) of the windows to finish before those; the first is the current one.
        next: number of windows from `start` on that this rank has begun.
    """

    size: int
    length: int | None
    rank: int
    world_size: int
    start: int = 0
    pending: tuple[tuple[int, int], ...] = ()
    next: int = 0
    batch: int | None = None

    def windows(self) -> Iterator[tuple[Cursor, int, int]]:
        """Yield the remaining windows: the cursor while each is current, its first position, and the items used."""
        cursor = self
        while True:
            if not cursor.pending:
                first = cursor.start + (cursor.next * cursor.world_size + cursor.rank) * cursor.size
                if cursor.length is not None and first >= cursor.length:
                    return
                cursor = replace(cursor, pending=((first, 0),), next=cursor.next + 1)
            first, used = cursor.pending[0]
            yield cursor, first, used
            cursor = replace(cursor, pending=cursor.pending[1:])

    def step(self, first: int) -> Step:
        """Return the positions of a window."""
        stop = first + self.size if self.length is None else min(first + self.size, self.length)
        return Step(first, stop, stop, first // self.size, self.length)

    def used(self, first: int, items: int, whole: bool) -> Cursor:
        """Return the cursor after a number of items of the current window; `whole` if those are all of its items."""
        rest = self.pending[1:]
        return replace(self, pending=rest if whole else ((first, items), *rest))

    @property
    def done(self) -> bool:
        """Return whether a finite plan is exhausted."""
        first = self.start + (self.next * self.world_size + self.rank) * self.size
        return not self.pending and self.length is not None and first >= self.length

    @property
    def began_truncated(self) -> bool:
        """Return whether this rank has begun a window that the end of the plan truncates."""
        if self.length is None:
            return False
        number, remaining = divmod(self.length - self.start, self.size)
        own = self.next * self.world_size + self.rank > number and number % self.world_size == self.rank
        return remaining > 0 and (number < 0 or own)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; see `merged`."""
        return {
            "size": self.size,
            "length": self.length,
            "batch": self.batch,
            "rank": self.rank,
            "ranks": self.world_size,
            "start": self.start,
            "next": self.next,
            "pending": [list(entry) for entry in self.pending],
        }


def windows_for(encoder: TaskEncoder | None, grid: Grid, buffer: int | None) -> Cursor | None:
    """Return the windows of a loader's packs or groups, from its start; None if it makes neither.

    Raises:
        ConfigError: hooks, a buffer or a remainder that cannot be combined.
    """
    if encoder is not None:
        encoder.check()
    if encoder is None or not (encoder.packs or encoder.groups):
        if buffer is not None:
            raise ConfigError(
                f"buffer={buffer} has no use: no task encoder packs or groups",
                fix="Omit it, or override the hooks of packing or grouping.",
            )
        return None
    if grid.remainder == "pad":
        raise ConfigError("packs and groups cannot be padded", fix="Use remainder='uneven' or 'drop'.")
    size = 32 * grid.batch_size if buffer is None and encoder.groups else buffer
    if size is None or size < 1:
        raise ConfigError(
            f"packing has buffer={size}: expected at least 1",
            fix="Give the number of samples from which packs are selected.",
        )
    batch = grid.batch_size if encoder.groups else None
    return Cursor(size, grid.length, grid.rank, grid.world_size, batch=batch)


def resumed(states: Sequence[Mapping[str, Any]], fresh: Cursor) -> Cursor:
    """Return the cursor with which the rank of `fresh` resumes from saved states (`Cursor.to_json`).

    A single state suffices for the same rank and world size; otherwise the states of all ranks are required.

    Raises:
        ConfigError: states that do not belong together, or one state if all are required; a different window size; a
            different batch size or end of the plan, if a partly used window depends on it.
    """
    read = sorted(map(_read, states), key=lambda cursor: cursor.rank)
    for cursor in read:
        _check_sizes(cursor, fresh)
    first = read[0]
    worlds = {(cursor.world_size, cursor.start, cursor.length) for cursor in read}
    ranks = [cursor.rank for cursor in read]
    complete = ranks == list(range(len(read))) and worlds == {(len(read), first.start, first.length)}
    mine = [cursor for cursor in read if (cursor.rank, cursor.world_size) == (fresh.rank, fresh.world_size)]
    if not complete and not (len(read) == 1 and mine):
        raise ConfigError(
            f"states are missing: expected one of each of {first.world_size} ranks, because each has packs in progress,"
            f" and found {len(read)}",
            kind="bad-state",
            fix="Save the state of every rank, and load the list of all of them.",
        )
    if first.length != fresh.length and first.length is not None:
        if complete and all(cursor.done for cursor in read):
            return replace(fresh, start=first.length, pending=(), next=0)
        untouched = any(
            not used and begin + cursor.size > first.length for cursor in read for begin, used in cursor.pending
        )
        if not untouched and any(cursor.began_truncated for cursor in read):
            raise ConfigError(
                f"the plan had {first.length:,} samples, and a rank has begun the window that was truncated at its end",
                kind="bad-state",
                fix="Let all ranks reach the end of the old plan, and then load the list of their states.",
            )
    if mine:
        return replace(mine[0], length=fresh.length, batch=fresh.batch)
    begun = max(cursor.next for cursor in read)
    remaining = [entry for cursor in read for entry in cursor.pending]
    remaining += [
        (cursor.start + (number * cursor.world_size + cursor.rank) * cursor.size, 0)
        for cursor in read
        for number in range(cursor.next, begun)
    ]
    remaining = sorted(entry for entry in remaining if fresh.length is None or entry[0] < fresh.length)
    start = first.start + begun * first.world_size * fresh.size
    return replace(fresh, start=start, pending=tuple(remaining[fresh.rank :: fresh.world_size]), next=0)


def _read(state: Mapping[str, Any]) -> Cursor:
    """Return the cursor of a result of `Cursor.to_json`. Raises ConfigError if it is corrupt."""
    try:
        pending = tuple((first, used) for first, used in state["pending"])
        numbers = [state[name] for name in ("size", "rank", "ranks", "start", "next")]
        length, batch = known = [state[name] for name in ("length", "batch")]
        given = [*numbers, *chain.from_iterable(pending), *(number for number in known if number is not None)]
        size, rank, ranks, start, begun = numbers
        if all(type(number) is int and number >= 0 for number in given) and size and rank < ranks:
            return Cursor(size, length, rank, ranks, start, pending, begun, batch)
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError(
        "the state of the packs is corrupt",
        kind="bad-state",
        fix="Load the state that this loader's state_dict() returned, or begin without one.",
    )


def _check_sizes(saved: Cursor, fresh: Cursor) -> None:
    """Raise ConfigError if the windows of a saved state had other contents than those of this loader."""
    if saved.size != fresh.size:
        raise ConfigError(
            f"the state has a buffer of {saved.size:,} samples, this loader {fresh.size:,}",
            kind="bad-state",
            fix=f"Give buffer={saved.size}: it determines which samples are packed together.",
        )
    if saved.batch not in (None, fresh.batch) and any(used for _, used in saved.pending):
        raise ConfigError(
            f"the state has groups of {saved.batch} samples, this loader makes groups of {fresh.batch}",
            kind="bad-state",
            fix=f"Give batch_size={saved.batch}: it determines which samples are grouped together.",
        )


_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)
AXES = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, slots=True)
class Ranks:
    """A data-parallel rank: `rank` of `world_size`; `source` names where the numbers come from.

    Attributes:
        leader: whether this process is the first of those that load the same data. If the others receive their
            batches from it (as in Megatron's tensor-parallel groups), only leaders need a loader.
        group: numbers of all processes that load the same data, in ascending order.
    """

    rank: int
    world_size: int
    source: str = "given"
    leader: bool = True
    group: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} ranks is invalid ({self.source})",
                fix="Give a rank from 0 to world_size - 1.",
            )


def find_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Return rank and world size from an initialized torch.distributed or JAX, else from the launcher, else 0 of 1.

    Every process gets different data. If several processes must get the same data (tensor, context and pipeline
    parallelism), use `data_parallel` or `from_mesh`.

    Raises:
        ConfigError: the launcher's variables contradict each other or are not numbers.
    """
    initialized = _torch() or _jax()
    if initialized is not None:
        return initialized
    variables = os.environ if environment is None else environment
    for launcher, rank, size in _LAUNCHERS:
        if rank in variables and size in variables:
            return Ranks(_int_variable(variables, rank), _int_variable(variables, size), f"{launcher}: {rank}, {size}")
    return Ranks(0, 1, "a single process")


def data_parallel(
    tensor: int = 1, context: int = 1, pipeline: int = 1, *, order: str = "tp-cp-dp-pp", ranks: Ranks | None = None
) -> Ranks:
    """Return the data-parallel rank of this process in a layout of tensor, context and pipeline parallel groups.

    Args:
        tensor, context, pipeline: sizes of the groups; the remaining factor of the world size is data parallel.
        order: the axes from the innermost (adjacent processes) to the outermost, as in Megatron-LM.
        ranks: rank of this process among all processes; default: `find_ranks()`.

    Raises:
        ConfigError: the groups do not divide the processes, or `order` does not name each axis once.

    >>> [data_parallel(tensor=2, ranks=Ranks(r, 8)).rank for r in range(8)]
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    every = find_ranks() if ranks is None else ranks
    axes = order.split("-")
    if sorted(axes) != sorted(AXES):
        raise ConfigError(f"order={order!r} does not name each of {', '.join(AXES)} once", fix="Use 'tp-cp-dp-pp'.")
    model = tensor * context * pipeline
    if min(tensor, context, pipeline) < 1 or every.world_size % model:
        raise ConfigError(
            f"{every.world_size} processes do not divide into groups of {tensor} x {context} x {pipeline}",
            fix="Give sizes whose product divides the number of processes.",
        )
    sizes = {"tp": tensor, "cp": context, "pp": pipeline, "dp": every.world_size // model}

    def coordinates(process: int) -> dict[str, int]:
        out = {}
        for axis in axes:
            process, out[axis] = divmod(process, sizes[axis])
        return out

    mine = coordinates(every.rank)
    group = tuple(process for process in range(every.world_size) if coordinates(process)["dp"] == mine["dp"])
    return Ranks(mine["dp"], sizes["dp"], f"{order} of {every.source}", every.rank == group[0], group)


def from_mesh(mesh: Any, *names: str) -> Ranks:
    """Return the data-parallel rank in a torch `DeviceMesh`: its coordinates along the named axes, outermost first.

    Args:
        mesh: the mesh, with named axes.
        names: data-parallel axes, for example ``"dp"``, or ``"dp_replicate", "dp_shard"``.

    Raises:
        ConfigError: the mesh has no such axis, or this process is not in it.
    """
    known = tuple(mesh.mesh_dim_names or ())
    coordinate = mesh.get_coordinate()
    unknown = [name for name in names if name not in known]
    if unknown or not names or coordinate is None:
        raise ConfigError(
            "this process is not in the mesh" if coordinate is None else f"the mesh has no axis {unknown or names}",
            fix=f"Use axes of the mesh: {', '.join(known) or 'they have no names'}.",
        )
    dims = [known.index(name) for name in names]
    rank, size = 0, 1
    for dim in dims:
        rank, size = rank * mesh.size(dim) + int(coordinate[dim]), size * mesh.size(dim)
    leader = all(int(at) == 0 for dim, at in enumerate(coordinate) if dim not in dims)
    return Ranks(rank, size, f"mesh axes {', '.join(names)}", leader)


def given_or_found(rank: int | None, world_size: int | None) -> Ranks:
    """Return the given rank and world size, or `find_ranks()` without both. Raises ConfigError if only one is given."""
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank} and world_size={world_size}: one of them is missing",
            fix="Give both, or neither to find them.",
        )
    if rank is None or world_size is None:
        return find_ranks()
    return Ranks(integer("rank", rank), integer("world_size", world_size))


def _torch() -> Ranks | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _jax() -> Ranks | None:
    jax = sys.modules.get("jax")
    if jax is None or not getattr(jax.distributed, "is_initialized", lambda: False)():
        return None
    return Ranks(jax.process_index(), jax.process_count(), "JAX")


def _int_variable(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise ConfigError(
            f"the environment variable {name}={variables[name]!r} is not a number",
            fix="Unset it, or give rank and world_size to the loader.",
        ) from None
