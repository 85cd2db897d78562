"""What an error does to a run: one vocabulary for every verb.

``raise`` ends the run at the first thing that cannot be used; ``skip`` leaves such things out, counts and lists them.
A loader has ``substitute`` in place of that (`feedmill.loading.failures`): a batch is never short.
"""

from __future__ import annotations

import logging
from typing import Literal

from feedmill.errors import ConfigError

logger = logging.getLogger("feedmill")

OnError = Literal["raise", "skip"]
RAISE: OnError = "raise"
SKIP: OnError = "skip"
_OLD: dict[str, OnError] = {"fail": RAISE, "stop": RAISE, "continue": SKIP}
"""Words of release 0.1."""


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
