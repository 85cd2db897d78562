"""Groups of samples on ranks: a rank's batch has whole groups, so that what compares their samples needs no exchange.

If every run of `g` positions is whole groups and `g` divides a rank's batch, dealing permutes these runs instead of
positions, and balancing exchanges them. ``deal: contiguous`` gives a rank its slice whatever the groups are: a group
may then be spread over neighboring ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.dealing.grid import Grid

if TYPE_CHECKING:
    from feedmill.planning.dealing.cuts import BudgetGrid
    from feedmill.planning.dealing.rules import Dealing


def group_of(plan: Any) -> int | None:
    """Return `Node.first_group` of a plan's root; 1 if its positions are packed rows, or it has no nodes."""
    node = None if hasattr(plan, "documents") else getattr(plan, "node", None)
    return 1 if node is None else node.first_group


def dealt_together(plan: Any, dealing: Dealing) -> int:
    """Return `Grid.group` of a plan."""
    return 1 if dealing.kind == "contiguous" else group_of(plan) or 1


def check_groups(plan: Any, grid: Grid | BudgetGrid, dealing: Dealing) -> None:
    """Check that the batches of a layout have whole groups.

    Raises:
        ConfigError: a batch would have a part of a group.
    """
    group = group_of(plan)
    if group == 1 or dealing.kind == "contiguous":
        return
    apart = "or 'deal: contiguous', which lets batches cut groups"
    if group is None:
        raise _bad(
            "the groups of samples have different sizes, and a batch of a fixed number of samples would cut them",
            f"Use groups of one size, {apart}.",
        )
    if not isinstance(grid, Grid):
        raise _bad(
            f"batches by budget would cut the groups of samples, which come in runs of {group:,}",
            f"Give a batch size that is a multiple of {group:,}, or remove 'groups'.",
        )
    size = grid.batch_size
    if size % group:
        near = " or ".join(f"{each:,}" for each in (size // group * group, (size // group + 1) * group) if each)
        raise _bad(
            f"a batch of {size:,} samples for a rank is not whole groups: {size:,} = {size // group:,} x {group:,} +"
            f" {size % group:,}",
            f"Use a batch size of {near}, {apart}.",
        )
    if grid.start % group:
        raise _bad(
            f"position {grid.start:,} is inside a group: groups come in runs of {group:,} samples",
            f"Start at a multiple of {group:,}, {apart}.",
        )
    left = grid.left_over
    if left % group and (grid.remainder == "pad" or (dealing.balance is not None and grid.remainder != "drop")):
        how = "padded" if grid.remainder == "pad" else "balanced"
        raise _bad(
            f"the last {left:,} samples cannot be {how} in runs of {group:,}, which groups come in",
            "Use remainder='drop', or a different number of 'samples'.",
        )


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-recipe", fix=fix)
