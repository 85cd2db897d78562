"""Settings of global batches in a recipe or a loader: a budget, a balance of costs over ranks, and a way of dealing.

A new way of dealing is a name in `Deal` and a row of `SLOTS`.

Batches of one source, of a blend in runs: run *j* is the positions ``[j*K, (j+1)*K)``. If the `b` samples of a rank
divide *K*, a slice of `b` positions that begins at a multiple of `b` lies in one run, so each rank gets one slice. If
the global batch of `G` samples divides *K* and begins at a multiple of *G*, all ranks have the same source, and single
positions can be dealt in any way.

Batches of whole groups, so that what compares their samples needs no exchange: if every run of `g` positions is whole
groups and `g` divides a rank's batch, dealing permutes these runs instead of positions, and balancing exchanges them.
``deal: contiguous`` gives a rank its slice whatever the groups are: a group may then be spread over neighboring ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.nodes import Interleaved, Skip
from feedmill.planning.permutation import permute

if TYPE_CHECKING:
    from feedmill.planning.dealing.cuts import BudgetGrid
    from feedmill.planning.plan import Plan


IntArray = npt.NDArray[np.int64]
Deal = Literal["shuffled", "contiguous"]
SLOTS: dict[str, Callable[[IntArray, int, Any, int], IntArray]] = {
    "shuffled": lambda slots, count, keys, _: permute(slots, count, keys)
}
"""Ways of dealing that are not the identity, by their name. They map slots int64[n] of a global batch to offsets in it:
the r-th rank has the r-th of nearly equal parts of the slots. The other arguments are the number of slots, a key of the
global batch for each slot or for all, and the number of ranks."""
MOST_SAMPLES = 1 << 20
"""Maximum number of samples in a global batch without `max_samples`: samples without cost would make it endless."""
LARGEST = 1 << 50


@dataclass(frozen=True, slots=True)
class Budget:
    """Maximum cost of a rank's batch.

    Attributes:
        by: the cost, see `feedmill.planning.dealing.costs`.
        amount: maximum sum of the costs of a rank's batch, at least 1.
        max_samples: maximum number of samples of a rank's batch, or None.
        linear: for ``attention``, see `feedmill.planning.dealing.costs.Costs`.

    Raises:
        ConfigError: a number is out of range, or `linear` is given without ``attention``.
    """

    by: str
    amount: int
    max_samples: int | None = None
    linear: float = 0.0

    def __post_init__(self) -> None:
        for name, value, most in (
            (self.by, self.amount, LARGEST),
            ("max_samples", 1 if self.max_samples is None else self.max_samples, MOST_SAMPLES),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise bad_budget(f"{name}={value!r} is invalid", f"Give an integer from 1 to {most:,}.")
        if not 0 <= self.linear < 1e18 or (self.linear and self.by != "attention"):
            raise bad_budget(f"linear={self.linear} is invalid", "Give 'linear' >= 0, and only with 'attention'.")

    @classmethod
    def of(cls, value: Budget | Mapping[str, Any]) -> Budget:
        """Return a budget from the value of a recipe or an argument, such as ``{"tokens": 65536, "max_samples": 64}``.

        Raises:
            ConfigError: it names no cost, or several costs.
        """
        if isinstance(value, Budget):
            return value
        options = dict(value)
        more = {name: options.pop(name) for name in ("max_samples", "linear") if name in options}
        if len(options) != 1 or not all(isinstance(name, str) for name in options):
            raise bad_budget(
                f"{value!r} names {len(options)} costs, expected one",
                "Give {'tokens': 65536, 'max_samples': 64}, for example; 'max_samples' and 'linear' are optional.",
            )
        ((by, amount),) = options.items()
        return cls(by, amount, **more)

    def __str__(self) -> str:
        most = "" if self.max_samples is None else f", at most {self.max_samples:,} samples"
        return f"{self.amount:,} {self.by}{most}"


@dataclass(frozen=True, slots=True)
class Balance:
    """The cost that is balanced over ranks.

    Attributes:
        by: ``tokens``, ``attention`` (the sum of squares of document lengths), ``pixels``, ``frames``, ``bytes``, or a
            numeric field of the index.
        linear: with ``attention``: cost per token, added to the squares.
        media, media_squares: with ``attention``, of packed rows of samples: cost per patch of the vision tower, and per
            squared patches of each picture that attends to itself, see `feedmill.samples.token_rules.rule.Vision`.
        within: ``batch``: samples are exchanged within one global batch.

    Raises:
        ConfigError: unknown `within`, or a cost that is negative or given without ``attention``.
    """

    by: str
    linear: float = 0.0
    within: str = "batch"
    media: float = 0.0
    media_squares: float = 0.0

    def __post_init__(self) -> None:
        if self.within != "batch":
            raise ConfigError(f"balance within {self.within!r} is unsupported", fix="Use 'within: batch'.")
        for name in ("linear", "media", "media_squares"):
            value = getattr(self, name)
            if not 0 <= value < 1e18 or (value and self.by != "attention"):
                raise ConfigError(
                    f"balance by {self.by} with {name}={value} is invalid",
                    kind="bad-option",
                    fix=f"Set {name!r} to 0 or more, only with 'by: attention'.",
                )

    @classmethod
    def of(cls, value: Balance | Mapping[str, Any] | str | None) -> Balance | None:
        """Return a balance from the value of a recipe or an argument. Raises `ConfigError` if it is invalid."""
        if value is None or isinstance(value, Balance):
            return value
        options = {"by": value} if isinstance(value, str) else dict(value)
        unknown = [name for name in options if name not in cls.__slots__]
        if unknown or not isinstance(options.get("by"), str):
            raise ConfigError(
                f"balance={value!r} is invalid: {f'{unknown[0]!r} is unknown' if unknown else 'it needs by'}",
                kind="bad-option",
                fix="Give balance={'by': 'tokens'}, for example; the others are optional: see docs/balancing.md.",
            )
        return cls(**options)


@dataclass(frozen=True, slots=True)
class Dealing:
    """Rule by which positions are dealt to ranks, as set in a recipe or loader.

    Attributes:
        kind: a value of `Deal`.
        balance: the cost that is balanced over ranks, or None.
        budget: maximum cost of a rank's batch instead of a fixed number of samples, or None.

    Raises:
        ConfigError: an unknown kind, or one that cannot be combined with balancing or a budget.
    """

    kind: str = "shuffled"
    balance: Balance | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Deal):
            raise ConfigError(f"deal={self.kind!r} is unknown", fix=f"Use one of: {', '.join(get_args(Deal))}.")
        if self.kind != "shuffled" and self.balance is not None:
            raise ConfigError(
                f"balance and deal={self.kind!r} cannot be combined: the cost of a slice is fixed",
                kind="bad-option",
                fix="Remove one of them.",
            )
        if self.budget is not None and (self.kind != "shuffled" or self.balance is not None):
            other = f"deal={self.kind!r}" if self.balance is None else "balance"
            raise ConfigError(
                f"{other} and batches by budget cannot be combined: the cost of the budget determines which rank gets"
                " which sample",
                kind="bad-option",
                fix="Remove one of them.",
            )


def bad_budget(what: str, fix: str) -> ConfigError:
    return ConfigError(f"the budget of a batch: {what}", kind="bad-option", fix=fix)


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
    if not isinstance(grid, Grid):
        raise bad_batches("batches by budget hold several sources", "Remove 'homogeneous', or give a batch size.")
    size, whole = grid.batch_size, grid.global_batch
    if length % size:
        raise bad_batches(
            f"a batch of {size:,} samples would hold several sources: the plan yields {length:,} samples of one source"
            " at a time",
            f"Use a batch size per rank that divides {length:,}, or set 'homogeneous' to a multiple of the batch size.",
        )
    unit = size if length % whole else whole
    if grid.start % unit:
        raise bad_batches(
            f"position {grid.start:,} is not a multiple of {unit:,}: a batch that begins there would hold two sources,"
            f" which alternate in runs of {length:,} samples",
            f"Start at a multiple of {unit:,}, or use a batch size that divides the position.",
        )
    if length % whole and balanced:
        raise bad_batches(
            f"ranks that have batches of different sources cannot be balanced: {length:,} samples of one source do not"
            f" fill whole global batches of {whole:,}",
            f"Set 'homogeneous' to a multiple of {whole:,}, or remove 'balance'.",
        )
    if grid.left_over and (grid.remainder == "pad" or (length % whole and grid.remainder != "drop")):
        raise bad_batches(
            f"the last {grid.left_over:,} samples do not fill a global batch of {whole:,}, and remainder="
            f"{grid.remainder!r} would make batches of several sources from them",
            "Use remainder='drop', or a different number of 'samples'.",
        )


def bad_batches(what: str, fix: str) -> ConfigError:
    """Return the error for batches of one source, or of whole groups, that are impossible."""
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
        raise bad_batches(
            "the groups of samples have different sizes, and a batch of a fixed number of samples would cut them",
            f"Use groups of one size, {apart}.",
        )
    size = grid.batch_size if isinstance(grid, Grid) else 0
    if size % group:
        near = " or ".join(f"{each:,}" for each in (size // group * group, (size // group + 1) * group) if each)
        raise bad_batches(
            f"a batch of {size:,} samples for a rank is not whole groups: {size:,} = {size // group:,} x {group:,} +"
            f" {size % group:,}",
            f"Use a batch size of {near}, {apart}.",
        )
    if grid.start % group:
        raise bad_batches(
            f"position {grid.start:,} is inside a group: groups come in runs of {group:,} samples",
            f"Start at a multiple of {group:,}, {apart}.",
        )
    left = grid.left_over if isinstance(grid, Grid) else 0
    if left % group and (grid.remainder == "pad" or (dealing.balance is not None and grid.remainder != "drop")):
        how = "padded" if grid.remainder == "pad" else "balanced"
        raise bad_batches(
            f"the last {left:,} samples cannot be {how} in runs of {group:,}, which groups come in",
            "Use remainder='drop', or a different number of 'samples'.",
        )
