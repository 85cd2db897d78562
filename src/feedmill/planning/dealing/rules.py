"""Settings of global batches in a recipe or a loader: a budget, a balance of costs over ranks, and a way of dealing.

A new way of dealing is a name in `Deal` and a row of `SLOTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.permutation import permute

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
