"""Divide the positions of a plan into the batches of one rank.

A `Loader` computes its layout when it is created, so that options that cannot be combined raise before data is read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.jobs.policy import whole
from feedmill.loading.cursors import Cursor, windows_for
from feedmill.loading.plan import PlainPlan
from feedmill.loading.ranks import Ranks
from feedmill.planning.dealing.dealer import dealer_of, dealing_of
from feedmill.planning.dealing.grid import REMAINDERS, Grid, Remainder, borders_of
from feedmill.planning.dealing.homogeneous import check_layout, run_length_of
from feedmill.planning.dealing.whole_groups import check_groups, dealt_together, group_of

if TYPE_CHECKING:
    from feedmill.loading.encoder import TaskEncoder
    from feedmill.planning.dealing.cuts import BudgetGrid
    from feedmill.planning.dealing.rules import Balance, Budget, Dealing

logger = logging.getLogger("feedmill")

_TOO_MANY = 1 << 31


@dataclass(frozen=True, slots=True)
class RankBatches:
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
    start = _checked_start(whole("start", start), plan.length)
    together, borders = dealt_together(plan, dealing), borders_of(plan)
    plain = Grid(start, plan.length, size, ranks.rank, ranks.world_size, remainder, together, borders)
    if borders:
        _check_widths(plain, task_encoder)
    grid: Grid | BudgetGrid = plain
    if dealing.budget is not None:
        from feedmill.planning.dealing.cuts import BudgetGrid

        grid = BudgetGrid(start, plan.length, dealing.budget, ranks.rank, ranks.world_size, remainder, together)
    cursor = windows_for(task_encoder, plain, None if buffer is None else whole("buffer", buffer))
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
    size = whole("batch_size", value)
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
