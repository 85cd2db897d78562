"""What an error does to a run: one vocabulary for every verb.

``raise`` ends the run at the first thing that cannot be used; ``skip`` leaves such things out, counts and lists them.
A loader has ``substitute`` in place of that (`feedmill.loading.failures`): a batch is never short. How much of either
is borne before the run ends all the same is an error budget, `over_budget`.
"""

from __future__ import annotations

import logging
from typing import Literal, TypeVar

from feedmill.errors import ConfigError

logger = logging.getLogger("feedmill")

Given = TypeVar("Given")
OnError = Literal["raise", "skip"]
RAISE: OnError = "raise"
SKIP: OnError = "skip"
_OLD: dict[str, OnError] = {"fail": RAISE, "stop": RAISE, "continue": SKIP}
"""Words of release 0.1."""
_SHARE_OF = 1000


def on_error_policy(word: str) -> OnError:
    """The policy that an option `on_error` names; a word of release 0.1 is taken with a warning.

    Raises:
        ConfigError: it names none.

    >>> on_error_policy("skip")
    'skip'
    """
    if word in (RAISE, SKIP):
        return SKIP if word == SKIP else RAISE
    if word not in _OLD:
        raise ConfigError(
            f"there is no policy {word!r} for errors", kind="bad-option", fix=f"Use {RAISE!r} or {SKIP!r}."
        )
    logger.warning("on-error %s is now called %s; the old word will go", word, _OLD[word])
    return _OLD[word]


def renamed_option(old: str, new: str, value: Given | None, then: Given | None) -> Given | None:
    """The value of an option that release 0.1 called `old`, with a warning where it was given; else that of `new`."""
    if value is None:
        return then
    logger.warning("%s is now called %s; the old name will go", old, new)
    return value


def check_budget(budget: float | None, option: str) -> None:
    """Raise `ConfigError` unless this is an error budget: a whole number or, below 1, a share; None: no end."""
    if budget is not None and not (0 < budget < 1 or (budget >= 0 and budget % 1 == 0)):
        raise ConfigError(
            f"{option} {budget} is invalid", kind="bad-option", fix="Give a whole number of errors, or a share below 1."
        )


def over_budget(budget: float | None, errors: int, seen: int) -> str | None:
    """Why errors among what was seen are more than the budget; None where they are not. A share is one of a thousand at
    least: the first error would exceed it otherwise.

    >>> over_budget(2, 3, 10)
    '3 errors, where 2 are allowed'
    >>> over_budget(0.01, 3, 10)
    """
    if budget is None:
        return None
    if not 0 < budget < 1:
        return f"{errors:,} errors, where {int(budget):,} are allowed" if errors > budget else None
    base = max(seen, _SHARE_OF)
    return f"{errors:,} errors in {base:,}, where {budget:.3%} are allowed" if errors > budget * base else None
