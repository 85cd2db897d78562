"""Error policies of a run, with the same names for every verb.

``raise`` ends the run at the first invalid input; ``skip`` skips invalid inputs, counts and lists them. A loader has
``substitute`` instead of ``skip`` (`feedmill.loading.failures`), so that batches stay full. An error budget
(`over_budget`) limits the errors that are tolerated.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from feedmill.errors import ConfigError

OnError = Literal["raise", "skip"]
RAISE: OnError = "raise"
SKIP: OnError = "skip"


class ErrorPolicy(NamedTuple):
    """Handling of an invalid input.

    Attributes:
        skips: skip it and continue; otherwise the run ends.
    """

    skips: bool


POLICIES: dict[OnError, ErrorPolicy] = {RAISE: ErrorPolicy(skips=False), SKIP: ErrorPolicy(skips=True)}
"""Policies by name. To add one, add a row here and a name in `OnError`."""
METAVAR = "|".join(POLICIES)
"""Placeholder of the policies in help texts."""
_SHARE_OF = 1000


def on_error_policy(value: str) -> OnError:
    """Return the policy that an option `on_error` names. Raises `ConfigError` if the name is unknown.

    >>> on_error_policy("skip")
    'skip'
    """
    known = next((name for name in POLICIES if name == value), None)
    if known is None:
        names = " or ".join(map(repr, POLICIES))
        raise ConfigError(f"unknown error policy {value!r}", kind="bad-option", fix=f"Use {names}.")
    return known


def skips(on_error: OnError) -> bool:
    """Return whether a policy skips invalid inputs; otherwise the run ends at the first."""
    return POLICIES[on_error].skips


def check_budget(budget: float | None, option: str) -> None:
    """Raise `ConfigError` unless this is an error budget: a whole number, a fraction below 1, or None for no limit."""
    if budget is not None and not (0 < budget < 1 or (budget >= 0 and budget % 1 == 0)):
        raise ConfigError(
            f"{option} {budget} is invalid", kind="bad-option", fix="Pass an integer, or a fraction of inputs below 1."
        )


def over_budget(budget: float | None, errors: int, seen: int) -> str | None:
    """Return a message if errors exceed the budget, else None.

    A fraction applies to at least a thousand inputs: otherwise the first error would exceed it.

    >>> over_budget(2, 3, 10)
    'the error budget of 2 is exceeded (3 so far)'
    >>> over_budget(0.01, 3, 10)
    """
    if budget is None:
        return None
    if not 0 < budget < 1:
        return f"the error budget of {int(budget):,} is exceeded ({errors:,} so far)" if errors > budget else None
    base = max(seen, _SHARE_OF)
    if errors <= budget * base:
        return None
    return f"the error budget of {budget:.3%} is exceeded ({errors:,} of {base:,} so far)"
