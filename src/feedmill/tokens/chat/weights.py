"""Keys of a message that say whether it contributes to the loss, by the names that other programs give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedmill.documents.batch import BadDocument

ON = ("weight", "loss", "loss_weight", "loss_scale", "train", "training", "trainable")
"""1 or true: the message is learned. OpenAI's ``weight``, ``loss`` of ms-swift and XTuner, ``train`` of axolotl ..."""
OFF = ("masked",)
"""True: the message is not learned; torchtune's name."""
KEYS = (*ON, *OFF)
UNSUPPORTED = {"train_detail": "ranges inside of a message"}
"""Keys that would change the loss in a way that is unsupported."""


def learns(message: Mapping[str, Any], number: int) -> bool | None:
    """Return whether a message is to contribute to the loss; None if it does not say.

    Raises:
        BadDocument: a weight is neither 0 nor 1, two keys contradict each other, or a key is unsupported.
    """
    found: dict[str, bool] = {}
    for key in KEYS:
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise BadDocument(
                f"message {number}: {key!r} is {value!r:.40}, but a loss mask has only 0 and 1 (true and false)"
            )
        found[key] = bool(value) != (key in OFF)
    for key, what in UNSUPPORTED.items():
        if message.get(key):
            raise BadDocument(f"message {number}: {key!r} ({what}) is unsupported (weigh whole messages with 'weight')")
    if len(set(found.values())) > 1:
        raise BadDocument(f"message {number}: {' and '.join(map(repr, found))} contradict each other")
    return next(iter(found.values()), None)
