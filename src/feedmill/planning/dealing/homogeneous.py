"""Batches of one source: the requirements of a blend in runs of samples on ranks and batches.

Run *j* is the positions ``[j*K, (j+1)*K)``. If the `b` samples of a rank divide *K*, a slice of `b` positions that
begins at a multiple of `b` lies in one run, so each rank gets one slice. If the global batch of `G` samples divides *K*
and begins at a multiple of *G*, all ranks have the same source, and single positions can be dealt in any way.

Groups of samples on ranks: a rank's batch has whole groups, so that what compares their samples needs no exchange.

If every run of `g` positions is whole groups and `g` divides a rank's batch, dealing permutes these runs instead of
positions, and balancing exchanges them. ``deal: contiguous`` gives a rank its slice whatever the groups are: a group
may then be spread over neighboring ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.nodes import Interleaved, Skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedmill.planning.dealing.cuts import BudgetGrid
    from feedmill.planning.dealing.rules import Dealing
    from feedmill.planning.plan import Plan


def run_length_of(plan: Any) -> int:
    """Return the run length of a plan's blend; 1 if it interleaves single samples, or if the plan has no blend."""
    if hasattr(plan, "documents"):
        return 1  # in a packed plan only the documents come in runs, not the rows
    node = getattr(plan, "node", None)
    node = node.child if isinstance(node, Skip) else node
    return node.run_length if isinstance(node, Interleaved) and node.one_source else 1


def check_skip(plan: Plan) -> None:
    """Check that a skip list moves whole runs only. Raises ConfigError."""
    length, gaps = run_length_of(plan), plan.skip
    if length == 1 or gaps is None:
        return
    for first, stop in zip(gaps.firsts.tolist(), gaps.stops.tolist(), strict=True):
        if first % length or (stop % length and stop != _end_of(plan)):
            raise ConfigError(
                f"the skip list removes the positions [{first:,}, {stop:,}) from runs of {length:,} samples: later"
                " positions would move up, and batches would hold two sources",
                kind="bad-recipe",
                fix=f"Skip ranges that begin and end at multiples of {length:,}, or substitute bad samples"
                " (on_error='substitute').",
            )


def _end_of(plan: Plan) -> int | None:
    """Return the length of the plan without its skip list."""
    return plan.node.child.length if isinstance(plan.node, Skip) else plan.node.length


def check_drawn(plan: Plan, names: Sequence[str]) -> None:
    """Check that each source with a weight gets a run before the plan ends.

    Args:
        plan: the plan.
        names: names of the blend's children.

    Raises:
        ConfigError: a source gets no sample.
    """
    node = plan.node.child if isinstance(plan.node, Skip) else plan.node
    if plan.length is None or not isinstance(node, Interleaved) or node.run_length == 1:
        return
    total = plan.length + (0 if plan.skip is None else plan.skip.count)
    shares = node.shares(total)
    assert shares is not None  # the plan ends
    for name, asked, count in zip(names, shares[0], node.draws(total), strict=True):
        if asked and not count:
            raise ConfigError(
                f"the source {name!r} has a share of {float(asked):.4g} of {total:,} samples, and gets none of the"
                f" {-(-total // node.run_length):,} runs of {node.run_length:,} samples",
                kind="too-few-samples",
                fix="Raise its weight, use more samples or shorter runs, or remove it.",
            )


def deals_slices(plan: Any, grid: Grid) -> bool:
    """Return whether ranks get whole slices: the global batch has several sources, but each slice has one."""
    length = run_length_of(plan)
    return length > 1 and length % grid.global_batch != 0 and length % grid.batch_size == 0


def check_layout(plan: Any, grid: Grid | BudgetGrid, balanced: bool) -> None:
    """Check that every batch of a layout has one source.

    Args:
        balanced: whether samples are exchanged between ranks.

    Raises:
        ConfigError: a batch would hold two sources, or ranks of different sources would be balanced.
    """
    length = run_length_of(plan)
    if length == 1:
        return
    from feedmill.planning.dealing.grid import Grid

    if not isinstance(grid, Grid):
        raise bad_homogeneous("batches by budget hold several sources", "Remove 'homogeneous', or give a batch size.")
    size, whole = grid.batch_size, grid.global_batch
    if length % size:
        raise bad_homogeneous(
            f"a batch of {size:,} samples would hold several sources: the plan yields {length:,} samples of one source"
            " at a time",
            f"Use a batch size per rank that divides {length:,}, or set 'homogeneous' to a multiple of the batch size.",
        )
    unit = size if length % whole else whole
    if grid.start % unit:
        raise bad_homogeneous(
            f"position {grid.start:,} is not a multiple of {unit:,}: a batch that begins there would hold two sources,"
            f" which alternate in runs of {length:,} samples",
            f"Start at a multiple of {unit:,}, or use a batch size that divides the position.",
        )
    if length % whole and balanced:
        raise bad_homogeneous(
            f"ranks that have batches of different sources cannot be balanced: {length:,} samples of one source do not"
            f" fill whole global batches of {whole:,}",
            f"Set 'homogeneous' to a multiple of {whole:,}, or remove 'balance'.",
        )
    if grid.left_over and (grid.remainder == "pad" or (length % whole and grid.remainder != "drop")):
        raise bad_homogeneous(
            f"the last {grid.left_over:,} samples do not fill a global batch of {whole:,}, and remainder="
            f"{grid.remainder!r} would make batches of several sources from them",
            "Use remainder='drop', or a different number of 'samples'.",
        )


def bad_homogeneous(what: str, fix: str) -> ConfigError:
    """Return the error for batches of one source that are impossible."""
    return ConfigError(what, kind="bad-recipe", fix=fix)


def group_of(plan: Any) -> int | None:
    """Return `Node.first_group` of a plan's root; 1 if its positions are packed rows, or it has no nodes."""
    node = None if hasattr(plan, "documents") else getattr(plan, "node", None)
    return 1 if node is None else node.first_group


def dealt_together(plan: Any, dealing: Dealing) -> int:
    """Return the `group` of the grid of a plan."""
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
    size = grid.batch_size if isinstance(grid, Grid) else 0
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
    left = grid.left_over if isinstance(grid, Grid) else 0
    if left % group and (grid.remainder == "pad" or (dealing.balance is not None and grid.remainder != "drop")):
        how = "padded" if grid.remainder == "pad" else "balanced"
        raise _bad(
            f"the last {left:,} samples cannot be {how} in runs of {group:,}, which groups come in",
            "Use remainder='drop', or a different number of 'samples'.",
        )


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-recipe", fix=fix)
